"""Replays what a live engine did: the same requests at the same moments, steps that took as long as they did.

The simulator's replica decides anew. Whatever it decides must be what the live engine decided, step by step: who is in the
batch with which tokens in which blocks, who is preempted, what the prefix cache gives. `first_difference` says whether so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from argosy.engine.core.config import SchedulerConfig
from argosy.engine.step_recorder import (
    AbortRecord,
    FinishRecord,
    Record,
    RecordingScheduler,
    StepRecord,
    SubmitRecord,
)
from argosy.errors import SimulationError
from argosy.sim.cost_executor import CostExecutor, RecordedStep, Recording
from argosy.sim.event_loop import EventLoop
from argosy.sim.outcome import ReplicaListener
from argosy.sim.replica import Replica
from argosy.sim.workload.trace_request import Segment, TraceRequest


@dataclass(frozen=True, slots=True)
class ReplayedRequest(TraceRequest):
    """A request with the tokens it really had.

    Attributes:
        prompt_ids, answer_ids: `answer_ids` has `output_tokens` entries, of which those after an end are never given.
        end_ids: tokens that end the answer.
    """

    prompt_ids: tuple[int, ...] = ()
    answer_ids: tuple[int, ...] = ()
    end_ids: frozenset[int] = field(default=frozenset())

    @property
    def end_token_ids(self) -> frozenset[int]:
        """As `TraceRequest`."""
        return self.end_ids

    def token_ids(self, vocab_size: int) -> tuple[int, ...]:  # noqa: ARG002, its tokens are given
        """The prompt as it was."""
        return self.prompt_ids

    def answer_token_ids(self, vocab_size: int) -> tuple[int, ...]:  # noqa: ARG002
        """The answer as it was."""
        return self.answer_ids


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A recording that can be replayed; times in seconds since its first record.

    Attributes:
        requests: in the order in which the scheduler took them, each arriving when it did.
        aborts: (moment, request id).
        vocab_size: above every token id, the one that ends answers included.
    """

    config: SchedulerConfig
    requests: tuple[ReplayedRequest, ...]
    aborts: tuple[tuple[float, str], ...]
    steps: tuple[StepRecord, ...]
    start_s: float
    vocab_size: int

    @property
    def recorded_steps(self) -> list[RecordedStep]:
        """When each step began, since the start, and how long it took from plan to commit.

        One more stands after everything that happened: what was aborted after the last step does not run before that.
        """
        steps = [RecordedStep(one.step, one.start_s - self.start_s, one.end_s - one.start_s) for one in self.steps]
        over_s = max([steps[-1].start_s + steps[-1].duration_s, *(time_s for time_s, _ in self.aborts)])
        return [*steps, RecordedStep(steps[-1].step + 1, over_s + 1.0, 0.0)]


def live_run(config: SchedulerConfig, records: Sequence[Record]) -> LiveRun:
    """Prepare the records of a `RecordingScheduler`, from its first step to a moment when nothing runs.

    Raises:
        SimulationError: nothing was recorded, the beginning or the end is missing, or a request is of a kind that a
            simulated replica has not: several sequences, adapters, prompt logprobs, stop strings, failed sequences.
    """
    steps = [one for one in records if isinstance(one, StepRecord)]
    submits = [one for one in records if isinstance(one, SubmitRecord) and one.sequence_ids]
    if not steps or not submits:
        raise SimulationError("the recording has no step")
    if steps[0].step != 1 or [one.step for one in steps] != list(range(1, len(steps) + 1)):
        raise SimulationError("the recording does not hold every step from the engine's first one on")
    for one in records:
        if isinstance(one, FinishRecord):
            raise SimulationError(f"sequence {one.sequence_id} was ended by a stop string, which a replay does not know of")
    _check_end(records, steps[-1])
    _check_order(submits)
    start_s = submits[0].at_s
    # No model has this token: it marks where an answer ended.
    end_id = 1 + max(_largest(steps), *[max(one.prompt_token_ids) for one in submits])
    answers = _answers(steps)
    aborted = {one.request_id for one in records if isinstance(one, AbortRecord)}
    requests = tuple(
        _request(one, answers.get(one.sequence_ids[0], []), one.request_id in aborted, config, start_s, end_id)
        for one in submits
    )
    aborts = tuple((one.at_s - start_s, one.request_id) for one in records if isinstance(one, AbortRecord))
    return LiveRun(config, requests, aborts, tuple(steps), start_s, end_id + 1)


