"""What a load generator sends, and when: lengths from a trace or fixed, arrivals from a trace, a Poisson process or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from argosy.errors import ConfigError
from argosy.sim.workload.trace_request import Segment, TraceRequest, content_id


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request before it is sent.

    Attributes:
        index: 0, 1, … in order of sending.
        segments: the prompt as contents by id; prompts that begin with the same segments begin with the same text.
        output_tokens: how long the answer shall be.
        offset_s: when it is due, in seconds after the start; None where an earlier answer decides.
    """

    index: int
    segments: tuple[Segment, ...]
    output_tokens: int
    offset_s: float | None = None

    @property
    def prompt_tokens(self) -> int:
        """How long the prompt shall be."""
        return sum(segment.num_tokens for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Cut:
    """Longest prompt and output sent, in tokens; of longer ones the beginning is. None cuts nothing."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a limit below one token."""
        for flag, limit in (("--max-prompt-tokens", self.prompt_tokens), ("--max-output-tokens", self.output_tokens)):
            if limit is not None and limit < 1:
                raise ConfigError(f"{flag} must be at least 1, got {limit}")

    def prompt(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        """The leading segments, the last of them shortened."""
        if self.prompt_tokens is None:
            return tuple(segments)
        kept, room = [], self.prompt_tokens
        for segment in segments:
            if room > 0:
                kept.append(replace(segment, num_tokens=min(segment.num_tokens, room)))
                room -= segment.num_tokens
        return tuple(kept)

    def output(self, tokens: int) -> int:
        """The output's length."""
        return tokens if self.output_tokens is None else min(tokens, self.output_tokens)


def fixed_lengths(count: int, prompt_tokens: int, output_tokens: int) -> list[PlannedRequest]:
    """`count` requests of equal lengths, each prompt a text of its own.

    Raises:
        ConfigError: a number below 1.
    """
    named = {"--requests": count, "--input-tokens": prompt_tokens, "--output-tokens": output_tokens}
    for flag, value in named.items():
        if value < 1:
            raise ConfigError(f"{flag} must be at least 1, got {value}")
    return [
        PlannedRequest(index, (Segment(content_id("request", index), prompt_tokens),), output_tokens)
        for index in range(count)
    ]


def trace_lengths(trace: Sequence[TraceRequest], count: int | None, cut: Cut) -> list[PlannedRequest]:
    """The first `count` requests of a trace, or all, without their times.

    Raises:
        ConfigError: the trace holds fewer.
    """
    if count is not None and not 1 <= count <= len(trace):
        raise ConfigError(f"--requests must be within [1, {len(trace)}], the requests of the trace, got {count}")
    return [
        PlannedRequest(index, cut.prompt(request.segments), cut.output(request.output_tokens))
        for index, request in enumerate(trace[:count])
    ]


def poisson(requests: Sequence[PlannedRequest], rate_per_s: float, seed: int) -> list[PlannedRequest]:
    """The same requests, due after exponential gaps of mean 1/`rate_per_s`.

    Raises:
        ConfigError: the rate is not above 0.
    """
    if not rate_per_s > 0:
        raise ConfigError(f"--rate must be above 0 requests per second, got {rate_per_s:g}")
    rng, offset_s, due = Random(f"arrivals/{seed}"), 0.0, []  # noqa: S311, it draws gaps, it guards nothing
    for request in requests:
        offset_s += rng.expovariate(rate_per_s)
        due.append(replace(request, offset_s=offset_s))
    return due


def replay(requests: Sequence[PlannedRequest], trace: Sequence[TraceRequest], speed: float) -> list[PlannedRequest]:
    """The same requests, due as they came in the trace they were taken from, `speed` times as fast.

    Raises:
        ConfigError: the speed is not above 0.
    """
    if not speed > 0:
        raise ConfigError(f"--speed must be above 0, got {speed:g}")
    first_s = trace[0].arrival_s
    return [replace(request, offset_s=(trace[request.index].arrival_s - first_s) / speed) for request in requests]


def within(requests: Sequence[PlannedRequest], duration_s: float) -> list[PlannedRequest]:
    """Those due in the first `duration_s` seconds.

    Raises:
        ConfigError: none is.
    """
    kept = [request for request in requests if request.offset_s is not None and request.offset_s < duration_s]
    if not kept:
        raise ConfigError(f"no request is due within --duration {duration_s:g}: make it longer or the rate higher")
    return kept


def warmup_load(load: Sequence[PlannedRequest], count: int) -> list[PlannedRequest]:
    """`count` requests of the lengths of the first ones of a load, with texts of their own and negative indices."""
    picked = [load[index % len(load)] for index in range(count)]
    return [
        PlannedRequest(-1 - i, (Segment(content_id("warmup", i), p.prompt_tokens),), p.output_tokens)
        for i, p in enumerate(picked)
    ]
