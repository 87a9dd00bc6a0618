"""Plots of a run: distributions of latencies, and everything over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from argosy.observe.report import page
from argosy.observe.report.figures import seconds, share, si, significant, usd
from argosy.observe.report.page import Html
from argosy.observe.report.svg import Area, Axis, Line, plot
from argosy.sim.histogram import LogHistogram
from argosy.sim.run import SimulationRun
from argosy.sim.time_series import Window
from argosy.sim.timeline import FleetWindow

_UNITS = ((2 * 86_400.0, 86_400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
_NOTHING = page.NOTHING
# Points of a line at most; of quantiles, so few that each stands on about so many requests.
_MOST_POINTS, _REQUESTS_PER_POINT = 120, 20


class _Values(NamedTuple):
    """One value for each window of `width_s`, None where there is none."""

    width_s: float
    values: list[float | None]


class TimePlots:
    """Plots over the time of one run, all on the same axis."""

    def __init__(self, run: SimulationRun) -> None:
        self._results = run.results
        duration_s = run.results.duration_s
        self._unit_s, self._unit = next((unit_s, name) for least_s, unit_s, name in _UNITS if duration_s >= least_s)
        self._axis = Axis(f"simulated time, {self._unit}", 0.0, max(duration_s, 1e-9) / self._unit_s)
        self._steps = run.results.series.coarsened(_MOST_POINTS)
        self._fleet = run.timeline.windows.coarsened(_MOST_POINTS)
        points = run.results.e2e.count // _REQUESTS_PER_POINT
        self._answers = run.timeline.windows.coarsened(max(2, min(_MOST_POINTS, points)))

    def all(self) -> list[Html]:
        """Every plot; `NOTHING` in place of those that have nothing to show."""
        return [
            self._quantiles("TTFT", lambda window: window.ttft),
            self._quantiles("TPOT", lambda window: window.tpot),
            self._batch(),
            self._requests(),
            self._kv(),
            self._utilisation(),
            self._replicas(),
            self._cost(),
            self._power(),
        ]

    def _quantiles(self, name: str, of: Callable[[FleetWindow], LogHistogram]) -> Html:
        def values(at: float) -> _Values:
            return _Values(self._answers.width_s, [of(window).quantile(at) for window in self._answers.windows])

        lines = [("p50", values(0.5)), ("p99", values(0.99))]
        return self._plot(f"{name} of requests that end at that time", lines, "seconds", text=seconds)

    def _batch(self) -> Html:
        decode = self._of_steps(lambda w: (w.tokens - w.prefill_tokens) / w.steps if w.steps else None)
        prefill = self._of_steps(lambda w: w.prefill_tokens / w.steps if w.steps else None)
        rows = [
            (at, d, p)
            for at, d, p in zip(self._middles(decode), decode.values, prefill.values, strict=True)
            if d is not None and p is not None
        ]
        if not rows:
            return _NOTHING
        areas = (
            Area(tuple((at, 0.0, d) for at, d, _ in rows), "tokens of decoding sequences", 0),
            Area(tuple((at, d, d + p) for at, d, p in rows), "prompt tokens", 1),
        )
        y = Axis.over("tokens", [d + p for _, d, p in rows])
        title = "Composition of a mean step"
        return page.panel(title, plot(title, self._axis, y, (), areas=areas), page.key(("decode", "prefill")))

    def _requests(self) -> Html:
        width_s = self._steps.width_s
        lines = [
            ("in the system", self._of_fleet("in_system")),
            ("running", self._of_steps(lambda w: w.running / width_s)),
            ("waiting at a replica", self._of_steps(lambda w: w.waiting / width_s)),
            ("waiting for a replica", self._of_fleet("unrouted")),
        ]
        return self._plot("Requests", lines, "requests")

    def _kv(self) -> Html:
        def hits(window: Window) -> float | None:
            queries = window.prefix_query_tokens
            return window.prefix_hit_tokens / queries if queries else None

        lines = [
            ("blocks held by running sequences", self._of_steps(lambda w: w.kv_held / w.kv_blocks if w.kv_blocks else None)),
            ("blocks cached", self._of_steps(lambda w: w.kv_cached / w.kv_blocks if w.kv_blocks else None)),
            ("prompt tokens found cached", self._of_steps(hits)),
        ]
        return self._plot("KV of busy replicas, and hits of their prefix caches", lines, "share", text=share)

    def _utilisation(self) -> Html:
        replicas = self._of_fleet("replicas")
        values: list[float | None] = []
        for index, window in enumerate(self._steps.windows):
            at = int((index + 0.5) * self._steps.width_s / replicas.width_s)
            there = replicas.values[at] if at < len(replicas.values) else None
            # A step counts in the window where it ends, which can make that seem more than full.
            values.append(min(1.0, window.busy_s / (self._steps.width_s * there)) if there else None)
        lines = [("busy", _Values(self._steps.width_s, values))]
        return self._plot("Time in which a replica computes", lines, "share", text=share)

    def _replicas(self) -> Html:
        named = (("paid for", "replicas"), ("ready", "ready"), ("starting", "starting"))
        lines = [(name, self._of_fleet(field)) for name, field in named]
        if all(len(set(one.values)) == 1 for _, one in lines):
            return _NOTHING
        return self._plot("Replicas", lines, "replicas")

    def _cost(self) -> Html:
        price = self._of_fleet("usd_per_h")
        if self._results.usd is None or len(set(price.values)) == 1:
            return _NOTHING
        return self._plot("Price of the fleet", [("per hour", price)], "dollars per hour", text=usd)

    def _power(self) -> Html:
        if self._results.energy_j is None:
            return _NOTHING
        width_s = self._steps.width_s
        lines = [("devices", self._of_steps(lambda w: w.energy_j / width_s))]
        return self._plot("Power, board power while busy", lines, "watts", text=lambda value: si(value, "W"))

    def _of_fleet(self, name: str) -> _Values:
        return _Values(self._fleet.width_s, [window.mean(name) for window in self._fleet.windows])

    def _of_steps(self, value: Callable[[Window], float | None]) -> _Values:
        return _Values(self._steps.width_s, [value(window) for window in self._steps.windows])

    def _middles(self, of: _Values) -> list[float]:
        """Of its windows, in the unit of the axis; the last window may begin before the end and have its middle beyond."""
        return [min((index + 0.5) * of.width_s / self._unit_s, self._axis.high) for index in range(len(of.values))]

    def _plot(
        self, title: str, lines: Sequence[tuple[str, _Values]], label: str, *, text: Callable[[float], str] = significant
    ) -> Html:
        """Lines over time; None breaks a line. Those that are never above 0 are left out."""
        shown = [(name, one) for name, one in lines if any(one.values)]
        known = [value for _, one in shown for value in one.values if value is not None]
        if not known:
            return _NOTHING
        drawn = [
            Line(part, name, series, dashed=series % 2 == 1)
            for series, (name, one) in enumerate(shown)
            for part in _unbroken(zip(self._middles(one), one.values, strict=True))
        ]
        legend = page.key([name for name, _ in shown]) if len(shown) > 1 else _NOTHING
        return page.panel(title, plot(title, self._axis, Axis.over(label, known, text=text), (), drawn), legend)


def _unbroken(pairs: Iterable[tuple[float, float | None]]) -> list[tuple[tuple[float, float], ...]]:
    """The stretches without None; one of a single point becomes two, so that it shows."""
    stretches: list[list[tuple[float, float]]] = [[]]
    for at, value in pairs:
        if value is not None:
            stretches[-1].append((at, value))
        elif stretches[-1]:
            stretches.append([])
    return [tuple(one if len(one) > 1 else one * 2) for one in stretches if one]


def cumulative_plot(title: str, histograms: Sequence[tuple[str, LogHistogram]]) -> Html:
    """Share of requests that stay within a latency, on a logarithmic axis."""
    shown = [(name, histogram.cumulative()) for name, histogram in histograms if histogram.count]
    values = [value for _, pairs in shown for value, _ in pairs if value > 0.0]
    if not values:
        return _NOTHING
    x = Axis.over("seconds", values, log=True, text=seconds)
    lines = []
    for series, (name, pairs) in enumerate(shown):
        points: list[tuple[float, float]] = [(x.low, 0.0)]
        for value, reached in pairs:
            points += [(max(value, x.low), points[-1][1]), (max(value, x.low), reached)]
        lines.append(Line((*points, (x.high, 1.0)), name, series, dashed=series % 2 == 1))
    y = Axis("share of requests within", 0.0, 1.0, text=share)
    return page.panel(title, plot(title, x, y, (), lines), page.key([name for name, _ in shown]))