def replay(run: LiveRun, listener: ReplicaListener | None = None) -> list[StepRecord]:
    """Let a simulated replica serve the run's requests with the run's step times; the steps that it decided on.

    Raises:
        SimulationError: it decided so differently that it ran out of recorded steps.
    """
    loop = EventLoop()
    records: list[Record] = []
    executor = CostExecutor(
        Recording(run.recorded_steps),
        num_blocks=run.config.num_blocks,
        vocab_size=run.vocab_size,
        kv_dtype=run.config.kv_dtype,
    )
    scheduler = RecordingScheduler(run.config, on_record=records.append, clock=loop.clock)
    replica = Replica("replay", loop, scheduler, executor, listener=listener, one_by_one=True)
    for request in run.requests:
        loop.at(request.arrival_s, lambda request=request: replica.submit(request))  # type: ignore[misc]
    for time_s, request_id in run.aborts:
        loop.at(time_s, lambda request_id=request_id: replica.abort(request_id))  # type: ignore[misc]
    loop.run()
    return [one for one in records if isinstance(one, StepRecord)]


def first_difference(live: Sequence[StepRecord], replayed: Sequence[StepRecord]) -> str:
    """Where two runs decided differently, in a line for people; "" if nowhere."""
    for one, other in zip(live, replayed, strict=False):
        if one.decisions != other.decisions:
            names = [name for name in StepRecord._fields if name not in ("start_s", "end_s", "executor_s", "token_ids")]
            name = next(name for name in names if getattr(one, name) != getattr(other, name))
            return f"step {one.step}: {name} was {getattr(one, name)!r:.200} and is {getattr(other, name)!r:.200}"
    if len(live) != len(replayed):
        return f"there were {len(live)} steps and are {len(replayed)}"
    return ""


def _check_end(records: Sequence[Record], last: StepRecord) -> None:
    after = records[records.index(last) + 1 :]
    gone = sum(isinstance(one, AbortRecord) for one in after) - sum(isinstance(one, SubmitRecord) for one in after)
    if last.num_running + last.num_waiting != gone:
        raise SimulationError("the recording ends while requests are alive: end it when the engine is idle")


def _check_order(submits: Sequence[SubmitRecord]) -> None:
    for before, after in itertools.pairwise(submits):
        if after.arrival_s < before.arrival_s:
            raise SimulationError(f"requests {before.request_id} and {after.request_id} were taken against their arrivals")
    for one in submits:
        what = (
            f"{len(one.sequence_ids)} sequences" if len(one.sequence_ids) > 1 else "",
            "an adapter" if one.adapter_id else "",
            "prompt logprobs" if one.owes_prompt_logprobs else "",
        )
        if any(what):
            raise SimulationError(
                f"request {one.request_id} has {next(filter(None, what))}, which a replay does not know of"
            )


def _largest(steps: Iterable[StepRecord]) -> int:
    return max((token for one in steps for tokens in one.token_ids for token in tokens), default=0)


def _answers(steps: Iterable[StepRecord]) -> Mapping[int, list[int]]:
    """Tokens given to each sequence, in order."""
    answers: dict[int, list[int]] = {}
    for step in steps:
        if step.errors:
            raise SimulationError(f"sequence {step.errors[0]} failed in step {step.step}, which a replay does not know of")
        for entry, tokens in zip(step.entries, step.token_ids, strict=True):
            answers.setdefault(entry.sequence_id, []).extend(tokens)
    return answers


def _request(
    record: SubmitRecord, answer: list[int], was_aborted: bool, config: SchedulerConfig, start_s: float, end_id: int
) -> ReplayedRequest:
    num_prompt = len(record.prompt_token_ids)
    most = config.effective_max_len - num_prompt
    limit = most if record.max_tokens is None else min(record.max_tokens, most)
    ended_early = len(answer) < limit and not was_aborted
    given = [*answer[:-1], end_id] if ended_early else answer
    return ReplayedRequest(
        record.request_id,
        record.at_s - start_s,
        (Segment(0, num_prompt),),
        limit,
        tenant=record.cache_salt,
        priority=record.priority,
        prompt_ids=record.prompt_token_ids,
        answer_ids=(*given, *(end_id,) * (limit - len(given))),
        end_ids=frozenset((end_id,)) if ended_early else frozenset(),
    )
