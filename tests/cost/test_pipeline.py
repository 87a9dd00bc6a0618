import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.cost.pipeline import (
    PassTimes,
    bubble_fraction,
    bubble_overhead,
    closed_form_bubble_s,
    in_flight_micro_batches,
    makespan_lower_bound_s,
    run_pipeline,
)
from argosy.cost.pipeline_schedules import Pass, PassKind, PipelineProgram, Schedule, part_placement, pipeline_program
from argosy.errors import ConfigError

EQUAL = PassTimes(1.0, 1.0, 1.0)
SCHEDULES = st.sampled_from(
    [
        (Schedule.GPIPE, 1),
        (Schedule.ONE_F_ONE_B, 1),
        (Schedule.INTERLEAVED, 2),
        (Schedule.INTERLEAVED, 3),
        (Schedule.ZB_H1, 1),
        (Schedule.ZB_V, 2),
    ]
)


def program(schedule: Schedule, stages: int, micro_batches: int, chunks: int = 1) -> PipelineProgram:
    return pipeline_program(schedule, stages=stages, micro_batches=micro_batches, chunks=chunks)


@pytest.mark.parametrize(
    ("stages", "micro_batches", "percent"), [pytest.param(4, 16, 15.8, id="p4 m16"), pytest.param(8, 32, 17.9, id="p8 m32")]
)
def test_bubble_share_of_the_step_as_worked_out(stages, micro_batches, percent):
    assert 100 * bubble_fraction(stages, micro_batches) == pytest.approx(percent, rel=0.005)
    run = run_pipeline(program(Schedule.ONE_F_ONE_B, stages, micro_batches), EQUAL)
    assert run.bubble_fraction == pytest.approx(bubble_fraction(stages, micro_batches))


def test_eight_stages_and_eight_micro_batches_take_1_875_times_the_ideal():
    run = run_pipeline(program(Schedule.ONE_F_ONE_B, 8, 8), PassTimes(1.0, 1.3, 0.7))
    assert run.makespan_s / run.ideal_s == pytest.approx(1.875)
    assert 1 + bubble_overhead(8, 8) == 1.875


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [
        (Schedule.GPIPE, 1),
        (Schedule.ONE_F_ONE_B, 1),
        (Schedule.INTERLEAVED, 1),
        (Schedule.INTERLEAVED, 2),
        (Schedule.INTERLEAVED, 4),
    ],
)
def test_closed_forms_of_unsplit_backward_hold_at_any_times(schedule, chunks, stages, rounds):
    times = PassTimes(1.0, 0.8, 1.7)
    run = run_pipeline(program(schedule, stages, rounds * stages, chunks), times)
    assert run.bubble_s == pytest.approx(closed_form_bubble_s(schedule, stages, times, chunks), abs=1e-9)
    assert run.bubble_fraction == pytest.approx(bubble_fraction(stages, rounds * stages, chunks), abs=1e-9)


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (1.0, 1.5, 0.5), (3.0, 1.0, 1.0), (1.0, 2.0, 0.0)])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_zb_h1_bubble_is_forward_plus_input_less_weight(stages, times):
    run = run_pipeline(program(Schedule.ZB_H1, stages, 3 * stages), PassTimes(*times))
    assert run.bubble_s == pytest.approx((stages - 1) * (times[0] + times[1] - times[2]))
    assert run.bubble_s == pytest.approx(closed_form_bubble_s(Schedule.ZB_H1, stages, PassTimes(*times)))


def test_zb_h1_leaves_a_third_of_the_bubble_of_1f1b_at_equal_times():
    plain = run_pipeline(program(Schedule.ONE_F_ONE_B, 8, 24), EQUAL)
    split = run_pipeline(program(Schedule.ZB_H1, 8, 24), EQUAL)
    assert split.bubble_s == pytest.approx(plain.bubble_s / 3)


@pytest.mark.parametrize("stages", [1, 2, 4, 6])
def test_zb_v_has_no_bubble_within_any_stage_at_equal_times(stages):
    run = run_pipeline(program(Schedule.ZB_V, stages, 3 * stages, 2), EQUAL)
    assert run.span_bubble_fraction == 0
    assert run.bubble_s == pytest.approx(closed_form_bubble_s(Schedule.ZB_V, stages, EQUAL, 2))
    assert set(run.peak_in_flight) == {float(stages)}


@settings(max_examples=60, deadline=None)
@given(SCHEDULES, st.integers(1, 6), st.integers(1, 4), st.integers(0, 3))
def test_activations_held_by_running_agree_with_the_closed_form(schedule, stages, rounds, extra):
    kind, chunks = schedule
    micro_batches = rounds * stages + (0 if kind is Schedule.INTERLEAVED else extra)
    run = run_pipeline(program(kind, stages, micro_batches, chunks), EQUAL)
    stated = [in_flight_micro_batches(kind, stage, stages, micro_batches, chunks) for stage in range(stages)]
    if kind is Schedule.ZB_V and micro_batches < 2 * stages - 1:  # too few to fill the V: an upper bound
        assert all(held <= most for held, most in zip(run.peak_in_flight, stated, strict=True))
    else:
        assert run.peak_in_flight == pytest.approx(stated)


