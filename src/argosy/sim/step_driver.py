"""Lets a scheduler and an executor run steps in simulated time, many uneventful ones as a single event.

A run is a number of steps of which only the last may end a sequence. When it begins, the times of all of them are known,
and nothing else is done; they are planned and committed when the run is over, or when somebody looks or interferes before
that: then those that are over are committed, the one in flight is planned, and if something is to change the run ends with
it. What comes out is what would have come out of one event per step, to the last bit: the scheduler says how far it can be
foreseen, and does the same things in the same order.

    ends_s     0         1         2         3     n
               |--step 0-|--step 1-|--step 2-| ... |
                              ^ interrupted here: step 0 is committed, step 1 is in flight and the last of the run
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from argosy.engine.core.coasting import Foresight
from argosy.engine.core.events import OutputEvent
from argosy.engine.core.plan import SequenceResult, StepPlan, StepResult
from argosy.engine.core.scheduler import Scheduler
from argosy.sim.cost_executor import SimulatedExecutor
from argosy.sim.event_loop import EventHandle, EventLoop
from argosy.sim.outcome import StepSpan

# Of events at one moment, steps end last: a request that arrives just then is in time for the next step.
STEP_PRIORITY = 100
# How far to look ahead. Steps that are foreseen and then interrupted cost only the pricing.
_FEWEST_AHEAD, _MOST_AHEAD = 4, 512


class _Counters(NamedTuple):
    """What a scheduler has counted since its start; told of are the differences."""

    preemptions: int
    prefix_query_tokens: int
    prefix_hit_tokens: int


class _Planned(NamedTuple):
    """A step in flight: its plan, and what it will give."""

    plan: StepPlan
    results: tuple[SequenceResult, ...]


@dataclass(slots=True)
class _Run:
    """See the module.

    Attributes:
        index: the step in flight, or to be planned.
        planned: that step, once it is planned.
        ahead: what was foreseen of a run of several steps.
    """

    ends_s: list[float]
    planned: _Planned | None
    ahead: Foresight | None = None
    index: int = 0

    @property
    def num_steps(self) -> int:
        """Steps of the run, the one in flight included."""
        return len(self.ends_s) - 1


class StepDriver:
    """Owns what is in flight between a scheduler and an executor.

    Attributes:
        busy_s: seconds in which a step was running, counted at its end.
        slowdown: factor on the time of steps that begin from here on; change it after `interrupt` only.
    """

    def __init__(
        self,
        loop: EventLoop,
        scheduler: Scheduler,
        executor: SimulatedExecutor,
        *,
        on_events: Callable[[list[OutputEvent]], None],
        on_span: Callable[[StepSpan], None] | None,
        one_by_one: bool = False,
        check_invariants: bool = False,
    ) -> None:
        """Nothing runs yet.

        Args:
            on_events: called at the end of each run with what its last step brought.
            on_span: called with all steps in order.
            one_by_one: make every step an event of its own; the result is the same and takes longer.
            check_invariants: check the scheduler's whole state after every step.
        """
        self.busy_s = 0.0
        self.slowdown = 1.0
        self._loop = loop
        self._scheduler = scheduler
        self._executor = executor
        self._on_events = on_events
        self._on_span = on_span
        self._one_by_one = one_by_one
        self._check = check_invariants
        self._run: _Run | None = None
        self._begin: EventHandle | None = None
        self._end: EventHandle | None = None
        self._reach = _FEWEST_AHEAD
        self._paused = False
        self._told = _Counters(0, 0, 0)

    def wake(self) -> None:
        """There is work: begin a step once everything else of this moment has happened, unless one is in flight."""
        if self._run is None and (self._begin is None or not self._begin.is_pending):
            self._begin = self._loop.at(self._loop.now_s(), self._begin_if_idle, priority=STEP_PRIORITY)

    def catch_up(self) -> None:
        """Commit the steps that were over before this moment, and plan the one in flight."""
        run = self._run
        if run is not None and not self._paused:
            over = bisect_left(run.ends_s, self._loop.now_s(), lo=run.index + 1) - 1
            self._advance(run, min(over, run.num_steps - 1))

    def interrupt(self) -> None:
        """`catch_up`, and let the run end with the step in flight, since something will change. Before any change."""
        self.catch_up()
        run = self._run
        if run is None or run.index + 1 == run.num_steps:
            return
        self._reach = max(_FEWEST_AHEAD, 2 * (run.index + 1))
        del run.ends_s[run.index + 2 :]
        if not self._paused:
            self._await_end(run)

    def pause(self) -> None:
        """Let the step in flight never end, and none begin, until `resume`. Idempotent."""
        self.interrupt()
        self._paused = True
        for handle in (self._begin, self._end):
            if handle is not None:
                handle.cancel()

    def resume(self) -> None:
        """Let the step that was in flight begin anew. Does nothing unless paused."""
        if not self._paused:
            return
        self._paused = False
        run = self._run
        if run is None:
            self.wake()
            return
        start_s, end_s = run.ends_s[run.index :]
        now_s = self._loop.now_s()
        run.ends_s, run.index = [now_s, now_s + (end_s - start_s)], 0
        self._await_end(run)

    def drop(self) -> None:
        """Forget the step in flight: nothing came of it. Every sequence must have ended."""
        for handle in (self._begin, self._end):
            if handle is not None:
                handle.cancel()
        self._paused = False
        run, self._run = self._run, None
        if run is not None:
            assert run.planned is not None, "whoever drops a step has interrupted it"
            plan = run.planned.plan
            nothing = tuple([SequenceResult(entry.sequence_id, (), (), (), "") for entry in plan.sequences])
            self._scheduler.commit(plan, StepResult(plan.step, nothing, 0.0), self._loop.now_s())

    def _begin_if_idle(self) -> None:
        if self._run is None and not self._paused and self._scheduler.has_work:
            self._begin_run()

    def _begin_run(self) -> None:
        now_s = self._loop.now_s()
        earliest_s = self._executor.earliest_start_s(self._scheduler.num_steps + 1)
        if earliest_s > now_s:
            if self._begin is None or not self._begin.is_pending:
                self._begin = self._loop.at(earliest_s, self._begin_if_idle, priority=STEP_PRIORITY)
            return
        ahead = None if self._one_by_one else self._scheduler.foresee(self._reach)
        durations_s = None if ahead is None or ahead.num_steps < 2 else self._executor.foreseen_s(ahead)
        planned = None
        if durations_s is None:
            plan = self._schedule(now_s)
            _, results, duration_s = self._executor.execute(plan)
            planned, durations_s, ahead = _Planned(plan, results), [duration_s], None
        slowdown = self.slowdown
        ends_s = list(itertools.accumulate([duration * slowdown for duration in durations_s], initial=now_s))
        self._run = _Run(ends_s, planned, ahead)
        self._await_end(self._run)

    def _schedule(self, now_s: float) -> StepPlan:
        plan = self._scheduler.schedule(now_s)
        assert plan is not None, "there is work"
        return plan

    def _await_end(self, run: _Run) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = self._loop.at(run.ends_s[-1], self._end_run, priority=STEP_PRIORITY)

    def _end_run(self) -> None:
        run = self._run
        assert run is not None, "a run that ends has begun"
        self._advance(run, run.num_steps - 1)
        self._reach = min(_MOST_AHEAD, max(self._reach, 2 * run.num_steps))
        self._run = None
        events = self._commit(run)
        self._on_events(events)
        self._begin_if_idle()

    def _advance(self, run: _Run, index: int) -> None:
        """Commit the steps of `run` before `index`, and plan that one."""
        while run.index < index:
            num_steps = 0 if run.planned is not None else self._scheduler.skip(index - run.index)
            if num_steps:
                self._tell_skipped(run, num_steps)
                run.index += num_steps
                continue
            self._plan(run)
            events = self._commit(run)
            assert not any(event.finish_reason for event in events), "only the last step of a run ends a sequence"
            run.index += 1
        self._plan(run)

    def _plan(self, run: _Run) -> None:
        """Let the step `run.index` be in flight."""
        if run.planned is None:
            plan = self._schedule(run.ends_s[run.index])
            run.planned = _Planned(plan, self._executor.answer(plan))

    def _commit(self, run: _Run) -> list[OutputEvent]:
        """Commit the step in flight and tell of it."""
        assert run.planned is not None, "a step is planned before it is over"
        (plan, results), run.planned = run.planned, None
        start_s, end_s = run.ends_s[run.index : run.index + 2]
        events = self._scheduler.commit(plan, StepResult(plan.step, results, end_s - start_s), end_s)
        coasting = plan.coasting
        decoding, context, generated = coasting.num_sequences, coasting.context_tokens, coasting.num_sequences
        width = self._executor.decode_width
        for (_, token_ids, start, _, samples, num_output, _, _), result in zip(plan.sequences, results, strict=True):
            decoding += samples and num_output > 0 and len(token_ids) <= width
            context += start
            generated += len(result.token_ids)
        sequences = len(plan.sequences) + coasting.num_sequences
        self._tell(
            plan.step,
            [start_s, end_s],
            (sequences, decoding, plan.num_tokens, plan.num_prefill_tokens, context, generated),
        )
        return events

    def _tell_skipped(self, run: _Run, num_steps: int) -> None:
        """Tell of the next `num_steps` steps of `run`, which were skipped: everybody decoded one token in each."""
        ahead, first = run.ahead, run.index
        assert ahead is not None, "only what was foreseen is skipped"
        count = ahead.num_sequences
        context = ahead.context_tokens + first * count
        step = self._scheduler.num_steps - num_steps + 1
        self._tell(step, run.ends_s[first : first + num_steps + 1], (count, count, count, 0, context, count))

    def _tell(self, step: int, times_s: list[float], work: tuple[int, int, int, int, int, int]) -> None:
        """Tell of steps from `step` on: `times_s` are the start of the first and the ends of all; `work` is of each."""
        if self._check:
            self._scheduler.check_invariants()
        for begin_s, end_s in itertools.pairwise(times_s):
            self.busy_s += end_s - begin_s
        if self._on_span is None:
            return
        scheduler, before = self._scheduler, self._told
        kv, self._told = scheduler.kv, self._counters()
        self._on_span(
            StepSpan(
                step,
                times_s[0],
                times_s[1:],
                *work,
                num_running=scheduler.num_running,
                num_waiting=scheduler.num_waiting,
                kv_blocks_held=kv.num_held,
                kv_blocks_cached=kv.num_cached,
                num_preemptions=self._told.preemptions - before.preemptions,
                prefix_query_tokens=self._told.prefix_query_tokens - before.prefix_query_tokens,
                prefix_hit_tokens=self._told.prefix_hit_tokens - before.prefix_hit_tokens,
            )
        )

    def _counters(self) -> _Counters:
        s = self._scheduler
        return _Counters(s.num_preemptions, s.prefix_queries_tokens, s.prefix_hits_tokens)
