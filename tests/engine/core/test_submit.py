"""What is refused, and what is counted."""

import pytest

from argosy.errors import ContextLengthExceeded, InvalidRequest, QueueFull


def test_an_empty_prompt_is_refused_and_the_next_one_served(lab):
    rig = lab.rig()
    with pytest.raises(InvalidRequest) as refused:
        rig.submit(())
    assert refused.value.param == "prompt"
    rig.submit((1,), request_id="ok", max_tokens=2)
    rig.run()
    assert len(rig.output("ok")) == 2


@pytest.mark.parametrize("excess", [0, 1])
def test_a_prompt_that_fills_the_context_is_refused(lab, excess):
    rig = lab.rig(max_model_len=32)
    with pytest.raises(ContextLengthExceeded, match="context takes at most 31"):
        rig.submit(range(32 + excess))
    rig.assert_idle()


def test_a_prompt_one_below_the_context_gets_one_token(lab):
    rig = lab.rig(max_model_len=32)
    rig.submit(range(31), request_id="a")
    rig.run()
    assert len(rig.output("a")) == 1
    assert rig.endings["a", 0] == ("length", "max_model_len")


def test_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody(lab):
    rig = lab.rig(num_blocks=4, block_size=16, max_model_len=128)
    with pytest.raises(ContextLengthExceeded, match="KV pool takes at most 63"):
        rig.submit(range(100))
    rig.submit(range(5), request_id="ok", max_tokens=3)
    rig.run()
    assert len(rig.output("ok")) == 3


def test_a_prompt_one_below_the_pool_gets_one_token(lab):
    rig = lab.rig(num_blocks=4, block_size=16, max_model_len=128, watermark=0.5)
    rig.submit(range(63), request_id="a", max_tokens=7)
    rig.run()
    assert (len(rig.output("a")), rig.endings["a", 0]) == (1, ("length", "kv_pool"))


def test_the_queue_limit_counts_requests_not_sequences(lab):
    rig = lab.rig(max_waiting=2)
    rig.submit((1, 2), n=8, max_tokens=2)
    rig.submit((1, 2), max_tokens=2)
    with pytest.raises(QueueFull):
        rig.submit((1, 2), max_tokens=2)
    assert rig.scheduler.num_waiting == 9
    rig.run()
    rig.assert_idle()


def test_the_queue_has_room_again_once_a_request_runs(lab):
    rig = lab.rig(max_waiting=1)
    rig.submit((1, 2), max_tokens=5)
    rig.step()
    rig.submit((3, 4), max_tokens=5)
    with pytest.raises(QueueFull):
        rig.submit((5, 6), max_tokens=5)


def test_an_id_in_use_is_refused_and_free_again_afterwards(lab):
    rig = lab.rig()
    rig.submit((1, 2), request_id="a", max_tokens=2)
    with pytest.raises(InvalidRequest, match="'a' is being served"):
        rig.submit((1, 2), request_id="a")
    rig.run()
    rig.scheduler.submit(rig.sequences[0].request)


def test_sequence_ids_are_never_reused(lab):
    rig = lab.rig()
    first = {s.sequence_id for s in rig.submit((1,), n=3, max_tokens=1)}
    rig.run()
    assert not first & {s.sequence_id for s in rig.submit((1,), n=3, max_tokens=1)}


def test_a_sequence_is_introduced_once_and_forgotten_once(lab):
    rig = lab.rig(num_blocks=8, max_num_batched_tokens=8)
    for number in range(6):
        rig.submit(range(number, number + 9), max_tokens=14, n=1 + number % 2)
    rig.run()
    rig.submit((1,), max_tokens=1)
    rig.run()
    introduced = [new.sequence_id for plan in rig.plans for new in plan.new]
    forgotten = [i for plan in rig.plans for i in plan.finished]
    assert rig.scheduler.num_preemptions > 0
    assert sorted(introduced) == sorted(set(introduced)) == sorted(rig.sequences)
    assert sorted(forgotten) == sorted(set(rig.sequences) - {max(rig.sequences)})


def test_the_executor_is_told_what_to_mask(lab):
    rig = lab.rig()
    rig.submit((1, 2), max_tokens=4, min_tokens=2, stop_token_ids=(9, 4), eos_token_ids=frozenset({7}))
    rig.submit((1, 2), max_tokens=4, stop_token_ids=(9,), eos_token_ids=frozenset({7}), ignore_eos=True)
    assert [new.stop_ids for new in rig.schedule().new] == [(4, 7, 9), (9,)]
