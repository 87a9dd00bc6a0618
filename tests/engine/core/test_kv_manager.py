"""Blocks: free + cached + held = total, reuse, copy-on-write, eviction, namespaces."""

import pytest

from argosy.engine.core.eviction import make_policy
from argosy.engine.core.invariants import InvariantViolated
from argosy.engine.core.kv_events import BlockRemoved, BlockStored, CacheCleared
from argosy.engine.core.kv_manager import KVManager
from argosy.engine.core.plan import BlockCopy
from argosy.engine.core.request import Request, Sequence
from argosy.engine.core.sampling_params import SamplingParams


@pytest.fixture
def make_kv():
    def make(num_blocks=8, block_size=4, *, caching=True, policy="lru", listener=None):
        return KVManager(
            num_blocks,
            block_size,
            kv_dtype="float32",
            enable_prefix_caching=caching,
            policy=make_policy(policy),
            listener=listener,
        )

    return make


@pytest.fixture
def make_sequence():
    count = iter(range(1000))

    def make(tokens, **fields):
        number = next(count)
        request = Request(f"r{number}", tuple(tokens), SamplingParams(), 0.0, 0, **fields)
        return Sequence(number, request, 0, list(tokens), len(tokens))

    return make


def admit(kv, sequence, **overrides):
    known = len(sequence.token_ids)
    fields = {"reserve_tokens": known, "reusable_tokens": known - 1, "headroom_blocks": 0, **overrides}
    admitted = kv.admit(sequence, **fields)
    kv.check_invariants()
    return admitted


def compute(kv, sequence):
    """As if a step had computed all that is known."""
    sequence.num_computed = len(sequence.token_ids)
    if sequence.num_computed >= sequence.publish_at:
        kv.publish(sequence)
    kv.check_invariants()


def release(kv, sequence):
    kv.release(sequence)
    kv.check_invariants()


def run_through(kv, sequence):
    assert admit(kv, sequence)
    compute(kv, sequence)
    release(kv, sequence)


def states(kv):
    return kv.num_free, kv.num_cached, kv.num_held


def test_states_add_up_through_a_life(make_kv, make_sequence):
    kv, a = make_kv(), make_sequence(range(10))
    assert states(kv) == (8, 0, 0)
    admit(kv, a)
    assert states(kv) == (5, 0, 3)
    compute(kv, a)
    assert states(kv) == (5, 0, 3)
    release(kv, a)
    assert states(kv) == (6, 2, 0), "two full blocks are published, the partial one is not"


def test_an_equal_prefix_is_shared(make_kv, make_sequence):
    kv = make_kv()
    a, b = make_sequence(range(10)), make_sequence([*range(8), 50, 51])
    admit(kv, a)
    compute(kv, a)
    admit(kv, b)
    assert b.num_computed == 8
    assert b.block_table[:2] == a.block_table[:2]
    assert b.block_table[2] != a.block_table[2]
    assert states(kv) == (4, 0, 4)


def test_nothing_is_shared_before_it_is_computed(make_kv, make_sequence):
    kv = make_kv()
    a, b = make_sequence(range(10)), make_sequence(range(10))
    admit(kv, a)
    admit(kv, b)
    assert b.num_computed == 0
    assert not set(a.block_table) & set(b.block_table)


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_a_full_hit_leaves_tokens_to_run(make_kv, make_sequence, num_blocks):
    kv = make_kv()
    tokens = range(4 * num_blocks)
    run_through(kv, make_sequence(tokens))
    again = make_sequence(tokens)
    admit(kv, again)
    assert again.num_computed == 4 * (num_blocks - 1)


def test_generated_tokens_are_reused_too(make_kv, make_sequence):
    kv, a = make_kv(), make_sequence(range(5))
    admit(kv, a)
    compute(kv, a)
    a.token_ids += [60, 61, 62, 63, 64]
    assert kv.grow(a, 10)
    compute(kv, a)
    release(kv, a)
    b = make_sequence([*range(5), 60, 61, 62, 63, 99])
    admit(kv, b)
    assert b.num_computed == 8


