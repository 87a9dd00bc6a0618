"""The answer to `argosy plan memory` in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from argosy.cli.plan_tables import facts, heading, legend, memory_bar, plan_console
from argosy.observe.report.figures import gib, si
from argosy.planner.grades import marked
from argosy.planner.memory_plan import MemoryAnswer
from argosy.planner.serving_words import memory_parts


def show_memory(answers: Sequence[MemoryAnswer]) -> None:
    """Print what each device holds on standard output."""
    console = plan_console()
    for answer in answers:
        heading(console, f"{answer.model} on {answer.devices} x {answer.device}, {answer.weights} weights, {answer.kv} KV")
        label = marked("fullest device", answer.grades["memory"])
        memory_bar(console, label, memory_parts(answer.breakdown), answer.breakdown.total_bytes)
        verdict = f"{answer.sequences} of {answer.tokens:,} tokens fit" if answer.fits else answer.why_not
        rows = [
            ("asked", verdict),
            ("admits", f"{answer.admissible:,} requests of {answer.tokens:,} tokens at once"),
            (
                "KV",
                f"{si(answer.kv_token_bytes, 'B')} of a token and {gib(answer.sequence_bytes)} of a request on this device",
            ),
        ]
        facts(console, rows)
    legend(console)
