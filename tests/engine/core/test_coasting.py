"""Sequences that coast end up exactly as those that were listed in every plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.invariants import InvariantViolated
from argosy.engine.core.plan import NO_COASTING, SequenceResult, StepPlan, StepResult
from argosy.engine.core.request import FinishReason, Request
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.core.scheduler import Scheduler

LIMITS = (5, 12)
EOS = 7


@dataclass
class Answers:
    """Outputs that are known beforehand: a pure function of the sequence, with EOS at a place of its own, if any."""

    ends: dict[int, int] = field(default_factory=dict)
    context_limits: tuple[int, ...] = LIMITS

    def token(self, sequence_id: int, place: int) -> int:
        return EOS if self.ends.get(sequence_id) == place else 10 + (sequence_id * 31 + place * 7) % 80

    def num_certain(self, sequence_id: int, num_output: int) -> int:
        return self.ends.get(sequence_id, 10**9) - num_output

    def output_ids(self, sequence_id: int, first: int, stop: int) -> list[int]:
        return [self.token(sequence_id, place) for place in range(first, stop)]

    def answer(self, plan: StepPlan) -> StepResult:
        return StepResult(
            plan.step,
            tuple(
                SequenceResult(
                    s.sequence_id, (self.token(s.sequence_id, s.num_output_tokens),) if s.sample else (), (), (), ""
                )
                for s in plan.sequences
            ),
            0.0,
        )


def scheduler_of(coasts: bool, answers: Answers, **fields: Any) -> Scheduler:
    defaults = {"num_blocks": 24, "block_size": 4, "max_model_len": 64, "max_num_seqs": 6, "max_num_batched_tokens": 16}
    return Scheduler(SchedulerConfig(**{**defaults, **fields}), known_outputs=answers if coasts else None)


def request(name: str, prompt: int, output: int, *, n: int = 1, arrival_s: float = 0.0, first: int = 0) -> Request:
    """`first` sets the prompt's tokens, and the priority."""
    tokens = tuple(100 + (first + i) % 37 for i in range(prompt))
    params = SamplingParams(max_tokens=output, temperature=0.0, n=n)
    return Request(name, tokens, params, arrival_s, seed=0, eos_token_ids=frozenset({EOS}), priority=-first)


def step(scheduler: Scheduler, answers: Answers, now_s: float) -> list[Any]:
    plan = scheduler.schedule(now_s)
    if plan is None:
        return []
    return [e for e in scheduler.commit(plan, answers.answer(plan), now_s) if e.finish_reason is not None]


def state(scheduler: Scheduler) -> Any:
    scheduler.settle()
    sequences = [*scheduler._roster.running, *scheduler._roster.queue.sequences()]
    pool = scheduler.kv._pool
    fields = ("sequence_id", "token_ids", "num_computed", "block_table", "capacity", "num_published", "publish_at")
    return (
        [[getattr(s, f) for f in (*fields, "preemptions", "status", "first_token_s")] for s in sequences],
        (pool.free_blocks, pool.ref_counts, scheduler.kv.num_cached),
        (scheduler.num_steps, scheduler.num_preemptions, scheduler.prefix_hits_tokens, scheduler.num_running_tokens),
    )


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 30), st.integers(1, 30), st.integers(0, 3)),
        st.tuples(st.just("steps"), st.integers(1, 25)),
        st.tuples(st.just("abort"), st.integers(0, 12)),
        st.tuples(st.just("abort in flight"), st.integers(0, 12)),
        st.tuples(
            st.just("reset"),
        ),
    ),
    max_size=30,
)


def play(coasts: bool, operations: list[tuple[Any, ...]], together: bool, fields: dict[str, Any]) -> list[Any]:
    """What happens, and the state at the end; with `together` as many steps as possible are skipped."""
    answers = Answers()
    scheduler = scheduler_of(coasts, answers, **fields)
    told: list[Any] = []
    count = now = 0
    for operation, *arguments in [*operations, ("steps", 600)]:
        if operation == "submit":
            prompt, output, kind = arguments
            one = request(f"r{count}", prompt, output, n=2 if kind == 3 else 1, arrival_s=float(now), first=kind % 2)
            for sequence in scheduler.submit(one):
                if kind == 2:
                    answers.ends[sequence.sequence_id] = output // 2
            count += 1
        elif operation == "steps":
            left = arguments[0]
            while left and scheduler.has_work:
                told += [(scheduler.num_steps, e.sequence_id, e.finish_reason) for e in step(scheduler, answers, float(now))]
                left, now = left - 1, now + 1
                scheduler.check_invariants()
                skipped = scheduler.skip(left) if together else 0
                left, now = left - skipped, now + skipped
        elif operation == "abort":
            told += [(e.sequence_id, e.finish_reason) for e in scheduler.abort(f"r{arguments[0]}")]
        elif operation == "abort in flight" and scheduler.has_work:
            plan = scheduler.schedule(float(now))
            told += [(e.sequence_id, e.finish_reason) for e in scheduler.abort(f"r{arguments[0]}")]
            events = scheduler.commit(plan, answers.answer(plan), float(now))
            told += [(e.sequence_id, e.finish_reason) for e in events if e.finish_reason is not None]
            now += 1
        elif operation == "reset":
            scheduler.reset_prefix_cache()
        told.append((scheduler.num_running, scheduler.num_waiting, scheduler.kv.num_available, scheduler.num_running_tokens))
        scheduler.check_invariants()
    return [told, state(scheduler)]


