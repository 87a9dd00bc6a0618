"""Which quantisation for which bottleneck on which hardware: formats compared where they are used."""

from __future__ import annotations

from argosy.cost.checks import at_least_one
from argosy.cost.device import Precision
from argosy.cost.formats import WeightFormat, supported_kv, supported_weights
from argosy.cost.parallel import ParallelPlan
from argosy.cost.step_time import Binding
from argosy.planner.explanation import Case, Explanation, Row, largest, ms

_MOST_SEQUENCES = 4096
_PARTS = {
    Binding.COMPUTE: "compute",
    Binding.MEMORY: "memory bandwidth",
    Binding.NETWORK: "network",
    Binding.OVERHEAD: "overhead",
}


def explain_formats(case: Case, plan: ParallelPlan, *, sequences: int = 32) -> Explanation:
    """Every format that the device supports, at `sequences` decoding sequences, for prompts, and in memory.

    Raises:
        ConfigError: the plan does not divide the model.
    """
    at_least_one(sequences=sequences)
    rows = [
        _row(case, plan, weights, kv, sequences)
        for weights in supported_weights(case.offer.device)
        for kv in supported_kv(case.offer.device)
    ]
    fitting = [row for row in rows if row.figures["admissible sequences"] >= 1]
    base = rows[0]
    model = case.model(case.deployment(plan))
    times = model.decode(sequences / plan.data, case.context)
    binds = max(_PARTS, key=lambda part: float(times.by_binding[part][0]))
    share = float(times.by_binding[binds][0] / times.latency_s[0])
    because = [f"at {sequences} sequences {share:.0%} of a 16-bit decode step goes into {_PARTS[binds]}"]
    if not fitting:
        least = min(rows, key=lambda row: row.figures["weight GB"])
        verdict = f"none fits: {least.label} still needs {least.figures['weight GB']:.1f} GB of weights on each device"
        return Explanation(_topic(case), verdict, tuple(because), tuple(rows))
    decode = min(fitting, key=lambda row: row.figures["TPOT ms"])
    prompt = min(fitting, key=lambda row: row.figures["prompt ms"])
    room = max(fitting, key=lambda row: row.figures["admissible sequences"])
    because += [_compared(decode, base, "TPOT ms", "a token"), _compared(prompt, base, "prompt ms", "a prompt")]
    because.append(
        f"{room.label} admits {room.figures['admissible sequences']:.0f} sequences of {case.tokens} tokens, {base.label} "
        f"{base.figures['admissible sequences']:.0f}"
    )
    because += _native_or_int4(case, plan)
    return Explanation(
        _topic(case),
        f"{decode.label} for decoding, {prompt.label} for prompts, {room.label} for concurrency",
        tuple(because),
        tuple(rows),
    )


def _topic(case: Case) -> str:
    return f"formats of {case.spec.name} on {case.offer.device.name}"


def _row(case: Case, plan: ParallelPlan, weights: WeightFormat, kv: Precision, sequences: int) -> Row:
    deployment = case.deployment(plan, weights, kv)
    model, memory = case.model(deployment), case.serving_memory(deployment)
    return Row(
        f"{weights} weights, {kv} KV",
        {
            "TPOT ms": float(model.decode(sequences / plan.data, case.context).latency_s[0]) * 1e3,
            "prompt ms": float(model.prefill(case.prompt.mean).latency_s[0]) * 1e3,
            "weight GB": max(stage.weight_bytes for stage in memory.stages) / 1e9,
            "admissible sequences": float(memory.admissible_concurrency(case.tokens)),
        },
    )


def _compared(row: Row, base: Row, figure: str, what: str) -> str:
    ours, theirs = row.figures[figure], base.figures[figure]
    taken = f"{what} takes {ms(ours / 1e3)} with {row.label}, {ms(theirs / 1e3)} with {base.label}"
    return f"{taken}: {theirs / ours:.2f} times as fast"


def _native_or_int4(case: Case, plan: ParallelPlan) -> list[str]:
    """Up to which batch weights of 4 bits, unpacked to 16-bit arithmetic, beat weights of 8 bits in native arithmetic."""
    eight = next((f for f in (WeightFormat.FP8, WeightFormat.INT8) if f in supported_weights(case.offer.device)), None)
    if eight is None:
        return [f"{case.offer.device.name} multiplies in no 8-bit type: 8-bit weights only save memory and its bandwidth"]
    four_bit, eight_bit = (case.model(case.deployment(plan, f)) for f in (WeightFormat.INT4_WEIGHT_ONLY, eight))

    def four_is_faster(count: int) -> bool:
        return bool(four_bit.decode(count, case.context).latency_s[0] < eight_bit.decode(count, case.context).latency_s[0])

    up_to = largest(1, _MOST_SEQUENCES, four_is_faster)
    if up_to is None:
        return [f"{eight} decodes faster than int4 weight-only already with one sequence"]
    if up_to == _MOST_SEQUENCES:
        return [f"int4 weight-only decodes faster than {eight} up to {_MOST_SEQUENCES} sequences of a data rank and beyond"]
    return [
        f"int4 weight-only decodes faster than {eight} up to {up_to} sequences of a data rank, where its 16-bit arithmetic "
        f"takes longer than the bytes it saves; beyond, {eight} is faster"
    ]
