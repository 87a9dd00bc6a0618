"""The engine in this process, measured step by step: prefill rate, decode rate at several batch sizes, and what a step is
made of.

A round of decoding submits `batch` prompts, lets all of them be prefilled, and counts the steps in which nothing else is
done than decoding the whole batch. Rates are tokens over wall time of those steps; the executor's part is the duration it
reports of itself, the rest is scheduling, commit and text.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from argosy.engine.build import EngineParts
from argosy.engine.core.sampling_params import SamplingParams
from argosy.errors import ConfigError, EngineUnavailable
from argosy.observe.stats import RequestStats, StepStats

OnRound = Callable[[str, int, int], None]
"""Called with (what is measured, rounds done, rounds in all)."""


@dataclass(frozen=True, slots=True)
class OfflineSettings:
    """What to measure.

    Attributes:
        prefill_tokens: lengths of the single prompts whose prefill is measured.
        batch_sizes: sequences that decode together.
        prompt_tokens, output_tokens: of each of them.
        repetitions: rounds counted; `warmup` more come before and are not.
        seed: of the random prompts.
    """

    prefill_tokens: tuple[int, ...] = (512,)
    batch_sizes: tuple[int, ...] = (1, 8, 16, 32)
    prompt_tokens: int = 32
    output_tokens: int = 64
    repetitions: int = 5
    warmup: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a number out of range."""
        named = {
            "--prefill-tokens": min(self.prefill_tokens, default=1),
            "--batch-sizes": min(self.batch_sizes, default=1),
            "--prompt-tokens": self.prompt_tokens,
            "--repetitions": self.repetitions,
        }
        for flag, value in named.items():
            if value < 1:
                raise ConfigError(f"{flag} must be at least 1, got {value}")
        if self.warmup < 0:
            raise ConfigError(f"--warmup must not be negative, got {self.warmup}")
        if self.output_tokens < 3:
            raise ConfigError(
                f"--output-tokens must be at least 3, so that steps of decoding remain, got {self.output_tokens}"
            )
        if not self.prefill_tokens and not self.batch_sizes:
            raise ConfigError("nothing to measure: give --prefill-tokens or --batch-sizes")


