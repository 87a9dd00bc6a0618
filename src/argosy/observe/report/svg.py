"""Plots as SVG text: points, lines and areas over linear or logarithmic axes, and stacked bars.

Colours are CSS variables of the page (`page.STYLE`), so that a plot follows the reader's light or dark setting. Nothing is
told by colour alone: series differ in their marker, parts of a bar carry their name, and every mark has a title that shows
on hovering.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from argosy.observe.report.figures import significant

SERIES_COLOURS = 8
_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 20, 14, 52
_MARKERS = ("circle", "square", "triangle", "diamond", "cross")
_CHARACTER_PX = 6.6
Place = Callable[[float, float], tuple[float, float]]
Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis from `low` to `high`; a logarithmic one needs both above 0."""

    label: str
    low: float
    high: float
    log: bool = False
    text: Callable[[float], str] = significant

    @classmethod
    def over(
        cls, label: str, values: Sequence[float], *, log: bool = False, text: Callable[[float], str] = significant
    ) -> Axis:
        """An axis that holds all `values` with a margin; a linear one begins at 0."""
        low, high = min(values), max(values)
        if log:
            return cls(label, low / 1.4, high * 1.4, True, text)
        return cls(label, 0.0, high * 1.08 if high > 0 else 1.0, False, text)

    def share(self, value: float) -> float:
        """Where `value` lies, 0 at `low` and 1 at `high`."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """About five round values within the axis."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            decades = math.log10(self.high / self.low)
            digits = (1.0,) if decades > 4 else (1.0, 2.0, 5.0) if decades > 1 else (1.0, 2.0, 3.0, 5.0, 7.0)
            candidates = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
        else:
            raw = (self.high - self.low) / 5
            power = 10.0 ** math.floor(math.log10(raw))
            step = next(power * digit for digit in (1.0, 2.0, 5.0, 10.0) if power * digit >= raw)
            candidates = [step * index for index in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [value for value in candidates if self.low <= value <= self.high]


@dataclass(frozen=True, slots=True)
class Point:
    """A mark; `title` shows on hovering, `label` beside it. `series` chooses marker and colour, `radius` is in pixels."""

    x: float
    y: float
    title: str
    series: int = 0
    radius: float = 5.0
    label: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A polyline through (x, y) pairs; `label` is written at its end."""

    points: tuple[tuple[float, float], ...]
    title: str
    series: int = 0
    dashed: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class Area:
    """What lies between `low` and `high` at each x: (x, low, high) from left to right. Stacked areas share an edge."""

    points: tuple[tuple[float, float, float], ...]
    title: str
    series: int = 0


def colour(series: int) -> str:
    """CSS colour of a series."""
    return f"var(--series-{series % SERIES_COLOURS})"


def plot(
    description: str, x: Axis, y: Axis, points: Sequence[Point], lines: Sequence[Line] = (), areas: Sequence[Area] = ()
) -> str:
    """An SVG of `areas` under `lines` under `points`; `description` is what a screen reader says.

    Points outside the axes are a mistake of the caller and fail an assertion.
    """

    def place(at_x: float, at_y: float) -> tuple[float, float]:
        share_x, share_y = x.share(at_x), y.share(at_y)
        assert -1e-9 <= share_x <= 1 + 1e-9, f"{at_x} outside {x}"
        assert -1e-9 <= share_y <= 1 + 1e-9, f"{at_y} outside {y}"
        return _LEFT + share_x * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - share_y * (_HEIGHT - _TOP - _BOTTOM)

    taken = [_line_label(line, place)[2] for line in lines if line.label]
    drawn = [*(_area(area, place) for area in areas), *(_line(line, place) for line in lines)]
    parts = [*_frame(x, y), *drawn, *_points(points, place, taken)]
    return _svg(description, _HEIGHT, parts)


def _svg(description: str, height: float, parts: Sequence[str]) -> str:
    label = escape(description, quote=True)
    head = f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{label}">'
    return "\n".join((head, *parts, "</svg>"))


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def _frame(x: Axis, y: Axis) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for value in x.ticks():
        at = _LEFT + x.share(value) * (right - _LEFT)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{bottom}"/>')
        parts.append(_text(at, bottom + 17, x.text(value), anchor="middle", kind="tick"))
    for value in y.ticks():
        at = bottom - y.share(value) * (bottom - _TOP)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}"/>')
        parts.append(_text(_LEFT - 8, at + 4, y.text(value), anchor="end", kind="tick"))
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none"/>')
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 10, x.label, anchor="middle", kind="label"))
    middle = (_TOP + bottom) / 2
    turned = f'<text class="label" text-anchor="middle" transform="translate(16 {middle:g}) rotate(-90)">'
    parts.append(f"{turned}{escape(y.label)}</text>")
    return parts


def _line(line: Line, place: Place) -> str:
    spots = [place(*point) for point in line.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
    dashes = ' stroke-dasharray="6 4"' if line.dashed else ""
    drawn = f'<path d="{path}" fill="none" stroke="{colour(line.series)}" stroke-width="2"{dashes}>'
    drawn += f"<title>{escape(line.title)}</title></path>"
    if line.label:
        right, base, _ = _line_label(line, place)
        drawn += _text(right, base, line.label, anchor="end", kind="mark")
    return drawn


def _area(area: Area, place: Place) -> str:
    upper = [place(x, high) for x, _, high in area.points]
    lower = [place(x, low) for x, low, _ in reversed(area.points)]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in [*upper, *lower]) + "z"
    title = f"<title>{escape(area.title)}</title>"
    return f'<path d="{path}" fill="{colour(area.series)}" fill-opacity="0.75">{title}</path>'


def _line_label(line: Line, place: Place) -> tuple[float, float, Box]:
    """Right end and base line of a line's label, and the box it fills."""
    x, y = place(*line.points[-1])
    width = len(line.label) * _CHARACTER_PX
    return x - 4, y - 7, _box(x - 4 - width, y - 11, width, 8)


def _points(points: Sequence[Point], place: Place, taken: Sequence[Box]) -> list[str]:
    """Large marks first, so that small ones stay within reach; labels last, where they cover no mark and no other label."""
    ordered = [(*place(point.x, point.y), point) for point in sorted(points, key=lambda point: -point.radius)]
    filled = [*taken, *(_box(x - point.radius, y, 2 * point.radius, point.radius) for x, y, point in ordered)]
    labels = []
    for x, y, point in ordered:
        width, reach = len(point.label) * _CHARACTER_PX, point.radius + 4
        spots = (
            (x + reach, y),
            (x + reach / 2, y - reach - 7),
            (x - reach - width, y),
            (x - reach / 2 - width, y + reach + 7),
        )
        free = [(left, middle) for left, middle in spots if _is_free(_box(left, middle, width, 7), filled)]
        if point.label and free:
            left, middle = free[0]
            filled.append(_box(left, middle, width, 7))
            labels.append(_text(left, middle + 4, point.label, kind="mark"))
    return [_marker(x, y, point) for x, y, point in ordered] + labels


def _is_free(box: Box, filled: Sequence[Box]) -> bool:
    left, top, right, bottom = box
    inside = left >= _LEFT and right <= _WIDTH and top >= 0 and bottom <= _HEIGHT - _BOTTOM
    return inside and not any(left < b[2] and b[0] < right and top < b[3] and b[1] < bottom for b in filled)


def _box(left: float, middle: float, width: float, half_height: float) -> Box:
    return left, middle - half_height, left + width, middle + half_height


def _marker(x: float, y: float, point: Point) -> str:
    shape, r = _MARKERS[point.series % len(_MARKERS)], point.radius
    d = 1.3 * r
    outline = {
        "circle": f"M{x - r:.1f} {y:.1f}a{r:.1f} {r:.1f} 0 1 0 {2 * r:.1f} 0a{r:.1f} {r:.1f} 0 1 0 {-2 * r:.1f} 0z",
        "square": f"M{x - r:.1f} {y - r:.1f}h{2 * r:.1f}v{2 * r:.1f}h{-2 * r:.1f}z",
        "triangle": f"M{x:.1f} {y - 1.2 * r:.1f}l{1.15 * r:.1f} {2 * r:.1f}h{-2.3 * r:.1f}z",
        "diamond": f"M{x:.1f} {y - d:.1f}l{d:.1f} {d:.1f}l{-d:.1f} {d:.1f}l{-d:.1f} {-d:.1f}z",
        "cross": f"M{x - r:.1f} {y - r:.1f}l{2 * r:.1f} {2 * r:.1f}m0 {-2 * r:.1f}l{-2 * r:.1f} {2 * r:.1f}",
    }[shape]
    hue = colour(point.series)
    paint = f'fill="none" stroke="{hue}" stroke-width="3"' if shape == "cross" else f'fill="{hue}"'
    return f'<path class="point" tabindex="0" d="{outline}" {paint}><title>{escape(point.title)}</title></path>'


@dataclass(frozen=True, slots=True)
class Bar:
    """A stacked bar: (name, value) of its parts from left to right, of `total`."""

    label: str
    parts: tuple[tuple[str, float], ...]
    total: float


def stacked_bars(description: str, bars: Sequence[Bar], text: Callable[[float], str], *, free: str = "free") -> str:
    """Horizontal bars on one scale; equal names have equal colours, `free` is drawn without one.

    Parts that are not above 0 are left out. A bar longer than its total has a mark where the total ends.
    """
    names = list(dict.fromkeys(name for bar in bars for name, value in bar.parts if name != free and value > 0))
    scale = (_WIDTH - 2) / max(max(bar.total, _filled(bar)) for bar in bars)
    parts, y = [], 0.0
    for bar in bars:
        parts.append(_text(0, y + 14, bar.label, kind="mark"))
        y, x = y + 21, 1.0
        for name, value in bar.parts:
            if value <= 0:
                continue
            width = value * scale
            kind = "mark" if name == free else f"on-{names.index(name) % SERIES_COLOURS}"
            title = f"{name}: {text(value)} ({value / bar.total:.0%})"
            paint = "none" if name == free else colour(names.index(name))
            parts.append(
                f'<rect class="part" x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="34" fill="{paint}">'
                f"<title>{escape(title)}</title></rect>"
            )
            label = next((form for form in (f"{name} {text(value)}", name) if len(form) * _CHARACTER_PX + 8 < width), "")
            if label:
                parts.append(_text(x + width / 2, y + 22, label, anchor="middle", kind=kind))
            x += width
        if _filled(bar) > bar.total:
            end = 1.0 + bar.total * scale
            parts.append(f'<path class="limit" d="M{end:.1f} {y - 5:g}v44"/>')
            parts.append(_text(end - 4, y - 7, f"ends at {text(bar.total)}", anchor="end", kind="mark"))
        y += 48
    return _svg(description, y, parts)


def _filled(bar: Bar) -> float:
    return sum(max(0.0, value) for _, value in bar.parts)
