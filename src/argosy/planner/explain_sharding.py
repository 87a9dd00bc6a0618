"""Which sharding of N devices, and why: tensor, pipeline, expert and attention-data parallelism side by side."""

from __future__ import annotations

from argosy.cost.checks import at_least_one
from argosy.cost.formats import WeightFormat
from argosy.cost.parallel import ParallelPlan
from argosy.cost.step_time import Binding
from argosy.errors import ConfigError
from argosy.planner.explanation import Case, Explanation, Row, ms
from argosy.planner.layouts import has_experts


def explain_sharding(
    case: Case, devices: int, *, sequences: int = 32, weights: WeightFormat = WeightFormat.BASE
) -> Explanation:
    """Compare the pure ways to spread one replica over `devices`, at `sequences` decoding sequences.

    Raises:
        ConfigError: a count below 2, or no way divides the model and fits in memory.
    """
    at_least_one(devices=devices, sequences=sequences)
    if devices < 2:
        raise ConfigError(f"sharding needs at least 2 devices, got {devices}")
    rows, refused = [], []
    for label, plan in _ways(case, devices):
        try:
            row = _row(case, label, plan, sequences, weights)
        except ConfigError as error:
            refused.append(f"{label} is not possible: {error.message}")
            continue
        if row.figures["admissible sequences"] < 1:
            refused.append(f"{label} does not fit: weights take {row.figures['weight GB']:.1f} GB of each device")
        else:
            rows.append(row)
    if not rows:
        raise ConfigError(f"no sharding of {case.spec.name} over {devices} {case.offer.device.name}: {'; '.join(refused)}")
    fastest = min(rows, key=lambda row: row.figures["TPOT ms"])
    cheapest = max(rows, key=lambda row: row.figures["tokens/s when full"])
    verdict = f"{fastest.label} for latency"
    verdict = (
        f"{fastest.label} for latency and throughput"
        if fastest is cheapest
        else f"{verdict}, {cheapest.label} for throughput"
    )
    return Explanation(
        f"sharding {case.spec.name} over {devices} {case.offer.device.name}",
        verdict,
        (*_reasons(rows, fastest, cheapest, sequences), *refused),
        tuple(rows),
    )


def _ways(case: Case, devices: int) -> list[tuple[str, ParallelPlan]]:
    ways = [
        (f"TP {devices}", ParallelPlan.for_serving(devices)),
        (f"PP {devices}", ParallelPlan.for_serving(1, devices)),
    ]
    if has_experts(case.spec):
        ways.append((f"TP {devices} with EP {devices}", ParallelPlan.for_serving(devices, expert=devices)))
        ways.append((f"DP {devices} with EP {devices}", ParallelPlan.for_serving(1, 1, devices, devices)))
    return ways


def _row(case: Case, label: str, plan: ParallelPlan, sequences: int, weights: WeightFormat) -> Row:
    deployment = case.deployment(plan, weights)
    model, memory = case.model(deployment), case.serving_memory(deployment)
    admissible = memory.admissible_concurrency(case.tokens)

    def step(running: float) -> tuple[float, float]:
        """(seconds between a sequence's tokens, share of the step on the network)."""
        rank = max(1.0, running / plan.data)
        together = min(float(plan.pipeline), rank)
        times = model.decode(rank / together, case.context)
        latency = float(times.latency_s[0])
        return max(latency, together * float(times.interval_s[0])), float(times.by_binding[Binding.NETWORK][0]) / latency

    tpot_s, network = step(sequences)
    full_s, _ = step(max(1, admissible))
    prompt = model.prefill(case.prompt.mean)
    return Row(
        label,
        {
            "TPOT ms": tpot_s * 1e3,
            "network share of step": network,
            "prompt ms": float(prompt.latency_s[0]) * 1e3,
            "weight GB": max(stage.weight_bytes for stage in memory.stages) / 1e9,
            "admissible sequences": float(admissible),
            "tokens/s when full": admissible / full_s,
        },
    )


def _reasons(rows: list[Row], fastest: Row, cheapest: Row, sequences: int) -> list[str]:
    reasons = [_slower(row, fastest, sequences) for row in rows if row is not fastest]
    return reasons + [_smaller(row, cheapest) for row in rows if row is not cheapest]


def _slower(row: Row, fastest: Row, sequences: int) -> str:
    ours, theirs = row.figures["TPOT ms"], fastest.figures["TPOT ms"]
    network, least = row.figures["network share of step"], fastest.figures["network share of step"]
    return (
        f"at {sequences} sequences {row.label} takes {ms(ours / 1e3)} a token, {ours / theirs:.2f} times the "
        f"{ms(theirs / 1e3)} of {fastest.label}, with {network:.0%} of a step on the network against {least:.0%}"
    )


def _smaller(row: Row, most: Row) -> str:
    def full(of: Row) -> str:
        return (
            f"{of.figures['admissible sequences']:.0f} sequences and gives {of.figures['tokens/s when full']:.0f} tokens/s"
        )

    return f"full, {most.label} holds {full(most)}; {row.label} holds {full(row)}"