def test_interleaving_costs_the_first_stage_the_published_factor():
    stages, chunks = 4, 2
    held = in_flight_micro_batches(Schedule.INTERLEAVED, 0, stages, 16, chunks)
    assert held == pytest.approx(stages * (1 + (stages - 1) / (stages * chunks)))


@settings(max_examples=60, deadline=None)
@given(
    SCHEDULES,
    st.integers(1, 5),
    st.integers(1, 3),
    st.floats(0.1, 3),
    st.floats(0, 3),
    st.floats(0, 3),
    st.floats(0, 1),
)
def test_every_pass_runs_once_after_what_it_needs_and_alone_on_its_stage(schedule, stages, rounds, f, b, w, transfer):
    kind, chunks = schedule
    plan = program(kind, stages, rounds * stages, chunks)
    times = PassTimes(f, b, w, transfer)
    run = run_pipeline(plan, times)
    parts = {(s, c): part for part, (s, c) in enumerate(zip(plan.placement, plan.chunk_of_part, strict=True))}
    ended = {(e.work.kind, e.work.micro_batch, parts[e.stage, e.work.chunk]): e for e in run.timeline}
    split = kind in (Schedule.ZB_H1, Schedule.ZB_V)
    assert len(ended) == len(run.timeline) == rounds * stages * stages * chunks * (3 if split else 2)
    back = PassKind.BACKWARD_INPUT if split else PassKind.BACKWARD
    last = stages * chunks - 1
    for (what, micro_batch, part), entry in ended.items():
        if what is PassKind.FORWARD and part:
            needed = ended[what, micro_batch, part - 1]
        elif what is back:
            needed = ended[(PassKind.FORWARD, micro_batch, part) if part == last else (back, micro_batch, part + 1)]
        elif what is PassKind.BACKWARD_WEIGHT:
            needed = ended[back, micro_batch, part]
        else:
            continue
        wait = transfer if needed.stage != entry.stage else 0.0
        assert entry.start_s >= needed.end_s + wait - 1e-9
    for stage in range(stages):
        mine = sorted((e.start_s, e.end_s) for e in run.timeline if e.stage == stage)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(mine))
    bound_s = makespan_lower_bound_s(kind, stages=stages, micro_batches=rounds * stages, times=times, chunks=chunks)
    assert run.makespan_s >= bound_s - 1e-9
    assert bound_s >= run.ideal_s - 1e-9


def test_lower_bound_is_exact_where_a_closed_form_is():
    for schedule, chunks in ((Schedule.GPIPE, 1), (Schedule.ONE_F_ONE_B, 1), (Schedule.INTERLEAVED, 2), (Schedule.ZB_V, 2)):
        bound_s = makespan_lower_bound_s(schedule, stages=4, micro_batches=8, times=EQUAL, chunks=chunks)
        assert bound_s == pytest.approx(run_pipeline(program(schedule, 4, 8, chunks), EQUAL).makespan_s)


def test_slow_transfers_only_ever_lengthen_the_step():
    lengths = [run_pipeline(program(Schedule.ONE_F_ONE_B, 4, 8), PassTimes(1, 1, 1, t)).makespan_s for t in (0, 0.1, 0.5, 2)]
    assert lengths == sorted(lengths)
    assert lengths[1] > lengths[0]


def test_a_program_that_waits_for_itself_is_refused_naming_the_passes():
    backward_first = (Pass(PassKind.BACKWARD, 0, 0), Pass(PassKind.FORWARD, 0, 0))
    stuck = PipelineProgram(Schedule.ONE_F_ONE_B, 1, 1, (backward_first,), (0,), (0,))
    with pytest.raises(ConfigError, match="stage 0: Pass"):
        run_pipeline(stuck, EQUAL)


def test_the_v_goes_down_the_stages_and_comes_back():
    assert part_placement(Schedule.ZB_V, stages=3, chunks=2) == (0, 1, 2, 2, 1, 0)
    assert part_placement(Schedule.INTERLEAVED, stages=2, chunks=2) == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: program(Schedule.INTERLEAVED, 4, 6, 2), "micro_batches"),
        (lambda: program(Schedule.ZB_V, 4, 8, 1), "2 chunks"),
        (lambda: program(Schedule.GPIPE, 4, 8, 2), "chunks=2"),
        (lambda: program(Schedule.GPIPE, 0, 8), "stages"),
        (lambda: program(Schedule.GPIPE, 4, 0), "micro_batches"),
        (lambda: program(Schedule.GPIPE, 4, float("nan")), "micro_batches"),
        (lambda: PassTimes(0, 1, 1), "forward_s"),
        (lambda: PassTimes(1, -1, 1), "backward_input_s"),
        (lambda: PassTimes(1, 1, float("nan")), "backward_weight_s"),
        (lambda: PassTimes(1, 1, 1, float("inf")), "transfer_s"),
        (lambda: bubble_fraction(-1, 8), "stages"),
        (lambda: bubble_overhead(4, 8, 0), "chunks"),
        (lambda: in_flight_micro_batches(Schedule.GPIPE, 4, 4, 8), "stage 4"),
        (lambda: closed_form_bubble_s(Schedule.ZB_H1, 4, PassTimes(1, 1, 2)), "backward_weight_s"),
        (lambda: closed_form_bubble_s(Schedule.ZB_V, 4, PassTimes(1, 1, 2), 2), "equal times"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