@dataclass(frozen=True, slots=True)
class Step:
    """One step: wall time around it, and the part of it that the executor reports, in seconds."""

    wall_s: float
    executor_s: float
    num_tokens: int
    num_prefill_tokens: int
    num_generated_tokens: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Rounds of one setting.

    Attributes:
        tokens_per_s: one value a round.
        step_s, executor_s: medians over all counted steps; None where a round has no fixed kind of step.
        slowest_step_s: of all counted steps.
        overhead_share: 1 - executor time / wall time over all counted steps.
    """

    tokens_per_s: tuple[float, ...]
    step_s: float
    executor_s: float
    slowest_step_s: float
    overhead_share: float
    num_steps: int

    @classmethod
    def of(cls, rounds: Sequence[Sequence[Step]], tokens: Callable[[Step], int]) -> Measured:
        """From the counted steps of each round; `tokens` says what of a step counts."""
        steps = [step for steps in rounds for step in steps]
        wall_s = sum(step.wall_s for step in steps)
        return cls(
            tuple(sum(map(tokens, steps)) / sum(step.wall_s for step in steps) for steps in rounds),
            statistics.median(step.wall_s for step in steps),
            statistics.median(step.executor_s for step in steps),
            max(step.wall_s for step in steps),
            1.0 - sum(step.executor_s for step in steps) / wall_s,
            len(steps),
        )

    @property
    def median_tokens_per_s(self) -> float:
        """Over rounds."""
        return statistics.median(self.tokens_per_s)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "tokens_per_s": self.median_tokens_per_s,
            "rounds_tokens_per_s": list(self.tokens_per_s),
            "step_s": self.step_s,
            "executor_s": self.executor_s,
            "slowest_step_s": self.slowest_step_s,
            "overhead_share": self.overhead_share,
            "steps": self.num_steps,
        }


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """Prefill by prompt length, decode by batch size."""

    prefill: dict[int, Measured]
    decode: dict[int, Measured]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "prefill": [{"prompt_tokens": tokens, **m.as_dict()} for tokens, m in self.prefill.items()],
            "decode": [{"sequences": batch, **m.as_dict()} for batch, m in self.decode.items()],
        }


class StepSink:
    """A `StatsSink` that keeps the numbers of the last step."""

    def __init__(self) -> None:
        self.last: StepStats | None = None

    def on_step(self, stats: StepStats) -> None:
        """Keep them."""
        self.last = stats

    def on_request_finished(self, stats: RequestStats) -> None:
        """Nothing: requests are not what is measured."""


class OfflineBench:
    """Runs rounds on an engine nobody else drives.

    Args:
        parts: built with `sink`, without prefix caching, for as many sequences and tokens as the settings ask.
        sink: receives the engine's numbers.

    Raises:
        ConfigError: the engine is too small for the settings.
    """

    def __init__(self, parts: EngineParts, sink: StepSink, settings: OfflineSettings) -> None:
        self._parts = parts
        self._sink = sink
        self._settings = settings
        self._rng = Random(settings.seed)  # noqa: S311, it draws prompts, it guards nothing
        self._num_requests = 0
        info, widest = parts.info, max(settings.batch_sizes, default=1)
        decoding = settings.prompt_tokens + settings.output_tokens if settings.batch_sizes else 0
        longest = max(decoding, *(tokens + 1 for tokens in settings.prefill_tokens), 0)
        if longest > info.max_model_len:
            raise ConfigError(f"the longest sequence has {longest} tokens, this engine takes {info.max_model_len}")
        if widest > info.max_num_seqs:
            raise ConfigError(f"--batch-sizes: {widest} sequences, this engine runs {info.max_num_seqs} at once")
        blocks = -(-(settings.prompt_tokens + settings.output_tokens) // info.block_size)
        if widest * blocks > info.num_blocks * 0.98:
            raise ConfigError(
                f"--batch-sizes: {widest} sequences need {widest * blocks} KV blocks, this engine has {info.num_blocks}: "
                "raise --kv-cache-memory"
            )

    def run(self, on_round: OnRound | None = None) -> OfflineResult:
        """All settings, one after the other.

        Raises:
            EngineUnavailable: a step failed.
        """
        settings = self._settings
        prefill = {
            tokens: Measured.of(self._rounds(f"prefill of {tokens}", self.prefill, tokens, on_round), prefilled)
            for tokens in settings.prefill_tokens
        }
        decode = {
            batch: Measured.of(self._rounds(f"decode at {batch}", self.decode, batch, on_round), generated)
            for batch in settings.batch_sizes
        }
        return OfflineResult(prefill, decode)

    def prefill(self, prompt_tokens: int) -> list[Step]:
        """The steps from one prompt to its first token."""
        return self._drain(1, prompt_tokens, 1)

    def decode(self, batch: int) -> list[Step]:
        """The steps in which the whole batch decodes, of a round."""
        settings = self._settings
        steps = self._drain(batch, settings.prompt_tokens, settings.output_tokens)
        return [step for step in steps if step.num_prefill_tokens == 0 and step.num_tokens == batch]

    def _rounds(
        self, name: str, run: Callable[[int], list[Step]], argument: int, on_round: OnRound | None
    ) -> list[list[Step]]:
        total, rounds = self._settings.warmup + self._settings.repetitions, []
        for done in range(total):
            if on_round is not None:
                on_round(name, done, total)
            rounds.append(run(argument))
        if on_round is not None:
            on_round(name, total, total)
        return rounds[self._settings.warmup :]

    def _drain(self, batch: int, prompt_tokens: int, output_tokens: int) -> list[Step]:
        """Generate for `batch` random prompts, and return every step."""
        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        loop, steps = self._parts.step_loop, []
        for _ in range(batch):
            self._num_requests += 1
            prompt = tuple(self._rng.randrange(self._parts.info.logits_width) for _ in range(prompt_tokens))
            request = self._parts.admission.admit(
                f"bench-{self._num_requests}", prompt, params, arrival_s=self._parts.clock.now_s()
            )
            loop.add(request)
        while loop.has_work:
            begin_s = time.perf_counter()
            loop.step()
            wall_s = time.perf_counter() - begin_s
            stats = self._sink.last
            if not loop.is_alive or stats is None:
                raise EngineUnavailable(loop.loss or "the engine reported no step")
            steps.append(
                Step(wall_s, stats.duration_s, stats.num_tokens, stats.num_prefill_tokens, stats.num_generated_tokens)
            )
        return steps


def prefilled(step: Step) -> int:
    """Tokens computed in a step."""
    return step.num_tokens


def generated(step: Step) -> int:
    """Tokens generated in a step."""
    return step.num_generated_tokens
