"""The engine's executor, answered by the cost model: a step computes nothing and takes as long as it would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from argosy.engine.core.coasting import Foresight
from argosy.engine.core.plan import Coasting, ScheduledSequence, SequenceResult, StepPlan, StepResult
from argosy.engine.executors.base import Executor
from argosy.errors import ConfigError, SimulationError
from argosy.sim.speculation import SpeculationProcess
from argosy.sim.step_pricer import Chunk, StepPricer, StepShape

# Up to so many steps, pricing them one by one is quicker than setting up arrays.
_FEW_STEPS = 6


class SimulatedExecutor(Executor, Protocol):
    """An executor whose outputs are known beforehand, so that it can be told of requests and asked ahead of steps."""

    @property
    def decode_width(self) -> int:
        """Most tokens that a decoding sequence computes in a step: 1 without speculation."""
        ...

    def answer(self, plan: StepPlan) -> tuple[SequenceResult, ...]:
        """The tokens that each entry of a plan gets, without a duration."""
        ...

    def foreseen_s(self, ahead: Foresight) -> list[float] | None:
        """Seconds of each step of `ahead`, equal to what `execute` would say; None if only `execute` can tell."""
        ...

    def expect(self, sequence_id: int, answer: tuple[int, ...], transferred_tokens: int = 0) -> None:
        """A sequence will come that is to be given `answer`; of `transferred_tokens` see `Replica.submit`."""
        ...

    def forget(self, sequence_id: int) -> None:
        """The sequence has ended. Idempotent."""
        ...

    def earliest_start_s(self, step: int) -> float:
        """The moment before which a step does not begin, however ready everything is; 0 for none."""
        ...


class _Expected(NamedTuple):
    """Of one live sequence: its answer, and how many prompt tokens need no computing."""

    answer: tuple[int, ...]
    transferred_tokens: int


class CostTimer:
    """Step times from the cost model, with drafts and their verification if `speculation` is given."""

    def __init__(self, pricer: StepPricer, speculation: SpeculationProcess | None = None) -> None:
        self.pricer = pricer
        self.speculation = speculation

    def step_s(self, plan: StepPlan, transferred: Callable[[ScheduledSequence], int]) -> float:
        """Seconds of `plan`. A step whose tokens were all computed elsewhere takes none but the step's overhead."""
        limits, coasting = self.pricer.limits, plan.coasting
        width = 1 if self.speculation is None else self.speculation.drafts + 1
        decoding = 0
        pasts: list[int] = []
        chunks: list[Chunk] = []
        for entry in plan.sequences:
            _, token_ids, start, _, samples, num_output, _, _ = entry
            new = len(token_ids)
            if samples and (new == 1 or (width > 1 and num_output)):
                decoding += 1
                pasts.append(start + new - 1)
                continue
            done = transferred(entry)
            if done < new:
                chunks.append(Chunk(new - done, start + done, samples))
        decoding += coasting.num_sequences
        if not decoding and not chunks:
            return self.pricer.model.constants.step_s
        seen = tuple([_seen(pasts, width, limit) for limit in limits])
        if coasting.num_sequences:
            assert width == 1, "whoever speculates does not coast"
            seen = tuple(map(int.__add__, seen, self._seen_by_those_who_coast(coasting)))
        read = seen if width == 1 else tuple([_read(pasts, width, limit) for limit in limits])
        seconds = self.pricer.step_s(StepShape(decoding, width, seen, read, tuple(chunks)))
        if self.speculation is not None and decoding:
            seconds += self.speculation.draft_s(pasts)
        return seconds

    def foreseen_s(self, ahead: Foresight) -> list[float] | None:
        """Seconds of each step of `ahead`; None when speculating, since then a step gives more than one token."""
        if self.speculation is not None:
            return None
        count = ahead.num_sequences
        if ahead.num_steps <= _FEW_STEPS:
            return [self.pricer.step_s(StepShape(count, 1, seen, seen)) for seen in self._seen_ahead(ahead)]
        steps = np.arange(1, ahead.num_steps + 1, dtype=np.int64)
        contexts = np.array(ahead.contexts, np.int64)[:, None]
        seen = [
            ahead.context_tokens + count * steps if limit is None else np.minimum(contexts + steps, limit).sum(axis=0)
            for limit in self.pricer.limits
        ]
        seconds: list[float] = self.pricer.decode_run_s(count, [one.astype(np.float64) for one in seen]).tolist()
        return seconds

    def _seen_ahead(self, ahead: Foresight) -> Iterator[tuple[int, ...]]:
        for step in range(1, ahead.num_steps + 1):
            yield tuple(
                [
                    ahead.context_tokens + ahead.num_sequences * step
                    if limit is None
                    else sum([min(context + step, limit) for context in ahead.contexts])
                    for limit in self.pricer.limits
                ]
            )

    def _seen_by_those_who_coast(self, coasting: Coasting) -> Iterator[int]:
        capped = iter(coasting.capped_tokens)
        for limit in self.pricer.limits:
            yield coasting.context_tokens + coasting.num_sequences if limit is None else next(capped)


