"""Plots of a run: distributions of latencies, and everything over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from argosy.observe.report import page
from argosy.observe.report.figures import seconds, share, si, significant, usd
from argosy.observe.report.page import Html
from argosy.observe.report.svg import Area, Axis, Line, plot
from argosy.sim.histogram import LogHistogram
from argosy.sim.run import SimulationRun
from argosy.sim.time_series import Window
from argosy.sim.timeline import FleetWindow

Values = Sequence[float | None]
_UNITS = ((2 * 86_400.0, 86_400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
_NOTHING = page.NOTHING


class TimePlots:
    """Plots over the time of one run, all on the same axis."""

    def __init__(self, run: SimulationRun) -> None:
        self._run = run
        duration_s = run.results.duration_s
        self._unit_s, self._unit = next((unit_s, name) for least_s, unit_s, name in _UNITS if duration_s >= least_s)
        self._axis = Axis(f"simulated time, {self._unit}", 0.0, max(duration_s, 1e-9) / self._unit_s)

    def all(self) -> list[Html]:
        """Every plot for which there is something to show."""
        return [
            self._quantiles("TTFT", lambda window: window.ttft),
            self._quantiles("TPOT", lambda window: window.tpot),
            self._batch(),
            self._requests(),
            self._kv(),
            self._replicas(),
            self._utilisation(),
            self._cost(),
            self._power(),
        ]

    def _quantiles(self, name: str, of: Callable[[FleetWindow], LogHistogram]) -> Html:
        def values(at: float) -> Values:
            return self._fleet(lambda window: of(window).quantile(at))

        lines = [("p50", values(0.5)), ("p99", values(0.99))]
        return self._plot(f"{name} of requests answered at that time", lines, "seconds", text=seconds)

    def _batch(self) -> Html:
        decode = self._busy(lambda w: (w.tokens - w.prefill_tokens) / w.steps if w.steps else None)
        prefill = self._busy(lambda w: w.prefill_tokens / w.steps if w.steps else None)
        starts = self._starts(self._run.results.series.width_s, len(decode))
        points = [(at, d, p) for at, d, p in zip(starts, decode, prefill, strict=True) if d is not None and p is not None]
        if not points:
            return _NOTHING
        areas = (
            Area(tuple((at, 0.0, d) for at, d, _ in points), "tokens of decoding sequences", 0),
            Area(tuple((at, d, d + p) for at, d, p in points), "prompt tokens", 1),
        )
        y = Axis.over("tokens of a mean step", [d + p for _, d, p in points])
        svg = plot("Composition of a mean step over time", self._axis, y, (), areas=areas)
        return page.figure(svg, "What a mean step computes.", page.key(("decode", "prefill")))

    def _requests(self) -> Html:
        lines = [
            ("in the system", self._fleet(lambda window: window.mean("in_system"))),
            ("running", self._busy(lambda w: w.running / self._run.results.series.width_s)),
            ("waiting at a replica", self._busy(lambda w: w.waiting / self._run.results.series.width_s)),
            ("waiting for a replica", self._fleet(lambda window: window.mean("unrouted"))),
        ]
        return self._plot("Requests, of the whole fleet", lines, "requests")

    def _kv(self) -> Html:
        lines = [
            ("held by running sequences", self._busy(lambda w: w.kv_held / w.kv_blocks if w.kv_blocks else None)),
            ("cached", self._busy(lambda w: w.kv_cached / w.kv_blocks if w.kv_blocks else None)),
            (
                "prompt tokens found cached",
                self._busy(lambda w: w.prefix_hit_tokens / w.prefix_query_tokens if w.prefix_query_tokens else None),
            ),
        ]
        return self._plot("KV blocks of busy replicas, and hits of their prefix caches", lines, "share", text=share)

    def _replicas(self) -> Html:
        lines = [
            ("all that are paid for", self._fleet(lambda window: window.mean("replicas"))),
            ("ready", self._fleet(lambda window: window.mean("ready"))),
            ("starting", self._fleet(lambda window: window.mean("starting"))),
        ]
        return self._plot("Replicas", lines, "replicas")

    def _utilisation(self) -> Html:
        series = self._run.results.series
        values: list[float | None] = []
        for at, window in enumerate(series.windows):
            replicas = self._replicas_at((at + 0.5) * series.width_s)
            values.append(window.busy_s / (series.width_s * replicas) if replicas else None)
        return self._plot(
            "Share of time in which a replica computes, mean over the fleet", [("busy", values)], "share", text=share
        )

    def _cost(self) -> Html:
        if self._run.results.usd is None:
            return _NOTHING
        lines = [("per hour", self._fleet(lambda window: window.mean("usd_per_h")))]
        return self._plot("Price of the fleet", lines, "dollars per hour", text=usd)

    def _power(self) -> Html:
        if self._run.results.energy_j is None:
            return _NOTHING
        width_s = self._run.results.series.width_s
        lines = [("devices", self._busy(lambda w: w.energy_j / width_s))]
        return self._plot("Power of busy devices, at board power", lines, "watts", text=lambda value: si(value, "W"))

    def _replicas_at(self, at_s: float) -> float:
        windows = self._run.timeline.windows
        index = min(int(at_s / windows.width_s), len(windows.windows) - 1)
        while index >= 0 and not windows.windows[index].samples:
            index -= 1
        return 0.0 if index < 0 else windows.windows[index].mean("replicas") or 0.0

    def _fleet(self, value: Callable[[FleetWindow], float | None]) -> Values:
        return [value(window) for window in self._run.timeline.windows.windows]

    def _busy(self, value: Callable[[Window], float | None]) -> Values:
        return [value(window) for window in self._run.results.series.windows]

    def _starts(self, width_s: float, count: int) -> list[float]:
        end = self._axis.high
        return [min((index + 0.5) * width_s / self._unit_s, end) for index in range(count)]

    def _plot(
        self,
        title: str,
        lines: Sequence[tuple[str, Values]],
        label: str,
        *,
        text: Callable[[float], str] = significant,
    ) -> Html:
        """Lines over time; None breaks a line. Values stand in the middle of their window."""
        shown = [(name, values) for name, values in lines if any(values)]
        known = [value for _, values in shown for value in values if value is not None]
        if not known:
            return _NOTHING
        drawn = []
        for series, (name, values) in enumerate(shown):
            fleet = len(values) == len(self._run.timeline.windows.windows)
            width_s = self._run.timeline.windows.width_s if fleet else self._run.results.series.width_s
            pairs = zip(self._starts(width_s, len(values)), values, strict=True)
            drawn += [Line(part, name, series, dashed=series % 2 == 1) for part in _unbroken(pairs)]
        svg = plot(title, self._axis, Axis.over(label, known, text=text), (), drawn)
        legend = page.key([name for name, _ in shown]) if len(shown) > 1 else _NOTHING
        return page.figure(svg, f"{title}.", legend)


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
    return page.figure(plot(title, x, y, (), lines), f"{title}.", page.key([name for name, _ in shown]))
