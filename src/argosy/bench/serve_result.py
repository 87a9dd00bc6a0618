"""From records to figures: throughput, latencies, errors, goodput, and whether the generator itself kept time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from argosy.bench.generator import Run
from argosy.bench.percentiles import Percentiles
from argosy.bench.records import RequestRecord
from argosy.bench.slo import ServiceLevel
from argosy.errors import MeasurementError


@dataclass(frozen=True, slots=True)
class CountedRecord:
    """A record with the number of tokens of its answer, and where that number comes from: usage, tokenizer or events."""

    record: RequestRecord
    output_tokens: int
    counted_by: str


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of answered requests, in seconds; None where there is nothing to measure.

    Attributes:
        ttft: from due to the first text.
        tpot: mean time per output token after the first, one value a request.
        itl: between two successive events with text, one value each; a server may put several tokens in one.
        e2e: from due to complete.
    """

    ttft: Percentiles | None
    tpot: Percentiles | None
    itl: Percentiles | None
    e2e: Percentiles | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        named = {"ttft_s": self.ttft, "tpot_s": self.tpot, "itl_s": self.itl, "e2e_s": self.e2e}
        return {name: None if value is None else value.as_dict() for name, value in named.items()}


@dataclass(frozen=True, slots=True)
class Goodput:
    """Answered requests that kept the service level: share of all sent, and how many a second."""

    share: float
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class ServeResult:
    """Figures of one run.

    Attributes:
        duration_s: from the start of the load to the last answer.
        errors: kind of failure to how often; `messages` has one line for each kind.
        prompt_tokens, output_tokens: of answered requests; prompts as the server reports them, else as planned.
        prompt_mismatches: answered requests whose prompt the server counted otherwise than planned.
        short_outputs: answers with fewer tokens than were asked for.
        lateness, loop_lag: of the generator itself, in seconds.
    """

    duration_s: float
    num_sent: int
    counted: tuple[CountedRecord, ...]
    errors: dict[str, int]
    messages: dict[str, str]
    prompt_tokens: int
    output_tokens: int
    prompt_mismatches: int
    short_outputs: int
    latencies: Latencies
    goodput: Goodput | None
    lateness: Percentiles | None
    loop_lag: Percentiles | None

    @property
    def requests_per_s(self) -> float:
        """Answered requests per second."""
        return len(self.counted) / self.duration_s

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens of answered requests per second."""
        return self.output_tokens / self.duration_s

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without the single requests."""
        sources = Counter(entry.counted_by for entry in self.counted)
        return {
            "duration_s": self.duration_s,
            "requests": {
                "sent": self.num_sent,
                "answered": len(self.counted),
                "failed": sum(self.errors.values()),
                "errors": self.errors,
                "error_messages": self.messages,
                "short_outputs": self.short_outputs,
                "prompt_mismatches": self.prompt_mismatches,
            },
            "throughput": {
                "requests_per_s": self.requests_per_s,
                "output_tokens_per_s": self.output_tokens_per_s,
                "total_tokens_per_s": (self.prompt_tokens + self.output_tokens) / self.duration_s,
                "prompt_tokens": self.prompt_tokens,
                "output_tokens": self.output_tokens,
                "output_tokens_counted_by": dict(sources),
            },
            "latency": self.latencies.as_dict(),
            "goodput": None
            if self.goodput is None
            else {"share": self.goodput.share, "requests_per_s": self.goodput.requests_per_s},
            "generator": {
                "lateness_s": None if self.lateness is None else self.lateness.as_dict(),
                "loop_lag_s": None if self.loop_lag is None else self.loop_lag.as_dict(),
            },
        }


