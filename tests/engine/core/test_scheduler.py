"""Budget, shares, order of admission, and progress."""

from hypothesis import given, settings
from hypothesis import strategies as st


def lengths(plan):
    return {s.sequence_id: len(s.token_ids) for s in plan.sequences}


def test_nothing_to_do_gives_no_plan(lab):
    assert lab.rig().schedule() is None


def test_a_long_prompt_is_computed_in_chunks_of_the_budget(lab):
    rig = lab.rig(max_num_batched_tokens=10)
    rig.submit(range(25), max_tokens=1)
    rig.run()
    assert [p.num_tokens for p in rig.plans] == [10, 10, 5]
    assert [s.sample for p in rig.plans for s in p.sequences] == [False, False, True]
    assert [p.num_prefill_tokens for p in rig.plans] == [10, 10, 5]


def test_decoding_goes_first_and_prefill_gets_its_share(lab):
    rig = lab.rig(max_num_batched_tokens=20, prefill_share=0.4)
    rig.submit((1, 2, 3), max_tokens=20)
    rig.step()
    rig.submit(range(100, 160), max_tokens=1)
    plan = rig.schedule()
    assert lengths(plan) == {0: 1, 1: 8}
    assert (plan.num_tokens, plan.num_prefill_tokens) == (9, 8)
    assert plan.sequences[0].sequence_id == 0


def test_the_share_is_of_all_prefill_in_the_step(lab):
    rig = lab.rig(max_num_batched_tokens=20, prefill_share=0.4)
    rig.submit((1, 2, 3), max_tokens=20)
    rig.step()
    for start in (100, 200, 300):
        rig.submit(range(start, start + 5), max_tokens=1)
    assert lengths(rig.schedule()) == {0: 1, 1: 5, 2: 3}


def test_prefill_takes_the_whole_budget_when_nothing_decodes(lab):
    rig = lab.rig(max_num_batched_tokens=20, prefill_share=0.1)
    rig.submit(range(60), max_tokens=1)
    assert rig.schedule().num_tokens == 20


def test_a_stream_gets_a_token_every_step_beside_a_very_long_prompt(lab):
    rig = lab.rig(num_blocks=300, block_size=16, max_model_len=4600, max_num_batched_tokens=64, prefill_share=0.5)
    rig.check = False
    rig.submit((1, 2, 3), request_id="stream", max_tokens=120)
    rig.step()
    rig.submit(range(3000), request_id="long", max_tokens=1)
    while ("stream", 0) not in rig.endings:
        before = len(rig.output("stream"))
        rig.step()
        assert len(rig.output("stream")) == before + 1
    assert ("long", 0) in rig.endings, "the long prompt advances at the same time"


def test_prefill_gets_at_least_one_token_beside_many_that_decode(lab):
    rig = lab.rig(max_num_batched_tokens=4, max_num_seqs=4, prefill_share=0.01)
    for number in range(3):
        rig.submit((number,), max_tokens=30)
    rig.step()
    rig.submit(range(10, 14), request_id="late", max_tokens=1)
    for _ in range(4):
        rig.step()
    assert ("late", 0) in rig.endings


def test_chunks_end_at_multiples_of_the_alignment(lab):
    rig = lab.rig(max_num_batched_tokens=30, chunk_alignment=8, prefill_share=0.1)
    rig.submit((1, 2, 3), max_tokens=40)
    rig.submit(range(100, 145), max_tokens=2)
    rig.submit(range(200, 243), max_tokens=2)
    rig.run()
    ends = [(s.start + len(s.token_ids), s) for p in rig.plans for s in p.sequences if not s.sample]
    assert ends
    assert all(end % 8 == 0 for end, _ in ends)


def test_alignment_above_the_prefill_share_does_not_stall(lab):
    rig = lab.rig(max_num_batched_tokens=16, chunk_alignment=8, prefill_share=0.1)
    rig.submit((1, 2, 3), request_id="stream", max_tokens=12)
    rig.step()
    rig.submit(range(100, 130), request_id="late", max_tokens=1)
    while ("late", 0) not in rig.endings:
        rig.step()
    assert ("stream", 0) not in rig.endings


def test_admission_looks_at_the_whole_prompt_not_at_its_first_chunk(lab):
    rig = lab.rig(num_blocks=10, max_num_batched_tokens=4, max_num_seqs=4)
    rig.submit(range(24), max_tokens=16)
    for _ in range(7):
        rig.step()
    rig.submit(range(100, 120), request_id="b", max_tokens=4)
    rig.step()
    assert (rig.scheduler.num_running, rig.scheduler.num_waiting) == (1, 1)
    rig.run()
    assert rig.scheduler.num_preemptions == 0