def test_of_equal_blocks_the_first_published_stays(make_kv, make_sequence):
    kv = make_kv()
    a, b = make_sequence(range(9)), make_sequence(range(9))
    admit(kv, a)
    admit(kv, b)
    compute(kv, a)
    compute(kv, b)
    assert b.block_table[:2] == a.block_table[:2]
    assert states(kv) == (4, 0, 4), "the second copy of two blocks is free again"
    release(kv, a)
    assert states(kv) == (5, 0, 3)
    release(kv, b)
    assert states(kv) == (6, 2, 0)


def test_a_refused_admission_changes_nothing(make_kv, make_sequence):
    kv = make_kv(num_blocks=4)
    run_through(kv, make_sequence(range(9)))
    before = states(kv)
    large = make_sequence([*range(8), *range(70, 80)])
    assert not admit(kv, large)
    assert states(kv) == before
    assert large.block_table == ()


def test_cached_blocks_that_match_do_not_count_as_room(make_kv, make_sequence):
    """Pool of 4: two cached blocks match, two are free; five blocks are wanted in all, so one is missing."""
    kv = make_kv(num_blocks=4)
    run_through(kv, make_sequence(range(9)))
    assert states(kv) == (2, 2, 0)
    assert not admit(kv, make_sequence([*range(8), *range(70, 79)]))
    assert admit(kv, make_sequence([*range(8), *range(70, 78)]))
    assert states(kv) == (0, 0, 4)


def test_headroom_stays_available(make_kv, make_sequence):
    kv = make_kv(num_blocks=4)
    assert not admit(kv, make_sequence(range(12)), headroom_blocks=2)
    assert admit(kv, make_sequence(range(8)), headroom_blocks=2)


def test_matched_blocks_are_not_evicted_to_make_room_for_the_rest(make_kv, make_sequence):
    kv = make_kv(num_blocks=5)
    run_through(kv, make_sequence(range(9)))
    run_through(kv, make_sequence(range(50, 59)))
    again = make_sequence([*range(8), *range(70, 82)])
    assert admit(kv, again)
    assert again.num_computed == 8
    assert states(kv) == (0, 0, 5)


def test_growth_is_all_or_nothing(make_kv, make_sequence):
    kv, a = make_kv(num_blocks=4), make_sequence(range(5))
    admit(kv, a)
    assert not kv.grow(a, 17)
    assert states(kv) == (2, 0, 2)
    assert kv.grow(a, 16)
    assert kv.grow(a, 3)
    assert len(a.block_table) == 4


def test_fork_shares_full_blocks_and_copies_the_partial_one(make_kv, make_sequence):
    kv, a = make_kv(), make_sequence(range(11))
    admit(kv, a)
    compute(kv, a)
    b = make_sequence(range(11))
    copies = kv.fork(a, b, num_tokens=10, reserve_tokens=11, headroom_blocks=0)
    kv.check_invariants()
    assert copies == (BlockCopy(a.block_table[2], b.block_table[2]),)
    assert b.block_table[:2] == a.block_table[:2]
    assert (b.num_computed, b.num_published) == (10, 2)
    assert states(kv) == (4, 0, 4)


def test_fork_at_a_block_edge_copies_nothing(make_kv, make_sequence):
    kv, a, b = make_kv(), make_sequence(range(9)), make_sequence(range(9))
    admit(kv, a)
    compute(kv, a)
    assert kv.fork(a, b, num_tokens=8, reserve_tokens=9, headroom_blocks=0) == ()
    kv.check_invariants()
    assert len(set(a.block_table) & set(b.block_table)) == 2


def test_fork_copies_a_block_that_the_source_has_filled_and_published(make_kv, make_sequence):
    kv, a, b = make_kv(), make_sequence(range(8)), make_sequence(range(8))
    admit(kv, a)
    compute(kv, a)
    assert kv.fork(a, b, num_tokens=7, reserve_tokens=8, headroom_blocks=0) is not None
    kv.check_invariants()
    assert b.block_table[1] != a.block_table[1]
    compute(kv, b)
    assert b.block_table == a.block_table, "equal in the end, and found to be"


