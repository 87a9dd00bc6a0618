"""Parts that the planner's HTML reports have in common: roofline, memory per device, provenance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from argosy.cost.device import Device, Precision
from argosy.cost.efficiency import Constants
from argosy.cost.quantity import Quantity
from argosy.observe.report import page
from argosy.observe.report.figures import gib, seconds, share, si, significant
from argosy.observe.report.page import Html
from argosy.observe.report.svg import Axis, Bar, Line, Point, plot, stacked_bars
from argosy.planner.grades import GRADE_MARKS, GRADE_MEANINGS, grade_legend
from argosy.planner.offers import Offer
from argosy.planner.roofline import OpPoint, StepPoints

_LABELLED = 4
_LISTED = 8


def roofline(steps: Sequence[StepPoints]) -> Html:
    """The ops of `steps`, all on one device, under its roofs; the area of a mark grows with its share of the step's time."""
    device = steps[0].device
    placed = [(number, point) for number, step in enumerate(steps) for point in step.points if point.flops and point.bytes]
    used = sorted({point.precision for _, point in placed if point.precision in device.peak})
    ridges = [device.ridge_flop_per_byte(precision) for precision in used]
    intensities = [point.intensity for _, point in placed]
    x = Axis.over("FLOP per byte", [*intensities, *ridges, 8 * max(*intensities, *ridges)], log=True)
    rates = [point.flop_per_s for _, point in placed] + [device.peak_flop_per_s(precision) for precision in used]
    y = Axis.over("FLOP/s of one device", rates, log=True, text=lambda value: si(value, ""))
    points = [
        Point(
            point.intensity,
            point.flop_per_s,
            _op_title(steps[number], point),
            series=number,
            radius=3.0 + 15.0 * point.share**0.5,
            label=point.name if point in steps[number].points[:_LABELLED] else "",
        )
        for number, point in placed
    ]
    return Html(plot(f"Roofline of {device.name}", x, y, points, _roofs(device, used, x, y)))


def _roofs(device: Device, used: Sequence[Precision], x: Axis, y: Axis) -> list[Line]:
    bandwidth = device.memory_bandwidth.value
    start = max(x.low, y.low / bandwidth)
    lines = []
    for precision in used:
        peak = device.peak_flop_per_s(precision)
        ridge = device.ridge_flop_per_byte(precision)
        label = f"{precision} {si(peak, 'FLOP/s')}"
        lines.append(Line(((ridge, peak), (x.high, peak)), f"dense peak: {label}", series=7, label=label))
    top = max(device.ridge_flop_per_byte(precision) for precision in used)
    slope = ((start, start * bandwidth), (top, top * bandwidth))
    return [Line(slope, f"memory bandwidth {si(bandwidth, 'B/s')}", series=7), *lines]


def _op_title(step: StepPoints, point: OpPoint) -> str:
    rate = f"{significant(point.intensity)} FLOP/byte, {si(point.flop_per_s, 'FLOP/s')} in {point.precision}"
    return f"{point.name} ({step.step}): {seconds(point.seconds)}, {share(point.share)} of the step, {point.binding}; {rate}"


def op_table(step: StepPoints) -> Html:
    """The ops that take most of a step's time."""
    rows = [
        (
            point.name,
            str(point.kind),
            seconds(point.seconds),
            share(point.share),
            str(point.binding),
            si(point.flops, "FLOP"),
            si(point.bytes, "B"),
            significant(point.intensity) if point.flops and point.bytes else "–",
        )
        for point in step.points[:_LISTED]
    ]
    columns = ("op", "kind", "time", "share", "binds", "work", "moved", "FLOP/byte")
    return page.table(columns, rows, numbers=(2, 3, 5, 6, 7))


def memory_bars(bars: Sequence[Bar]) -> Html:
    """Memory of one device each, with the colours' key."""
    names = list(dict.fromkeys(name for bar in bars for name, value in bar.parts if name != "free" and value > 0))
    svg = stacked_bars("Memory of one device", bars, gib)
    return page.figure(svg, "Bytes on the fullest device of each.", page.key(names))


def provenance(offers: Iterable[Offer], constants_on: Callable[[str], Constants]) -> Html:
    """Every number of the devices, prices and constants that the figures stand on, with its source."""
    rows: list[tuple[str, str, str, str, str]] = []
    for offer in offers:
        device = offer.device
        named: list[tuple[str, Quantity]] = [(f"dense {precision}", peak) for precision, peak in device.peak.items()]
        named += [("memory", device.memory), ("memory bandwidth", device.memory_bandwidth)]
        for link in (offer.topology.scale_up, offer.topology.scale_out):
            if link is not None:
                named += [(link.name, link.bandwidth), (f"{link.name} latency", link.latency)]
        named += [("board power", device.power)] if device.power is not None else []
        rows += [(f"{device.name}: {name}", *_sourced(quantity)) for name, quantity in named]
        price, oldest = offer.price, offer.price.oldest or "–"
        span = f"{price.low_usd_per_h:g} to {price.high_usd_per_h:g} $/h"
        origin = "catalogue, all known sellers" if offer.price.oldest else "as stated"
        constants = constants_on(device.name)
        grade = f"{GRADE_MARKS[constants.grade]} {GRADE_MEANINGS[constants.grade]}"
        rows.append(
            (f"{device.name}: efficiencies", _fit(constants), grade, constants.source, constants.as_of or "–"),
        )
        rows.append(
            (f"{device.name}: price", span, f"{GRADE_MARKS[price.grade]} {GRADE_MEANINGS[price.grade]}", origin, oldest)
        )
    return Html(
        page.table(("quantity", "value", "grade", "source", "as of"), rows) + page.paragraph(grade_legend(), "quiet")
    )


def _fit(constants: Constants) -> str:
    if not constants.rows:
        return "not fitted"
    error = "" if constants.held_out_error is None else f", held-out error {share(constants.held_out_error)}"
    return f"{constants.rows} measurements{error}"


def _sourced(quantity: Quantity) -> tuple[str, str, str, str]:
    unit = str(quantity.dimension)
    value = gib(quantity.value) if unit == "B" else seconds(quantity.value) if unit == "s" else si(quantity.value, unit)
    mark = f"{GRADE_MARKS[quantity.grade]} {GRADE_MEANINGS[quantity.grade]}"
    return value, mark, quantity.source, quantity.as_of or "–"
