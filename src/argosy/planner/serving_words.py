"""Questions and answers about serving in words and parts, as every report needs them."""

from __future__ import annotations

from argosy.observe.report.figures import UNKNOWN, seconds, share, significant
from argosy.planner.explanation import Explanation
from argosy.planner.lengths import Lengths
from argosy.planner.serving_answer import MemoryBreakdown
from argosy.planner.serving_question import Slo, Target
from argosy.planner.traffic import Traffic

_USUAL_PERCENTILE = 99.0


def traffic_words(traffic: Traffic) -> str:
    """One line: rate, lengths, what prompts share, bursts."""
    parts = [
        f"{significant(traffic.requests_per_s)} requests/s",
        f"prompts of {_length_words(traffic.prompt)}",
        f"answers of {_length_words(traffic.output)}",
    ]
    if traffic.prefix.share:
        parts.append(f"{share(traffic.prefix.share)} of prompts shared")
    if traffic.burstiness != 1:
        parts.append(f"burstiness {significant(traffic.burstiness)}")
    return ", ".join(parts)


def _length_words(lengths: Lengths) -> str:
    spread = f" ({lengths.source})" if lengths.cv else ""
    return f"{significant(lengths.mean, 5)} tokens{spread}"


def slo_words(slo: Slo) -> str:
    """The targets, or that there is none."""
    named = (("TTFT", slo.ttft), ("TPOT", slo.tpot))
    parts = [f"{name} {seconds(target.seconds)} at p{target.percentile:g}" for name, targets in named for target in targets]
    return ", ".join(parts) or "any latency will do"


def headline_percentile(targets: tuple[Target, ...]) -> float:
    """The percentile to show where there is room for one: the first that was asked for."""
    return targets[0].percentile if targets else _USUAL_PERCENTILE


def memory_parts(memory: MemoryBreakdown) -> tuple[tuple[str, float], ...]:
    """(name, bytes) of what a device's memory holds, what is free last."""
    return (
        ("weights", memory.weight_bytes),
        ("draft weights", memory.draft_weight_bytes),
        ("KV", memory.kv_bytes),
        ("activations", memory.activation_bytes),
        ("communication buffers", memory.communication_bytes),
        ("runtime", memory.runtime_bytes),
        ("free", memory.free_bytes),
    )


def alternatives(explanation: Explanation) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows) of the alternatives that an explanation compares; a figure that one lacks is a dash."""
    names = list(dict.fromkeys(name for row in explanation.rows for name in row.figures))
    rows = [
        (row.label, *(significant(row.figures[name]) if name in row.figures else UNKNOWN for name in names))
        for row in explanation.rows
    ]
    return ("", *names), rows