def test_a_refused_fork_changes_nothing(make_kv, make_sequence):
    kv, a, b = make_kv(num_blocks=3), make_sequence(range(11)), make_sequence(range(11))
    admit(kv, a)
    compute(kv, a)
    assert kv.fork(a, b, num_tokens=10, reserve_tokens=11, headroom_blocks=0) is None
    kv.check_invariants()
    assert (b.block_table, states(kv)) == ((), (0, 0, 3))


@pytest.mark.parametrize(
    "other", [{"cache_salt": "b"}, {"adapter_id": "sha256:2"}, {"cache_salt": "sha256:1", "adapter_id": "a"}]
)
def test_namespaces_isolate(make_kv, make_sequence, other):
    own = {"cache_salt": "a", "adapter_id": "sha256:1"}
    kv = make_kv(num_blocks=20)
    run_through(kv, make_sequence(range(9), **own))
    hit, miss = make_sequence(range(9), **own), make_sequence(range(9), **{**own, **other})
    admit(kv, hit)
    admit(kv, miss)
    assert hit.num_computed == 8
    assert miss.num_computed == 0


def test_tokens_with_equal_hashes_do_not_match(make_kv, make_sequence):
    modulus = 2**61 - 1
    assert hash((5, 5 + modulus, 1, 2)) == hash((5 + modulus, 5, 1, 2)), "CPython hashes ints modulo 2**61 - 1"
    kv = make_kv()
    run_through(kv, make_sequence([5, 5 + modulus, 1, 2, 0]))
    for tokens in ([5 + modulus, 5, 1, 2, 0], [5, 5, 1, 2, 0], [5 + modulus, 5 + modulus, 1, 2, 0]):
        other = make_sequence(tokens)
        admit(kv, other)
        assert other.num_computed == 0
        release(kv, other)


def test_the_same_block_below_another_prefix_is_another_block(make_kv, make_sequence):
    kv = make_kv()
    run_through(kv, make_sequence([1, 1, 1, 1, 7, 7, 7, 7, 0]))
    other = make_sequence([2, 2, 2, 2, 7, 7, 7, 7, 0])
    admit(kv, other)
    assert other.num_computed == 0


def test_without_caching_nothing_is_kept(make_kv, make_sequence):
    kv = make_kv(caching=False)
    run_through(kv, make_sequence(range(12)))
    assert states(kv) == (8, 0, 0)
    again = make_sequence(range(12))
    admit(kv, again)
    assert again.num_computed == 0


def test_eviction_takes_leaves_before_their_prefix(make_kv, make_sequence):
    kv = make_kv(num_blocks=4)
    run_through(kv, make_sequence(range(13)))
    filler = make_sequence(range(80, 87))
    admit(kv, filler)
    release(kv, filler)
    again = make_sequence(range(13))
    admit(kv, again)
    assert again.num_computed == 8, "the third block went, the first two did not"


def surviving_prefix(kv, make_sequence, tokens):
    probe = make_sequence([*tokens, 0])
    admit(kv, probe, reserve_tokens=len(tokens) + 1)
    found = probe.num_computed
    release(kv, probe)
    return found


def test_lru_evicts_what_was_let_go_first(make_kv, make_sequence):
    kv = make_kv(num_blocks=4)
    for start in (10, 20, 30):
        run_through(kv, make_sequence(range(start, start + 4)))
    run_through(kv, make_sequence([*range(10, 14), 1]))
    filler = make_sequence(range(80, 88))
    admit(kv, filler)
    release(kv, filler)
    assert surviving_prefix(kv, make_sequence, range(10, 14)) == 4
    assert surviving_prefix(kv, make_sequence, range(20, 24)) == 0


def test_size_evicts_the_end_of_the_longest_prefix(make_kv, make_sequence):
    kv = make_kv(num_blocks=5, policy="size")
    run_through(kv, make_sequence(range(10, 14)))
    run_through(kv, make_sequence(range(20, 32)))
    filler = make_sequence(range(80, 88))
    admit(kv, filler)
    release(kv, filler)
    assert surviving_prefix(kv, make_sequence, range(10, 14)) == 4
    assert surviving_prefix(kv, make_sequence, range(20, 32)) == 8


