"""Why one plan is worse than another, told from the figures of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from argosy.planner.serving_answer import ServingPlan

# Differences below this share of a figure are not worth a word.
_NOTABLE = 0.02
_Form = Callable[[float], str]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _usd(value: float) -> str:
    return f"${value:.2f}"


def worse_because(plan: ServingPlan, best: ServingPlan) -> str:
    """One line: what `plan` takes more of than `best`, largest difference first, and what it gives in exchange."""
    worse: list[tuple[float, str]] = []
    better: list[tuple[float, str]] = []
    for name, ours, theirs, form in _figures(plan, best):
        if theirs <= 0 or abs(ours / theirs - 1) < _NOTABLE:
            continue
        line = f"{name} {form(ours)} instead of {form(theirs)}"
        (worse if ours > theirs else better).append((abs(ours / theirs - 1), line))
    parts = [line for _, line in sorted(worse, reverse=True)[:3]]
    if not parts:
        parts = ["no figure is worse by 2 %; it comes after for its precision or its distance to the targets"]
    if better:
        parts.append(f"in exchange {max(better)[1]}")
    return "; ".join(parts)


def _figures(plan: ServingPlan, best: ServingPlan) -> Iterator[tuple[str, float, float, _Form]]:
    """(name, ours, theirs, how to print it), less being better."""
    yield "cost per hour", plan.cost.per_h.middle, best.cost.per_h.middle, _usd
    full = plan.cost.per_million_tokens_at_full_batch.middle, best.cost.per_million_tokens_at_full_batch.middle
    yield "price of 1M tokens at full batch", *full, _usd
    yield "devices", float(plan.devices), float(best.devices), lambda value: f"{value:.0f}"
    if plan.latency.tpot_mean_s is not None and best.latency.tpot_mean_s is not None:
        yield "mean TPOT", plan.latency.tpot_mean_s, best.latency.tpot_mean_s, _ms
    yield "mean TTFT", plan.latency.ttft_mean_s, best.latency.ttft_mean_s, _ms
    yield "99th percentile TTFT", plan.latency.ttft[-1].seconds, best.latency.ttft[-1].seconds, _ms