def _seen(pasts: Sequence[int], width: int, limit: int | None) -> int:
    """Sum over sequences and their `width` new tokens of min(tokens seen, limit)."""
    if limit is None:
        return width * sum(pasts) + len(pasts) * (width * (width + 1) // 2)
    return sum([min(past + new, limit) for past in pasts for new in range(1, width + 1)])


def _read(pasts: Sequence[int], width: int, limit: int | None) -> int:
    """Sum over sequences of the distinct tokens that their `width` new tokens read."""
    if limit is None:
        return sum(pasts) + len(pasts) * width
    return sum([min(past + width, limit + width - 1) for past in pasts])


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of a recording: its number from 1, when it began, on the simulation's clock, and how long it took."""

    step: int
    start_s: float
    duration_s: float


class Recording:
    """Step times as they were, for replaying a live run's decisions exactly.

    A step begins no earlier than it did, so that whatever had arrived by then, and nothing else, is there for its plan.
    """

    def __init__(self, steps: Iterable[RecordedStep]) -> None:
        self._steps = {one.step: one for one in steps}

    def start_s(self, step: int) -> float:
        """When the step began; 0 if it is not recorded, which shows when it is to be timed."""
        return self._steps[step].start_s if step in self._steps else 0.0

    def step_s(self, plan: StepPlan, transferred: Callable[[ScheduledSequence], int]) -> float:  # noqa: ARG002
        """The recorded seconds.

        Raises:
            SimulationError: the recording has no such step.
        """
        one = self._steps.get(plan.step)
        if one is None:
            raise SimulationError(
                f"the recording has no step {plan.step} (it has {len(self._steps)}): the replayed run decided otherwise, "
                "or the recording is cut short"
            )
        return one.duration_s


class CostExecutor:
    """Answers plans: token ids from the trace, seconds from `timer`.

    Output i of a request is token i of its answer's content, whatever the batch or preemptions; a speculating executor
    gives several at once, as `speculation` draws them.
    """

    def __init__(
        self,
        timer: CostTimer | Recording,
        *,
        num_blocks: int,
        vocab_size: int = 32_768,
        kv_dtype: str = "float32",
    ) -> None:
        """Raises `ConfigError` without a block or a vocabulary."""
        if num_blocks < 1 or vocab_size < 1:
            raise ConfigError(f"num_blocks and vocab_size must be at least 1, got {num_blocks} and {vocab_size}")
        self.timer = timer
        self.vocab_size = vocab_size
        self.num_blocks = num_blocks
        self.kv_dtype = kv_dtype
        self.speculation = timer.speculation if isinstance(timer, CostTimer) else None
        self._expected: dict[int, _Expected] = {}

    @property
    def context_limits(self) -> tuple[int, ...]:
        """Attention windows of the model, as `engine.core.coasting.KnownOutputs` wants them."""
        if not isinstance(self.timer, CostTimer):
            return ()
        return tuple([limit for limit in self.timer.pricer.limits if limit is not None])

    @property
    def decode_width(self) -> int:
        """Most tokens that a decoding sequence computes in a step."""
        return 1 if self.speculation is None else self.speculation.drafts + 1

    @property
    def num_expected(self) -> int:
        """Sequences it knows of."""
        return len(self._expected)

    def expect(self, sequence_id: int, answer: tuple[int, ...], transferred_tokens: int = 0) -> None:
        """A sequence will come that is to be given `answer`."""
        self._expected[sequence_id] = _Expected(answer, transferred_tokens)

    def forget(self, sequence_id: int) -> None:
        """The sequence has ended."""
        self._expected.pop(sequence_id, None)

    def earliest_start_s(self, step: int) -> float:
        """When a recorded step began; 0 with the cost model, which lets steps begin as soon as they can."""
        return self.timer.start_s(step) if isinstance(self.timer, Recording) else 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        """The tokens that each entry gets, and the seconds of the step."""
        return StepResult(plan.step, self.answer(plan), self.timer.step_s(plan, self._transferred))

    def answer(self, plan: StepPlan) -> tuple[SequenceResult, ...]:
        """The tokens that each entry gets."""
        expected, speculation = self._expected, self.speculation
        results = []
        for sequence_id, _, _, _, samples, num_output, _, _ in plan.sequences:
            tokens: tuple[int, ...] = ()
            if samples:
                run = 1
                if speculation is not None and num_output:
                    run = speculation.num_accepted(sequence_id, num_output) + 1
                tokens = expected[sequence_id].answer[num_output : num_output + run]
            results.append(SequenceResult(sequence_id, tokens, (), (), ""))
        return tuple(results)

    def foreseen_s(self, ahead: Foresight) -> list[float] | None:
        """Seconds of each step of `ahead`; None for a recording or with speculation."""
        return self.timer.foreseen_s(ahead) if isinstance(self.timer, CostTimer) else None

    def num_certain(self, sequence_id: int, num_output: int) -> int:
        """Steps that give one token each: all that are left of the answer, or none with speculation."""
        return 0 if self.speculation is not None else len(self._expected[sequence_id].answer) - num_output

    def output_ids(self, sequence_id: int, first: int, stop: int) -> tuple[int, ...]:
        """Part of the answer."""
        return self._expected[sequence_id].answer[first:stop]

    def close(self) -> None:
        """Forget everything."""
        self._expected.clear()

    def _transferred(self, entry: ScheduledSequence) -> int:
        """Leading tokens of an entry whose KV was computed elsewhere."""
        known = self._expected.get(entry.sequence_id)
        if known is None or not known.transferred_tokens:
            return 0
        return max(0, min(len(entry.token_ids), known.transferred_tokens - entry.start))