@settings(max_examples=150, deadline=None)
@given(
    operations=OPERATIONS,
    caching=st.booleans(),
    num_blocks=st.sampled_from([18, 24, 60]),
    watermark=st.sampled_from([0.0, 0.2]),
    policy=st.sampled_from(["fcfs", "priority"]),
    block_size=st.sampled_from([1, 4, 4]),
)
def test_coasting_and_skipping_leave_no_trace(operations, caching, num_blocks, watermark, policy, block_size):
    fields = {
        "enable_prefix_caching": caching,
        "num_blocks": num_blocks * 4 // block_size,
        "block_size": block_size,
        "watermark": watermark,
        "scheduling_policy": policy,
    }
    reference = play(False, operations, False, fields)
    assert play(True, operations, False, fields) == reference
    assert play(True, operations, True, fields) == reference


def run_to_decode(coasts: bool, *requests: Request, ends: dict[int, int] | None = None, **fields: Any) -> Any:
    answers = Answers(ends or {})
    scheduler = scheduler_of(
        coasts, answers, **{"num_blocks": 60, "block_size": 16, "enable_prefix_caching": False, **fields}
    )
    for one in requests:
        scheduler.submit(one)
    while scheduler.num_waiting or any(s.num_output == 0 for s in scheduler._roster.running):
        step(scheduler, answers, 0.0)
    return scheduler, answers


def test_a_plan_counts_those_who_coast_and_caps_their_contexts():
    scheduler, _ = run_to_decode(True, request("a", 3, 40), request("b", 9, 40))
    plan = scheduler.schedule(0.0)
    contexts = [scheduler._coasters.num_known(s) - 1 for s in scheduler._roster.running]
    assert contexts == [3, 9]
    assert plan.sequences == ()
    assert plan.num_tokens == 2
    assert plan.coasting == (2, 12, (4 + 5, 4 + 10))


def test_without_known_outputs_nobody_coasts_and_nothing_is_foreseen():
    scheduler, _ = run_to_decode(False, request("a", 3, 40))
    assert scheduler.foresee(10) is None
    assert scheduler.skip(10) == 0
    assert scheduler.schedule(0.0).coasting is NO_COASTING


@pytest.mark.parametrize("ends", [{}, {1: 6}])
def test_foresight_reaches_to_the_first_end(ends):
    """By length, or by an end-of-sequence token that only the executor knows of."""
    scheduler, answers = run_to_decode(True, request("a", 6, 20), request("b", 5, 25), ends=ends)
    first, second = scheduler._roster.running
    steps_left = min(20 - first.num_output, (7 if ends else 25) - second.num_output)
    ahead = scheduler.foresee(100)
    assert (ahead.num_steps, ahead.num_sequences) == (steps_left, 2)
    scheduler.settle()
    assert sorted(ahead.contexts) == sorted(s.num_computed for s in scheduler._roster.running)
    assert ahead.context_tokens == sum(ahead.contexts)
    for index in range(ahead.num_steps):
        ended = step(scheduler, answers, 0.0)
        assert bool(ended) is (index == ahead.num_steps - 1)


def test_nothing_is_foreseen_while_a_prompt_or_the_queue_or_the_pool_may_interfere():
    scheduler, answers = run_to_decode(True, request("a", 6, 40))
    assert scheduler.foresee(4).num_steps == 4
    scheduler.submit(request("b", 40, 4, arrival_s=1.0))
    assert scheduler.foresee(4) is None
    step(scheduler, answers, 0.0)
    assert scheduler.foresee(4) is None, "a prompt is being computed"
    full, _ = run_to_decode(True, request("a", 6, 40), request("b", 4, 8, arrival_s=1.0), max_num_seqs=2)
    full.submit(request("c", 4, 8, arrival_s=2.0))
    assert full.foresee(3).num_steps == 3
    tight, _ = run_to_decode(True, request("a", 6, 40), request("b", 6, 40), num_blocks=5, watermark=0.0)
    assert tight.kv.num_available == 3
    assert tight.foresee(100).num_steps == 16


def test_nothing_is_skipped_while_an_end_is_untold_or_somebody_could_be_admitted():
    scheduler, answers = run_to_decode(True, request("a", 3, 40), request("b", 9, 40), request("c", 3, 4))
    while scheduler.num_running == 3:
        step(scheduler, answers, 0.0)
    assert scheduler.skip(2) == 0, "the executor has not heard of the end of c"
    plan = scheduler.schedule(0.0)
    assert plan.finished == (2,)
    scheduler.commit(plan, answers.answer(plan), 0.0)
    assert scheduler.skip(2) == 2
    scheduler.submit(request("d", 3, 4, arrival_s=1.0))
    assert scheduler.skip(2) == 0


def test_a_finish_from_outside_wakes_first():
    scheduler, answers = run_to_decode(True, request("a", 3, 40), request("b", 9, 40))
    for _ in range(3):
        step(scheduler, answers, 0.0)
    sequence = scheduler._roster.running[0]
    known = scheduler._coasters.num_known(sequence)
    scheduler.finish(sequence.sequence_id, FinishReason.STOP, "x")
    assert len(sequence.token_ids) == known
    scheduler.check_invariants()
    assert list(sequence.token_ids[3:]) == answers.output_ids(sequence.sequence_id, 0, known - 3)


def test_a_broken_account_of_who_coasts_is_found():
    rng = Random(0)
    for harm in ("_sum_of_bases", "_bases", "_due", "num_done"):
        scheduler, answers = run_to_decode(True, request("a", 3, 40), request("b", 9, 40))
        step(scheduler, answers, 0.0)
        coasters = scheduler._coasters
        assert len(coasters) == 2
        value = getattr(coasters, harm)
        broken = {"_sum_of_bases": 1 + rng.randint(0, 3), "_bases": [0, 0], "_due": {}, "num_done": 10**6}[harm]
        setattr(coasters, harm, broken if harm != "_sum_of_bases" else value + broken)
        with pytest.raises(InvariantViolated):
            scheduler.check_invariants()
