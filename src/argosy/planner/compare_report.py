"""Devices side by side as one HTML page."""

from __future__ import annotations

from argosy.observe.report import page
from argosy.observe.report.figures import UNKNOWN, count, seconds, significant, usd, usd_range
from argosy.observe.report.page import Html
from argosy.observe.report.svg import Axis, Point, plot
from argosy.planner.compare import ComparedDevice, Comparison
from argosy.planner.grades import grade_legend, marked


def compare_report(comparison: Comparison) -> str:
    """A page that stands on its own."""
    columns = (
        *("device", "devices", "weights", "prompt", "TPOT alone", "batch", "TPOT full", "tokens/s"),
        *("$/h", "$/1M out", "J/token", "a step is mostly"),
    )
    lead = (
        f"Prompts of {comparison.prompt_tokens:,} tokens, answers of {comparison.output_tokens:,}; "
        "each device at the fewest that hold the model."
    )
    running = [row for row in comparison.devices if row.devices is not None]
    table = page.table(columns, [_row(row) for row in running], numbers=range(1, 11), chosen=0)
    missing = page.bullets(f"{row.device}: {row.why_not}" for row in comparison.devices if row.devices is None)
    parts = [page.section("Devices by price of tokens", table, missing, page.paragraph(grade_legend(), "quiet"))]
    drawn = [row for row in running if row.tpot_full_s is not None]
    if drawn:
        parts.append(page.section("Price against speed", _scatter(drawn)))
    return page.page(f"Devices for {comparison.model}", page.paragraph(lead, "lead"), *parts)


def _row(row: ComparedDevice) -> tuple[str, ...]:
    assert row.usd_per_h is not None
    assert row.usd_per_million_tokens is not None
    latency, price = row.grades["latency"], row.grades["price"]
    joules = row.joules_per_output_token
    return (
        *(row.device, str(row.devices), row.weights),
        marked(seconds(row.prompt_alone_s), latency),
        marked(seconds(row.tpot_alone_s), latency),
        str(row.sequences),
        marked(seconds(row.tpot_full_s), latency),
        marked(count(row.output_tokens_per_s), latency),
        usd_range(row.usd_per_h.low, row.usd_per_h.high),
        marked(usd_range(row.usd_per_million_tokens.low, row.usd_per_million_tokens.high), price),
        UNKNOWN if joules is None else significant(joules),
        row.binds,
    )


def _scatter(rows: list[ComparedDevice]) -> Html:
    points = []
    for row in rows:
        assert row.tpot_full_s is not None
        assert row.usd_per_million_tokens is not None
        price = row.usd_per_million_tokens
        name = f"{row.devices} x {row.device}"
        figures = f"TPOT {seconds(row.tpot_full_s)}, {usd_range(price.low, price.high)} per 1M"
        points.append(
            Point(row.tpot_full_s, price.middle, f"{name}, batch {row.sequences}: {figures}", radius=7, label=name)
        )
    x = Axis.over("TPOT with every batch full", [point.x for point in points], log=True, text=seconds)
    y = Axis.over("$ per 1M output tokens", [point.y for point in points], log=True, text=usd)
    return page.figure(plot("Price against TPOT", x, y, points), "Every batch full; middle of the price range.")
