"""Abort in every state: nothing is left, and others notice nothing."""

import pytest

from argosy.engine.core.request import FinishReason


def queued(rig):
    rig.submit(range(20), request_id="x", max_tokens=9)


def behind_a_full_engine(rig):
    for number in range(8):
        rig.submit((number,), max_tokens=3)
    rig.step()
    rig.submit(range(20), request_id="x", max_tokens=9)
    rig.step()
    assert rig.scheduler.num_waiting == 1


def in_the_second_chunk(rig):
    rig.submit(range(100, 150), request_id="x", max_tokens=9)
    rig.step()
    rig.step()
    assert not rig.output("x")


def decoding(rig):
    rig.submit(range(10), request_id="x", max_tokens=9)
    for _ in range(4):
        rig.step()
    assert rig.output("x")


def preempted(rig):
    rig.submit((1, 2), request_id="old", max_tokens=60)
    rig.submit((3, 4), request_id="x", max_tokens=60)
    while rig.scheduler.num_preemptions == 0:
        rig.step()
    assert rig.scheduler.num_waiting == 1


def siblings_parked(rig):
    rig.submit(range(100, 150), request_id="x", max_tokens=9, n=3)
    rig.step()


def siblings_forked(rig):
    rig.submit(range(10), request_id="x", max_tokens=9, n=3)
    for _ in range(3):
        rig.step()
    assert rig.output("x", 2)


def siblings_queued(rig):
    rig.submit(range(10), request_id="x", max_tokens=9, n=12)
    for _ in range(3):
        rig.step()
    assert rig.scheduler.num_waiting == 4


STATES = [
    queued,
    behind_a_full_engine,
    in_the_second_chunk,
    decoding,
    preempted,
    siblings_parked,
    siblings_forked,
    siblings_queued,
]


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("reach", STATES)
def test_abort_leaves_nothing(lab, reach, in_flight):
    rig = lab.rig(num_blocks=20, max_num_batched_tokens=16)
    reach(rig)
    n = sum(key[0] == "x" for key in rig.tokens)
    plan = rig.schedule() if in_flight else None
    held = rig.scheduler.kv.num_held
    events = rig.abort("x")
    assert [e.finish_reason for e in events] == [FinishReason.ABORT] * n
    assert rig.abort("x") == []
    if plan is not None:
        assert rig.scheduler.kv.num_held == held, "blocks of a plan in flight stay until it is over"
        assert all(event.request_id != "x" for event in rig.commit(plan))
    rig.run()
    rig.assert_idle()
    assert all(ending == ("length", "max_tokens") for key, ending in rig.endings.items() if key[0] != "x")
    rig.submit((1,), max_tokens=1)
    rig.run()
    assert set(rig.executor.known) <= {max(rig.sequences)}, "the executor was told of every ending"


def test_abort_of_an_unknown_request_does_nothing(lab):
    assert lab.rig().abort("nobody") == []


def test_abort_after_the_end_does_nothing(lab):
    rig = lab.rig()
    rig.submit((1, 2), request_id="x", max_tokens=2)
    rig.run()
    assert rig.abort("x") == []


def test_finish_is_idempotent_and_frees_at_once(lab):
    rig = lab.rig()
    (sequence,) = rig.submit(range(6), request_id="x", max_tokens=9)
    rig.step()
    for _ in range(2):
        rig.scheduler.finish(sequence.sequence_id, FinishReason.STOP, "word")
        rig.verify()
    rig.assert_idle()
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, "word")
    assert rig.schedule() is None


def test_finish_does_not_overwrite_an_ending(lab):
    rig = lab.rig()
    (sequence,) = rig.submit((1, 2), max_tokens=1)
    rig.run()
    rig.scheduler.finish(sequence.sequence_id, FinishReason.STOP, "word")
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.LENGTH, "max_tokens")


def test_what_an_aborted_sequence_computed_in_flight_is_not_published(lab):
    rig = lab.rig()
    rig.submit(range(12), request_id="x", max_tokens=4)
    plan = rig.schedule()
    rig.abort("x")
    rig.commit(plan)
    assert rig.scheduler.kv.num_cached == 0