def summarise(run: Run, *, slo: ServiceLevel | None = None, count_output: Callable[[str], int] | None = None) -> ServeResult:
    """The figures of a run. `count_output` counts the answers of a server that reports no usage; else events are counted."""
    answered = [_counted(record, count_output) for record in run.records if record.is_good]
    failed = [record for record in run.records if not record.is_good]
    duration_s = max((record.done_s for record in run.records), default=run.started_s) - run.started_s
    goodput = None
    if slo is not None:
        kept = sum(_keeps(slo, entry) for entry in answered)
        goodput = Goodput(kept / max(1, len(run.records)), kept / duration_s if duration_s else 0.0)
    return ServeResult(
        duration_s=max(duration_s, 1e-9),
        num_sent=len(run.records),
        counted=tuple(answered),
        errors=dict(Counter(record.error for record in failed)),
        messages={record.error: record.message for record in reversed(failed)},
        prompt_tokens=sum(_prompt_tokens(entry.record) for entry in answered),
        output_tokens=sum(entry.output_tokens for entry in answered),
        prompt_mismatches=sum(_prompt_tokens(e.record) != e.record.planned.prompt_tokens for e in answered),
        short_outputs=sum(e.output_tokens < e.record.planned.output_tokens for e in answered),
        latencies=_latencies(answered),
        goodput=goodput,
        lateness=Percentiles.of(run.lateness_s),
        loop_lag=Percentiles.of(run.loop_lag_s),
    )


def check_generator(result: ServeResult, max_lateness_s: float) -> None:
    """Refuse a run in which the generator itself was late: its figures would describe the generator.

    Raises:
        MeasurementError: the p99 of lateness or of the event loop's lag is above `max_lateness_s`.
    """
    for what, measured in (("sent requests", result.lateness), ("read its clock", result.loop_lag)):
        if measured is not None and measured.p99 > max_lateness_s:
            raise MeasurementError(
                f"the load generator {what} up to {measured.p99 * 1e3:.0f} ms late (p99), more than the "
                f"{max_lateness_s * 1e3:.0f} ms of --max-lateness: its figures would describe the generator; give it a core "
                "of its own, lower the load, or allow more"
            )


def _counted(record: RequestRecord, count_output: Callable[[str], int] | None) -> CountedRecord:
    if record.output_tokens is not None:
        return CountedRecord(record, record.output_tokens, "usage")
    if count_output is not None:
        return CountedRecord(record, count_output(record.text), "tokenizer")
    return CountedRecord(record, len(record.arrivals_s), "events")


def _keeps(slo: ServiceLevel, entry: CountedRecord) -> bool:
    record = entry.record
    return slo.is_kept(ttft_s=record.ttft_s, tpot_s=record.tpot_s(entry.output_tokens), e2e_s=record.e2e_s)


def _prompt_tokens(record: RequestRecord) -> int:
    return record.planned.prompt_tokens if record.prompt_tokens is None else record.prompt_tokens


def _latencies(answered: Sequence[CountedRecord]) -> Latencies:
    tpot_s = [entry.record.tpot_s(entry.output_tokens) for entry in answered]
    gaps_s = [
        later - earlier
        for entry in answered
        for earlier, later in zip(entry.record.arrivals_s, entry.record.arrivals_s[1:], strict=False)
    ]
    return Latencies(
        ttft=Percentiles.of([entry.record.ttft_s for entry in answered]),
        tpot=Percentiles.of([value for value in tpot_s if value is not None]),
        itl=Percentiles.of(gaps_s),
        e2e=Percentiles.of([entry.record.e2e_s for entry in answered]),
    )


def rows(run: Run, result: ServeResult) -> list[dict[str, Any]]:
    """One flat object per request for JSON; times in seconds after the start of the load."""
    tokens = {entry.record.planned.index: entry.output_tokens for entry in result.counted}
    return [
        {
            "index": r.planned.index,
            "planned_prompt_tokens": r.planned.prompt_tokens,
            "planned_output_tokens": r.planned.output_tokens,
            "prompt_tokens": r.prompt_tokens,
            "output_tokens": tokens.get(r.planned.index),
            "due_s": round(r.due_s - run.started_s, 6),
            "sent_s": round(r.sent_s - run.started_s, 6),
            "first_text_s": round(r.arrivals_s[0] - run.started_s, 6) if r.arrivals_s else None,
            "last_text_s": round(r.arrivals_s[-1] - run.started_s, 6) if r.arrivals_s else None,
            "done_s": round(r.done_s - run.started_s, 6),
            "error": r.error,
        }
        for r in run.records
    ]
