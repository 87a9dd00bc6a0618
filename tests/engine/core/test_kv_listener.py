"""A listener of the prefix index changes nothing, and whoever follows its events over the wire knows the whole index."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.engine.kv_publisher import BlockNames, wire_events
from argosy.fleet.gateway.kv_events import KvFeed, KvSource
from argosy.fleet.gateway.kv_wire import EventReader
from argosy.fleet.policies.routing.event_or_sent_index import EventOrSentIndex
from argosy.fleet.policies.routing.kv_event_index import KvEventIndex
from argosy.fleet.policies.routing.prefix_index import ApproximatePrefixIndex
from argosy.fleet.policies.routing.request import RoutingRequest, chain_root, token_block_hashes

SIZE = 4


def run(lab, seed, listener):
    """A pool that is too small, three tenants, one clearance."""
    rig = lab.rig(num_blocks=14, block_size=SIZE, max_num_seqs=4)
    rig.scheduler = type(rig.scheduler)(rig.scheduler.config, kv_listener=listener)
    rng = Random(seed)
    shared = [rng.randint(0, 9) for _ in range(16)]
    for number in range(16):
        prompt = shared[: rng.randint(0, 16)] + [rng.randint(0, 9) for _ in range(rng.randint(1, 12))]
        rig.submit(prompt, max_tokens=rng.randint(1, 9), cache_salt=rng.choice(["", "t1", "t2"]))
        if number == 8:
            rig.run()
            rig.scheduler.kv.reset_prefix_cache()
    rig.run()
    return rig


def paths(index):
    """(salt, tokens from the start) of every published block."""
    found = set()
    for space, root in index.roots():
        waiting = [(root, ())]
        while waiting:
            node, above = waiting.pop()
            for child in node.children.values():
                tokens = above + child.tokens
                found.add((space.cache_salt, tokens))
                waiting.append((child, tokens))
    return found


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_listener_changes_no_decision(lab, seed):
    heard = []
    with_one, without = run(lab, seed, heard.append), run(lab, seed, None)
    assert heard
    assert with_one.plans == without.plans
    assert (with_one.tokens, with_one.endings) == (without.tokens, without.endings)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), per_message=st.integers(1, 20))
def test_who_follows_the_events_knows_the_index(lab, seed, per_message):
    heard = []
    rig = run(lab, seed, heard.append)
    names, reader = BlockNames(), EventReader()
    feed = KvFeed(EventOrSentIndex(KvEventIndex(SIZE), ApproximatePrefixIndex()))
    source = KvSource("a", 1000)
    feed.trust(source)
    for first in range(0, len(heard), per_message):
        written = wire_events(heard[first : first + per_message], names)
        feed.apply(source, [reader.decode(event) for event in written])
    published = paths(rig.scheduler.kv._index)
    assert published
    assert feed.num_blocks_of(source) == len(published)
    for salt in ("", "t1", "t2"):
        for _, tokens in published:
            blocks = token_block_hashes(tokens, SIZE, chain_root(salt))
            matched = feed.index.match(RoutingRequest("r", prefix_blocks=blocks, prefix_block_tokens=SIZE), 0.0)
            held = max((n for n in range(SIZE, len(tokens) + 1, SIZE) if (salt, tokens[:n]) in published), default=0)
            assert matched.get("a", 0) == held