def test_priority_evicts_what_only_unimportant_requests_used(make_kv, make_sequence):
    kv = make_kv(num_blocks=4, policy="priority")
    run_through(kv, make_sequence(range(10, 14), priority=0))
    run_through(kv, make_sequence(range(20, 24), priority=5))
    run_through(kv, make_sequence(range(30, 34), priority=9))
    run_through(kv, make_sequence([*range(30, 34), 1], priority=1))
    filler = make_sequence(range(80, 88))
    admit(kv, filler)
    release(kv, filler)
    assert surviving_prefix(kv, make_sequence, range(10, 14)) == 4
    assert surviving_prefix(kv, make_sequence, range(20, 24)) == 0
    assert surviving_prefix(kv, make_sequence, range(30, 34)) == 4


def test_reset_forgets_everything_cached(make_kv, make_sequence):
    kv = make_kv()
    run_through(kv, make_sequence(range(9)))
    running = make_sequence(range(50, 59))
    admit(kv, running)
    compute(kv, running)
    kv.reset_prefix_cache()
    kv.check_invariants()
    assert states(kv) == (5, 0, 3)
    running.token_ids += range(4)
    kv.grow(running, 13)
    compute(kv, running)
    release(kv, running)
    assert states(kv) == (8, 0, 0), "what was computed before the reset is not published after it"
    run_through(kv, make_sequence(range(50, 59)))
    assert kv.num_cached == 2


def test_a_fork_after_a_reset_publishes_nothing(make_kv, make_sequence):
    kv, a, b = make_kv(), make_sequence(range(11)), make_sequence(range(11))
    admit(kv, a)
    compute(kv, a)
    kv.reset_prefix_cache()
    kv.fork(a, b, num_tokens=10, reserve_tokens=11, headroom_blocks=0)
    compute(kv, b)
    release(kv, a)
    release(kv, b)
    assert states(kv) == (8, 0, 0)


def test_a_listener_hears_what_is_stored_and_removed(make_kv, make_sequence):
    heard = []
    kv = make_kv(num_blocks=3, listener=heard.append)
    a = make_sequence(range(9), cache_salt="s")
    admit(kv, a)
    compute(kv, a)
    table = a.block_table
    release(kv, a)
    admit(kv, make_sequence(range(80, 88)))
    kv.reset_prefix_cache()
    namespace = ("s", "", "float32")
    assert heard == [
        BlockStored(table[0], None, (0, 1, 2, 3), namespace),
        BlockStored(table[1], table[0], (4, 5, 6, 7), namespace),
        BlockRemoved(table[1]),
        CacheCleared(),
    ]


def test_what_listeners_hear_adds_up_to_the_index(lab):
    stored = set()

    def listen(event):
        if isinstance(event, BlockStored):
            assert event.parent_block_id is None or event.parent_block_id in stored
            stored.add(event.block_id)
        elif isinstance(event, BlockRemoved):
            stored.remove(event.block_id)
        else:
            stored.clear()

    rig = lab.rig(num_blocks=12)
    rig.scheduler = type(rig.scheduler)(rig.scheduler.config, kv_listener=listen)
    for number in range(30):
        rig.submit([number % 3] * 4 + list(range(number % 7)), max_tokens=9)
    rig.run()
    assert len(stored) == rig.scheduler.kv.num_cached > 0


@pytest.mark.parametrize("damage", ["reference", "free", "count", "table", "published", "capacity"])
def test_check_invariants_sees_damage(make_kv, make_sequence, damage):
    kv, a, b = make_kv(), make_sequence(range(9)), make_sequence(range(20, 29))
    admit(kv, a)
    compute(kv, a)
    run_through(kv, b)
    if damage == "reference":
        kv._pool.ref_counts[a.block_table[0]] += 1
    elif damage == "free":
        kv._pool._free.append(a.block_table[0])
    elif damage == "count":
        kv._num_cached += 1
    elif damage == "table":
        a.block_table = (*a.block_table[:2], a.block_table[0])
    elif damage == "published":
        a.token_ids[1] = 99
    else:
        a.capacity += 1
    with pytest.raises(InvariantViolated):
        kv.check_invariants()
