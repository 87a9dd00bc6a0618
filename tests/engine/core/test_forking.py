"""n > 1: the prompt is computed once, its blocks are shared, the partial one is copied."""

import pytest


def tokens_computed(rig):
    return sum(p.num_tokens for p in rig.plans)


@pytest.mark.parametrize("num_prompt", [1, 2, 4, 5, 8, 9, 10, 17])
@pytest.mark.parametrize("caching", [True, False])
def test_siblings_compute_one_token_of_the_prompt(lab, num_prompt, caching):
    rig = lab.rig(enable_prefix_caching=caching)
    rig.submit(range(num_prompt), request_id="a", n=4, max_tokens=6)
    rig.run()
    rig.assert_idle()
    assert tokens_computed(rig) == num_prompt + 3 + 4 * 5
    assert len({tuple(rig.output("a", index)) for index in range(4)}) > 1, "the samples differ"
    copies = [copy for p in rig.plans for copy in p.copies]
    assert len(copies) == (3 if (num_prompt - 1) % 4 else 0)
    assert len({copy.destination for copy in copies}) == len(copies)


def test_full_blocks_of_the_prompt_are_held_once(lab):
    rig = lab.rig()
    rig.submit(range(18), n=4, max_tokens=2)
    rig.step()
    plan = rig.schedule()
    tables = [s.block_table for s in plan.sequences]
    assert len(tables) == 4
    assert len({table[:4] for table in tables}) == 1
    assert len({table[4] for table in tables}) == 4
    assert rig.scheduler.kv.num_held == 8


def test_siblings_wait_for_the_last_chunk_of_the_prompt(lab):
    rig = lab.rig(max_num_batched_tokens=8)
    rig.submit(range(20), n=3, max_tokens=4)
    for _ in range(2):
        rig.step()
        assert (rig.scheduler.num_running, rig.scheduler.num_waiting) == (1, 2)
    rig.step()
    assert len(rig.schedule().sequences) == 3


def test_parked_siblings_block_nobody(lab):
    rig = lab.rig(max_num_batched_tokens=8, max_num_seqs=4)
    rig.submit(range(12), n=3, max_tokens=4)
    rig.submit((1, 2), request_id="other", max_tokens=4)
    rig.step()
    assert [s.sequence_id for s in rig.plans[0].sequences] == [0]
    rig.step()
    assert {s.sequence_id for s in rig.plans[1].sequences} == {0, 3}


def test_siblings_beyond_max_num_seqs_wait_and_end(lab):
    rig = lab.rig(max_num_seqs=2)
    rig.submit(range(9), request_id="a", n=5, max_tokens=3)
    rig.run()
    rig.assert_idle()
    assert len(rig.endings) == 5


@pytest.mark.parametrize("max_num_seqs", [1, 8])
def test_siblings_of_a_sequence_that_ended_first_match_its_prefix(lab, max_num_seqs):
    rig = lab.rig(max_num_seqs=max_num_seqs)
    rig.submit(range(17), n=4, max_tokens=1)
    rig.run()
    rig.assert_idle()
    assert tokens_computed(rig) == 17 + 3 * 1, "16 tokens of each sibling's prompt are cached"


def test_siblings_go_on_when_the_first_sequence_fails_before_the_fork(lab):
    rig = lab.rig(max_num_batched_tokens=8)
    sequences = rig.submit(range(20), request_id="a", n=3, max_tokens=4)
    rig.executor.fail.add(sequences[0].sequence_id)
    rig.run()
    rig.assert_idle()
    assert rig.endings["a", 0][0] == "error"
    assert [rig.endings["a", i] for i in (1, 2)] == [("length", "max_tokens")] * 2
    assert tokens_computed(rig) < 3 * 20, "the second sequence computes the prompt, the third forks"


def test_siblings_go_on_when_the_first_sequence_is_finished_from_outside(lab):
    from argosy.engine.core.request import FinishReason

    rig = lab.rig(max_num_batched_tokens=8)
    sequences = rig.submit(range(20), request_id="a", n=3, max_tokens=4)
    rig.step()
    rig.scheduler.finish(sequences[0].sequence_id, FinishReason.STOP, "x")
    rig.verify()
    rig.run()
    rig.assert_idle()
    assert set(rig.endings) == {("a", 1), ("a", 2)}


def test_siblings_go_on_when_the_first_sequence_is_preempted(lab):
    rig = lab.rig(num_blocks=9, max_num_batched_tokens=4, max_num_seqs=4)
    rig.submit((1, 2, 3), request_id="old", max_tokens=20)
    rig.step()
    rig.submit(range(50, 76), request_id="a", n=3, max_tokens=3)
    rig.run()
    rig.assert_idle()
    assert rig.sequences[1].preemptions > 0
    assert len(rig.endings) == 4


def test_forks_of_a_protected_sequence_do_not_take_its_blocks(lab):
    rig = lab.rig(num_blocks=8, max_preemptions=0)
    rig.submit(range(6), request_id="a", n=3, max_tokens=10)
    rig.run()
    rig.assert_idle()
    assert rig.scheduler.num_preemptions == 0
    assert len(rig.endings) == 3


def test_forks_are_not_counted_as_prefix_queries(lab):
    rig = lab.rig()
    rig.submit(range(9), n=4, max_tokens=3)
    rig.run()
    assert (rig.scheduler.prefix_queries_tokens, rig.scheduler.prefix_hits_tokens) == (9, 0)
