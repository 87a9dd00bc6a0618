"""Sources made of another source: a part of its time, other rates, other lengths, other arrivals, repetition.

Each passes what ends on to the source it wraps, in that source's own time, so that conversations keep going.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from argosy.errors import ConfigError
from argosy.sim.workload.lengths import cut_lengths, scaled_lengths
from argosy.sim.workload.trace_request import OpenLoop, Source, TraceRequest


class Window:
    """The arrivals of `source` in [from_s, to_s), moved so that `from_s` becomes `start_s`.

    What arrives before `from_s` is passed over. What follows from a request inside, but arrives at `to_s` or later, is
    dropped.
    """

    def __init__(self, source: Source, *, from_s: float = 0.0, to_s: float | None = None, start_s: float = 0.0) -> None:
        if to_s is not None and to_s <= from_s:
            raise ConfigError(f"to_s must be above from_s, got {to_s:g} and {from_s:g}")
        self._source = source
        self._from_s, self._to_s, self._shift_s = from_s, to_s, start_s - from_s

    def __iter__(self) -> Iterator[TraceRequest]:
        """The arrivals inside."""
        for request in self._source:
            if self._to_s is not None and request.arrival_s >= self._to_s:
                return
            if request.arrival_s >= self._from_s:
                yield self._moved(request)

    def on_finish(self, request: TraceRequest, now_s: float) -> Iterable[TraceRequest]:
        """What follows, as far as it is inside."""
        following = self._source.on_finish(request, now_s - self._shift_s)
        return [self._moved(item, now_s) for item in following if self._to_s is None or item.arrival_s < self._to_s]

    def _moved(self, request: TraceRequest, earliest_s: float = 0.0) -> TraceRequest:
        # Moving there and back may lose the last bit; nothing arrives before its cause.
        return request if self._shift_s == 0.0 else request.arriving_at(max(earliest_s, request.arrival_s + self._shift_s))


class RateScaled:
    """`source` with its time compressed: `factor` times as many requests a second; times to think shrink alike."""

    def __init__(self, source: Source, factor: float) -> None:
        self._source, self._factor = source, factor

    def __iter__(self) -> Iterator[TraceRequest]:
        """The arrivals, earlier by the factor."""
        return (self._compressed(request) for request in self._source)

    def on_finish(self, request: TraceRequest, now_s: float) -> Iterable[TraceRequest]:
        """What follows, earlier by the factor."""
        return [self._compressed(item, now_s) for item in self._source.on_finish(request, now_s * self._factor)]

    def _compressed(self, request: TraceRequest, earliest_s: float = 0.0) -> TraceRequest:
        # Multiplying and dividing again may lose the last bit; nothing arrives before its cause.
        return request.arriving_at(max(earliest_s, request.arrival_s / self._factor))


class Mapped:
    """`source` with every request changed by `change`, which keeps its id and its arrival."""

    def __init__(self, source: Source, change: Callable[[TraceRequest], TraceRequest]) -> None:
        self._source, self._change = source, change

    def __iter__(self) -> Iterator[TraceRequest]:
        """The arrivals, changed."""
        return map(self._change, self._source)

    def on_finish(self, request: TraceRequest, now_s: float) -> Iterable[TraceRequest]:
        """What follows, changed."""
        return [self._change(item) for item in self._source.on_finish(request, now_s)]


def with_lengths(source: Source, prompt_factor: float, output_factor: float) -> Source:
    """`source` with its prompts and answers longer or shorter; see `lengths.scaled_lengths`."""
    return Mapped(source, lambda request: scaled_lengths(request, prompt_factor, output_factor))


def with_limits(source: Source, max_prompt_tokens: int | None, max_output_tokens: int | None) -> Source:
    """`source` with longer prompts and answers cut; see `lengths.cut_lengths`."""
    return Mapped(source, lambda request: cut_lengths(request, max_prompt_tokens, max_output_tokens))


def tagged(source: Source, tenant: str | None, priority: int | None, timeout_s: float | None) -> Source:
    """`source` with those of the three that are not None in place of what its requests say."""
    stated = {"tenant": tenant, "priority": priority, "timeout_s": timeout_s}
    changes = {name: value for name, value in stated.items() if value is not None}
    if not changes:
        return source
    return Mapped(source, lambda request: replace(request, **changes))  # type: ignore[arg-type]


class Retimed:
    """The requests of an open loop in their order, at other times; ends with the first of the two that ends."""

    def __init__(self, source: Source, times: Iterator[float]) -> None:
        self._source, self._times = source, times

    def __iter__(self) -> Iterator[TraceRequest]:
        """The requests at the given times."""
        # The requests come first: a time is only drawn for a request that is there.
        return (request.arriving_at(time_s) for request, time_s in zip(self._source, self._times, strict=False))

    def on_finish(self, request: TraceRequest, now_s: float) -> Iterable[TraceRequest]:
        """What follows in the source."""
        return self._source.on_finish(request, now_s)


class Limited:
    """The first `max_requests` requests of `source`, in the order in which it gives them."""

    def __init__(self, source: Source, max_requests: int) -> None:
        self._source, self._left = source, max_requests

    def __iter__(self) -> Iterator[TraceRequest]:
        """The arrivals, until there were enough requests."""
        arrivals = iter(self._source)
        while self._left > 0 and (request := next(arrivals, None)) is not None:
            self._left -= 1
            yield request

    def on_finish(self, request: TraceRequest, now_s: float) -> Iterable[TraceRequest]:
        """What follows, until there were enough requests."""
        following = list(self._source.on_finish(request, now_s))[: self._left]
        self._left -= len(following)
        return following


def repeated(one_pass: Callable[[int], Source], times: int, period_s: float | None) -> Source:
    """An open loop `times` times over; pass k, from 0, is `one_pass(k)` and starts `period_s` after pass k - 1.

    Args:
        period_s: None makes a pass last until its last arrival and the mean gap between its arrivals beyond.

    Raises:
        ConfigError: while iterating, if a pass has arrivals at or after `period_s`, or if `period_s` is None and a pass has
            no two arrivals at different times.
    """
    return OpenLoop(_passes(one_pass, times, period_s))


def _passes(one_pass: Callable[[int], Source], times: int, period_s: float | None) -> Iterator[TraceRequest]:
    start_s = 0.0
    for number in range(times):
        first_s, last_s, count = 0.0, 0.0, 0
        for request in one_pass(number):
            first_s, last_s, count = (first_s if count else request.arrival_s), request.arrival_s, count + 1
            if period_s is not None and last_s >= period_s:
                raise ConfigError(f"a pass has an arrival at {last_s:g} s, not before its period_s of {period_s:g}")
            yield request.arriving_at(start_s + last_s)
        if period_s is not None:
            start_s += period_s
        elif number + 1 < times:
            if last_s <= first_s:
                raise ConfigError("a trace whose requests all arrive at one moment needs a period_s to be repeated")
            start_s += last_s + (last_s - first_s) / (count - 1)
