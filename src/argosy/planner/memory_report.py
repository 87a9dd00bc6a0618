"""What a layout takes of the memory of some devices, as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from argosy.observe.report import page
from argosy.observe.report.figures import gib, si
from argosy.observe.report.svg import Bar
from argosy.planner.grades import grade_legend, marked
from argosy.planner.memory_plan import MemoryAnswer
from argosy.planner.report_parts import memory_bars
from argosy.planner.serving_words import memory_parts


def memory_report(answers: Sequence[MemoryAnswer]) -> str:
    """A page that stands on its own, of one model and layout on one or more devices."""
    first = answers[0]
    formats = f"{first.sequences} requests of {first.tokens:,} tokens over {first.devices} devices"
    bars = [
        Bar(f"{answer.devices} x {answer.device}", memory_parts(answer.breakdown), answer.breakdown.total_bytes)
        for answer in answers
    ]
    columns = ("device", "memory", "weights", "KV", "KV of a token", "KV of a request", "requests that fit", "these fit")
    rows = [
        (
            answer.device,
            marked(gib(answer.breakdown.total_bytes), answer.grades["memory"]),
            answer.weights,
            answer.kv,
            si(answer.kv_token_bytes, "B"),
            gib(answer.sequence_bytes),
            str(answer.admissible),
            "yes" if answer.fits else answer.why_not,
        )
        for answer in answers
    ]
    return page.page(
        f"Memory of {first.model}",
        page.paragraph(f"{formats}.", "lead"),
        page.section("One device", memory_bars(bars)),
        page.section("Figures", page.table(columns, rows, numbers=(1, 4, 5, 6)), page.paragraph(grade_legend(), "quiet")),
    )
