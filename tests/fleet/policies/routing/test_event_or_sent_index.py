from hypothesis import given
from hypothesis import strategies as st

from argosy.fleet.policies.routing.event_or_sent_index import EventOrSentIndex
from argosy.fleet.policies.routing.kv_event_index import KvEventIndex
from argosy.fleet.policies.routing.prefix_index import ApproximatePrefixIndex
from argosy.fleet.policies.routing.request import RoutingRequest, chain_root, token_block_hashes

TOKENS = tuple(range(8))
BLOCKS = token_block_hashes(TOKENS, 4, chain_root(""))
WRITTEN = (901, 902, 903)
ASKED = RoutingRequest(
    "r", prompt_tokens=8, prefix_blocks=BLOCKS, prefix_block_tokens=4, sent_blocks=WRITTEN, sent_block_tokens=64
)
WITHOUT_TOKENS = RoutingRequest("r", prompt_tokens=8, prefix_block_tokens=4, sent_blocks=WRITTEN, sent_block_tokens=64)


def index() -> EventOrSentIndex:
    return EventOrSentIndex(KvEventIndex(block_tokens=4), ApproximatePrefixIndex())


def test_events_are_believed_over_what_was_sent_and_only_of_who_has_them():
    made = index()
    made.record(ASKED, "a", 0.0)
    made.record(ASKED, "b", 0.0)
    assert made.match(ASKED, 1.0) == {"a": 192, "b": 192}
    made.set_told("a", told=True)
    assert made.match(ASKED, 1.0) == {"b": 192}, "a's events name nothing"
    made.events.stored("a", 1, None, TOKENS[:4])
    made.events.stored("b", 1, None, TOKENS[:4])
    assert made.match(ASKED, 1.0) == {"a": 4, "b": 192}
    made.set_told("a", told=False)
    assert made.match(ASKED, 1.0) == {"a": 192, "b": 192}


def test_without_tokens_only_what_was_sent_is_known():
    made = index()
    made.set_told("a", told=True)
    made.events.stored("a", 1, None, TOKENS[:4])
    assert made.match(WITHOUT_TOKENS, 0.0) == {}
    made.record(WITHOUT_TOKENS, "a", 0.0)
    assert made.match(WITHOUT_TOKENS, 1.0) == {"a": 192}
    assert made.match(ASKED, 1.0) == {"a": 4}
    assert (made.num_by_events, made.num_by_sent) == (1, 2)


def test_who_is_forgotten_is_told_of_and_known_by_neither():
    forgotten = []
    made = index()
    made.on_forget = forgotten.append
    made.set_told("a", told=True)
    made.events.stored("a", 1, None, TOKENS[:4])
    made.record(ASKED, "a", 0.0)
    made.forget("a")
    assert made.match(ASKED, 1.0) == {}
    assert not made.is_told("a")
    assert made.events.num_blocks == made.sent.num_blocks == 0
    assert forgotten == ["a"]
    made.set_told("a", told=True)
    assert made.match(ASKED, 1.0) == {}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["told", "lost", "store", "sent", "forget"])), max_size=30))
def test_a_replica_with_events_has_what_they_say_and_nothing_else(steps):
    made = index()
    for name, what in steps:
        if what in ("told", "lost"):
            made.set_told(name, told=what == "told")
        elif what == "store":
            made.events.stored(name, 1, None, TOKENS[:4])
        elif what == "sent":
            made.record(ASKED, name, 0.0)
        else:
            made.forget(name)
        matched = made.match(ASKED, 0.0)
        for replica_id in "ab":
            by_events = made.events.match(ASKED, 0.0).get(replica_id, 0)
            if made.is_told(replica_id):
                assert matched.get(replica_id, 0) == by_events
            else:
                assert matched.get(replica_id, 0) in (0, 192)
