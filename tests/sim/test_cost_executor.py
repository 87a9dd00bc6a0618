"""What the executor answers: tokens from the trace, seconds from the cost model or a recording."""

from __future__ import annotations

import pytest

from argosy.engine.core.coasting import Foresight
from argosy.engine.core.plan import Coasting, ScheduledSequence, StepPlan
from argosy.errors import ConfigError, SimulationError
from argosy.sim.cost_executor import CostExecutor, CostTimer, RecordedStep, Recording
from argosy.sim.speculation import SpeculationProcess
from argosy.sim.step_pricer import StepPricer


def entry(sequence_id: int, new: int, start: int, *, samples: bool = True, num_output: int = 0) -> ScheduledSequence:
    return ScheduledSequence(sequence_id, (0,) * new, start, (), samples, num_output, "", -1)


def plan_of(*entries: ScheduledSequence, coasting: Coasting | None = None) -> StepPlan:
    fields = {} if coasting is None else {"coasting": coasting}
    return StepPlan(1, (), (), (), entries, sum(len(e.token_ids) for e in entries), 0, **fields)


@pytest.fixture(scope="module")
def windows(sim):
    return StepPricer(sim.model("gpt-oss-120b", tensor=2))


def executor_of(sim, pricer: StepPricer, speculation: SpeculationProcess | None = None) -> CostExecutor:
    executor = CostExecutor(CostTimer(pricer, speculation), num_blocks=10, vocab_size=500)
    for sequence_id in range(9):
        executor.expect(sequence_id, sim.request(f"r{sequence_id}", output=12).answer_token_ids(500))
    return executor


def test_tokens_are_those_of_the_answer_at_that_place(sim, windows):
    executor = executor_of(sim, windows)
    answer = sim.request("r3", output=12).answer_token_ids(500)
    result = executor.execute(plan_of(entry(3, 1, 40, num_output=7), entry(4, 30, 0, samples=False)))
    assert [r.token_ids for r in result.results] == [(answer[7],), ()]
    assert tuple(executor.output_ids(3, 2, 5)) == answer[2:5]
    assert executor.num_certain(3, 7) == 5


def test_seconds_are_those_of_the_composition(sim, windows):
    model = windows.model
    plan = plan_of(entry(0, 1, 700, num_output=3), entry(1, 1, 700, num_output=3), entry(2, 256, 128, samples=False))
    expected = model.times([[2.0], [1.0]], [[1.0], [256.0]], [[700.0], [128.0]], 2.0).latency_s[0]
    assert executor_of(sim, windows).execute(plan).duration_s == pytest.approx(expected, rel=1e-9)


def test_who_coasts_costs_what_it_would_cost_listed(sim, windows):
    contexts = [50, 127, 128, 129, 4000]
    listed = plan_of(*[entry(i, 1, context, num_output=1) for i, context in enumerate(contexts)])
    apart = plan_of(
        entry(0, 1, 50, num_output=1), coasting=Coasting(4, sum(contexts[1:]), (sum(min(c + 1, 128) for c in contexts[1:]),))
    )
    executor = executor_of(sim, windows)
    assert executor.context_limits == (128,)
    assert executor.execute(apart).duration_s == executor.execute(listed).duration_s


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_foreseen_seconds_are_those_of_the_steps(sim, windows, steps):
    executor, contexts = executor_of(sim, windows), [100, 120, 700]
    foreseen = executor.foreseen_s(Foresight(steps, 3, sum(contexts), tuple(contexts)))
    assert foreseen == [
        executor.execute(plan_of(*[entry(i, 1, c + step, num_output=1) for i, c in enumerate(contexts)])).duration_s
        for step in range(steps)
    ]


def test_transferred_tokens_take_no_time(sim, windows):
    executor = executor_of(sim, windows)
    executor.expect(20, (1,) * 20, transferred_tokens=299)
    whole = executor.execute(plan_of(entry(1, 300, 0))).duration_s
    moved = executor.execute(plan_of(entry(20, 300, 0))).duration_s
    assert moved == executor.execute(plan_of(entry(1, 1, 299))).duration_s
    assert moved < whole / 2
    assert executor.execute(plan_of(entry(20, 200, 0, samples=False))).duration_s == windows.model.constants.step_s


def test_speculation_verifies_and_drafts_and_gives_runs(sim, windows):
    draft = StepPricer(sim.model("Llama-3.2-1B"))
    sure = executor_of(sim, windows, SpeculationProcess(3, 1.0, seed=0, draft=draft))
    plain, plan = executor_of(sim, windows), plan_of(entry(2, 1, 900, num_output=4))
    answer = sim.request("r2", output=12).answer_token_ids(500)
    given = sure.execute(plan)
    assert given.results[0].token_ids == answer[4:8]
    verify_s = windows.model.decode(1, 900, new=4).latency_s[0]
    draft_s = draft.model.decode(1, [900, 901, 902]).latency_s.sum()
    assert given.duration_s == pytest.approx(verify_s + draft_s, rel=1e-9)
    assert plain.execute(plan).duration_s < given.duration_s
    never = executor_of(sim, windows, SpeculationProcess(3, 0.0, seed=0))
    assert never.execute(plan).results[0].token_ids == (answer[4],)
    assert sure.num_certain(2, 4) == 0
    assert sure.foreseen_s(Foresight(5, 1, 900, (900,))) is None


def test_accepted_drafts_follow_the_acceptance():
    process = SpeculationProcess(4, 0.7, seed=5)
    counts = [process.num_accepted(sequence, place) for sequence in range(50) for place in range(80)]
    # Mean of min(geometric, 4) is sum of 0.7^k, k 1..4 = 1.7731; its variance is below 2.8, so 4 sigma of 4000 is 0.106.
    assert sum(counts) / len(counts) == pytest.approx(1.7731, abs=0.106)
    assert process.num_accepted(3, 9) == SpeculationProcess(4, 0.7, seed=5).num_accepted(3, 9)


@pytest.mark.parametrize(("drafts", "acceptance"), [(0, 0.5), (2, -0.1), (2, 1.1)])
def test_impossible_speculation_is_refused(drafts, acceptance):
    with pytest.raises(ConfigError, match="must be"):
        SpeculationProcess(drafts, acceptance, seed=0)


def test_a_recording_gives_its_times_and_refuses_other_steps(sim):
    executor = CostExecutor(Recording([RecordedStep(1, 0.5, 0.25)]), num_blocks=10)
    executor.expect(1, (3,) * 20)
    assert executor.execute(plan_of(entry(1, 5, 0))).duration_s == 0.25
    assert (executor.earliest_start_s(1), executor.earliest_start_s(2)) == (0.5, 0.0)
    assert executor.context_limits == ()
    with pytest.raises(SimulationError, match="no step 2"):
        executor.execute(plan_of(entry(1, 5, 0))._replace(step=2))
