"""A run under load as one HTML page: figures, distributions of latency, throughput and requests in flight over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from argosy.bench.generator import Run
from argosy.bench.percentiles import Percentiles
from argosy.bench.serve_result import ServeResult
from argosy.observe.report import page
from argosy.observe.report.figures import seconds, share, significant
from argosy.observe.report.page import Html
from argosy.observe.report.svg import Axis, Line, plot

_BINS = 60
_CURVE_POINTS = 240
_LEAST_S = 1e-4
"""Latencies below are drawn here: a logarithmic axis has no zero."""


def serve_report(title: str, settings: Sequence[tuple[str, str]], run: Run, result: ServeResult) -> str:
    """A page that stands on its own. `settings` says in words what was run."""
    parts = [
        page.cards(_cards(result)),
        page.section("Latency", _latency_table(result), *_distributions(result)),
        page.section("Over time", *_over_time(run, result)),
        page.section("Requests", _requests(result)),
        page.section("How it was measured", page.table(("", ""), settings), page.bullets(_definitions(result))),
    ]
    return page.page(title, *parts)


def _cards(result: ServeResult) -> list[tuple[str, str]]:
    latencies = result.latencies
    figures = [
        ("output tokens/s", significant(result.output_tokens_per_s)),
        ("requests/s", significant(result.requests_per_s)),
        ("TTFT p50", seconds(latencies.ttft.p50 if latencies.ttft else None)),
        ("TTFT p99", seconds(latencies.ttft.p99 if latencies.ttft else None)),
        ("TPOT p50", seconds(latencies.tpot.p50 if latencies.tpot else None)),
        ("failed", f"{sum(result.errors.values())} of {result.num_sent}"),
    ]
    if result.goodput is not None:
        figures.append(("keep the SLO", share(result.goodput.share)))
    return figures


def latency_rows(result: ServeResult) -> list[tuple[str, ...]]:
    """Mean and percentiles of each latency as text, those that were measured."""
    named: tuple[tuple[str, Percentiles | None], ...] = (
        ("TTFT", result.latencies.ttft),
        ("TPOT", result.latencies.tpot),
        ("ITL", result.latencies.itl),
        ("E2E", result.latencies.e2e),
    )
    return [
        (name, *(seconds(value) for value in (p.mean, p.p50, p.p90, p.p95, p.p99, p.max)))
        for name, p in named
        if p is not None
    ]


def _latency_table(result: ServeResult) -> Html:
    return page.table(("", "mean", "p50", "p90", "p95", "p99", "max"), latency_rows(result), numbers=range(1, 7))


def _distributions(result: ServeResult) -> list[Html]:
    answered = [entry.record for entry in result.counted]
    if not answered:
        return []
    tpot_s = [value for e in result.counted if (value := e.record.tpot_s(e.output_tokens)) is not None]
    named = [("TTFT", [r.ttft_s for r in answered]), ("TPOT", tpot_s), ("E2E", [r.e2e_s for r in answered])]
    drawn = [(name, sorted(max(_LEAST_S, value) for value in values)) for name, values in named if values]
    x = Axis.over("seconds", [value for _, values in drawn for value in (values[0], values[-1])], log=True, text=seconds)
    y = Axis("share of requests", 0.0, 1.0, text=share)
    lines = [Line(_cumulative(values), name, series, label=name) for series, (name, values) in enumerate(drawn)]
    svg = plot("Cumulative distributions of latencies", x, y, (), lines)
    return [page.figure(svg, "Share of requests whose latency is at most so long.", page.key([name for name, _ in drawn]))]


def _cumulative(ordered: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """At most `_CURVE_POINTS` points of the distribution function, first and last included."""
    picks = sorted({round(i * (len(ordered) - 1) / (_CURVE_POINTS - 1)) for i in range(_CURVE_POINTS)})
    points = [(ordered[i], (i + 1) / len(ordered)) for i in picks]
    return ((points[0][0], 0.0), *points)


def _over_time(run: Run, result: ServeResult) -> list[Html]:
    if not result.counted:
        return [page.paragraph("No request was answered.")]
    width_s = result.duration_s / _BINS
    times, weights = _token_times(run, result)
    tokens, edges = np.histogram(times, bins=_BINS, range=(0.0, result.duration_s), weights=weights)
    rate = tuple((float(edge) + width_s / 2, float(count) / width_s) for edge, count in zip(edges[:-1], tokens, strict=True))
    x = Axis.over("seconds after the start", [result.duration_s])
    throughput = plot(
        "Output tokens per second over time",
        x,
        Axis.over("output tokens/s", [value for _, value in rate]),
        (),
        [Line(rate, f"output tokens/s in intervals of {seconds(width_s)}")],
    )
    flying = requests_in_flight(run, result.duration_s)
    in_flight = plot(
        "Requests in flight over time",
        x,
        Axis.over("requests in flight", [value for _, value in flying]),
        (),
        [Line(flying, "requests sent and not yet answered")],
    )
    return [
        page.figure(throughput, f"Output tokens per second, in intervals of {seconds(width_s)}."),
        page.figure(in_flight, "Requests sent and not yet complete."),
    ]


def _token_times(run: Run, result: ServeResult) -> tuple[list[float], list[float]]:
    """When text came, and how many tokens each event stands for: an answer's tokens, spread evenly over its events."""
    times: list[float] = []
    weights: list[float] = []
    for entry in result.counted:
        arrivals_s = entry.record.arrivals_s
        times += [arrival_s - run.started_s for arrival_s in arrivals_s]
        weights += [entry.output_tokens / len(arrivals_s)] * len(arrivals_s)
    return times, weights


def requests_in_flight(run: Run, duration_s: float) -> tuple[tuple[float, float], ...]:
    """(seconds after the start, requests sent and not yet done) at evenly spaced moments, first and last included."""
    sent = np.sort([record.sent_s - run.started_s for record in run.records])
    done = np.sort([record.done_s - run.started_s for record in run.records])
    moments = np.linspace(0.0, duration_s, _CURVE_POINTS)
    counts = np.searchsorted(sent, moments, side="right") - np.searchsorted(done, moments, side="right")
    return tuple((float(moment), float(count)) for moment, count in zip(moments, counts, strict=True))


def _requests(result: ServeResult) -> Html:
    rows = [
        ("sent", str(result.num_sent), ""),
        ("answered", str(len(result.counted)), ""),
        *((kind, str(count), result.messages[kind]) for kind, count in sorted(result.errors.items())),
    ]
    return page.table(("", "requests", "for example"), rows, numbers=(1,), wide=(2,))


def _definitions(result: ServeResult) -> list[str]:
    lines = [
        "TTFT: from the moment a request was due to its first text; E2E to the end of its stream. Where requests are due at "
        "fixed times, a generator or server that falls behind lengthens them.",
        "TPOT: time from first to last text over the tokens after the first, one value a request.",
        "ITL: between two successive events with text, one value each; a server may put several tokens in one.",
    ]
    for name, measured in (("requests were sent", result.lateness), ("timers fired", result.loop_lag)):
        if measured is not None and math.isfinite(measured.p99):
            lines.append(f"In the generator {name} late by {seconds(measured.p50)} at p50, {seconds(measured.p99)} at p99.")
    return lines


def settings_rows(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Settings as text, those that say something."""
    return [(name.replace("_", " "), str(value)) for name, value in settings.items() if value not in (None, "", {})]