def test_the_watermark_stays_free_at_admission(lab):
    rig = lab.rig(num_blocks=10, watermark=0.2)
    rig.submit(range(16), max_tokens=4)
    rig.submit(range(100, 117), max_tokens=4)
    rig.step()
    assert rig.scheduler.num_running == 1, "4 + 5 blocks would leave 1 of 10"
    rig.submit(range(200, 204), max_tokens=4)
    rig.run()


def test_an_empty_engine_ignores_the_watermark(lab):
    rig = lab.rig(num_blocks=10, watermark=0.5)
    rig.submit(range(36), max_tokens=2)
    assert rig.schedule() is not None


def test_a_small_request_does_not_overtake_the_head_of_the_queue(lab):
    rig = lab.rig(num_blocks=8)
    rig.submit(range(20), max_tokens=8)
    rig.step()
    rig.submit(range(100, 120), request_id="large", max_tokens=2)
    rig.submit((1,), request_id="small", max_tokens=2)
    rig.step()
    assert rig.scheduler.num_waiting == 2
    rig.run()
    assert list(rig.endings) == [("r0", 0), ("large", 0), ("small", 0)]


def test_the_head_of_the_queue_is_admitted_once_blocks_are_free_beside_others(lab):
    rig = lab.rig(num_blocks=10, enable_prefix_caching=False)
    rig.submit(range(4), request_id="long", max_tokens=12)
    rig.submit(range(20), request_id="short", max_tokens=3)
    rig.step()
    rig.submit(range(100, 120), request_id="head", max_tokens=2)
    rig.step()
    assert rig.scheduler.num_waiting == 1
    rig.run()
    assert list(rig.endings) == [("short", 0), ("head", 0), ("long", 0)]


def test_first_come_first_served_ignores_priority(lab):
    rig = lab.rig(max_num_seqs=1)
    for number, priority in enumerate((2, 1, 0)):
        rig.submit((1, 2), request_id=str(number), priority=priority, max_tokens=1)
    rig.run()
    assert [key[0] for key in rig.endings] == ["0", "1", "2"]


def test_priority_goes_first_then_arrival(lab):
    rig = lab.rig(max_num_seqs=1, scheduling_policy="priority")
    for name, priority, arrival_s in (("d", 2, 0.0), ("c", 1, 5.0), ("b", 1, 4.0), ("a", -3, 9.0)):
        rig.submit((1, 2), request_id=name, priority=priority, arrival_s=arrival_s, max_tokens=1)
    rig.run()
    assert [key[0] for key in rig.endings] == ["a", "b", "c", "d"]


def test_no_more_sequences_run_than_may(lab):
    rig = lab.rig(max_num_seqs=3)
    for number in range(9):
        rig.submit((number,), max_tokens=5)
    rig.run()
    assert max(len(p.sequences) for p in rig.plans) == 3


def test_every_slot_is_free_again_at_the_end_of_the_step_that_ends_a_sequence(lab):
    rig = lab.rig(max_num_seqs=2)
    for number in range(3):
        rig.submit((number,), request_id=str(number), max_tokens=1)
    rig.step()
    assert rig.scheduler.num_running == 0
    rig.step()
    assert len(rig.endings) == 3


def test_times_are_those_of_first_scheduling_and_first_token(lab):
    rig = lab.rig(max_num_batched_tokens=8)
    (sequence,) = rig.submit(range(12), max_tokens=3)
    rig.clock.advance(5.0)
    rig.run()
    assert sequence.first_scheduled_s == 5.0
    assert abs(sequence.first_token_s - 5.02) < 1e-9


def test_runs_of_several_tokens_are_caught_up_within_the_budget(lab):
    executor = lab.FakeExecutor(4, max_run=6)
    rig = lab.rig(executor, max_num_seqs=8, max_num_batched_tokens=8)
    for number in range(8):
        rig.submit((number,), max_tokens=24)
    rig.run()
    assert max(p.num_tokens for p in rig.plans) <= 8


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 12),
    st.integers(1, 8),
    st.integers(0, 3),
    st.floats(0.0, 0.9),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60), st.integers(1, 3)), min_size=1, max_size=12),
)
def test_every_request_ends(lab, num_blocks, max_num_seqs, max_preemptions, watermark, requests):
    rig = lab.rig(
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + 3,
        max_preemptions=max_preemptions,
        watermark=watermark,
    )
    limit = rig.scheduler.config.effective_max_len
    for length, max_tokens, n in requests:
        rig.submit(range(min(length, limit - 1)), max_tokens=max_tokens, n=n)
    num_sequences = len(rig.sequences)
    rig.run()
    rig.assert_idle()
    assert len(rig.endings) == num_sequences
    assert all(s.preemptions <= max_preemptions for s in rig.sequences.values())
