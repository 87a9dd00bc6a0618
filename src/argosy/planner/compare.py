"""Devices side by side for one model: what each needs to hold it, how fast it is, and what a token costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from argosy.cost.calibration_file import constants_for
from argosy.cost.device import Precision
from argosy.cost.formats import WeightFormat, base_precision, precisions_for
from argosy.cost.machine_calibration import known_calibrations
from argosy.cost.parallel import ParallelPlan
from argosy.cost.quantity import Grade, worst_grade
from argosy.cost.serving_engines import find_engine
from argosy.cost.serving_time import ClosedLoop, closed_loop, prefill_time
from argosy.cost.step_time import Binding
from argosy.errors import ConfigError
from argosy.planner.explanation import Case
from argosy.planner.lengths import Lengths
from argosy.planner.model_source import find_spec
from argosy.planner.offers import DeviceOffer, resolve
from argosy.planner.plain import Plain
from argosy.planner.serving_answer import UsdRange
from argosy.planner.serving_plan import STEP_PARTS, per_million, usd_range

_TENSOR = (1, 2, 4, 8)
_CHUNK = 8192
_MOST_SEQUENCES = 512


@dataclass(frozen=True, slots=True)
class ComparedDevice(Plain):
    """One device; figures are None, and `why_not` says why, where the model does not run on it.

    Attributes:
        devices: fewest under tensor parallelism that hold the model and one request.
        tpot_alone_s, prompt_alone_s: of a single request; sequences: that a batch then holds.
        tpot_full_s, output_tokens_per_s: at that batch; binds: what most of its steps go into.
    """

    device: str
    devices: int | None
    weights: str
    prompt_alone_s: float | None
    tpot_alone_s: float | None
    sequences: int | None
    tpot_full_s: float | None
    output_tokens_per_s: float | None
    usd_per_h: UsdRange | None
    usd_per_million_tokens: UsdRange | None
    joules_per_output_token: float | None
    binds: str
    grades: Mapping[str, Grade]
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Comparison(Plain):
    """Devices by dollars per million output tokens at a full batch; those that cannot run the model come last."""

    model: str
    prompt_tokens: int
    output_tokens: int
    devices: tuple[ComparedDevice, ...]


def compare(
    model: str,
    offers: Iterable[DeviceOffer],
    *,
    prompt_tokens: int,
    output_tokens: int,
    weights: WeightFormat = WeightFormat.BASE,
    kv: Precision | None = None,
    engine: str = "vllm",
) -> Comparison:
    """Compare devices for `model`, each at the fewest devices that hold it, as `engine` was measured to run.

    Raises:
        ConfigError: an unknown name, no price, or lengths below one token.
    """
    find_engine(engine)
    spec, model_grade = find_spec(model)
    rows = []
    for offer in offers:
        resolved = resolve(offer)
        constants = constants_for(resolved.device.name, engine, calibrations=known_calibrations(resolved.device.name))
        case = Case(spec, resolved, Lengths.fixed(prompt_tokens), Lengths.fixed(output_tokens), constants)
        rows.append(_compared(case, weights, kv, model_grade))
    if not rows:
        raise ConfigError("devices must name at least one candidate")

    def price(row: ComparedDevice) -> float:
        return float("inf") if row.usd_per_million_tokens is None else row.usd_per_million_tokens.middle

    return Comparison(spec.name, prompt_tokens, output_tokens, tuple(sorted(rows, key=price)))


def _compared(case: Case, weights: WeightFormat, kv: Precision | None, model_grade: Grade) -> ComparedDevice:
    offer, why_not = case.offer, ""
    limit = min(offer.most_devices(), offer.topology.devices_per_node)
    label = str(weights)
    try:
        precisions_for(offer.device, weights, kv or base_precision(offer.device))
        label = str(base_precision(offer.device)) if weights.stored is None else label
        for tensor in (degree for degree in _TENSOR if degree <= limit):
            deployment = case.deployment(ParallelPlan.for_serving(tensor), weights, kv)
            memory = case.serving_memory(deployment)
            if memory.admissible_concurrency(case.tokens) >= 1:
                return _measured(case, tensor, weights, kv, label, model_grade)
            try:
                memory.require(1, case.tokens)
            except ConfigError as error:
                why_not = f"with {tensor} devices {error.message}"
    except ConfigError as error:
        why_not = why_not or error.message
    return ComparedDevice(offer.device.name, None, label, None, None, None, None, None, None, None, None, "", {}, why_not)


def _measured(
    case: Case, tensor: int, weights: WeightFormat, kv: Precision | None, label: str, model_grade: Grade
) -> ComparedDevice:
    deployment, offer = case.deployment(ParallelPlan.for_serving(tensor), weights, kv), case.offer
    model, memory = case.model(deployment), case.serving_memory(deployment)
    prompt, output = case.prompt.tokens, case.output.tokens
    sequences = min(memory.admissible_concurrency(case.tokens), _MOST_SEQUENCES)
    alone = closed_loop(model, ClosedLoop(prompt, output, 1), step_tokens=_CHUNK, memory=memory)
    full = closed_loop(model, ClosedLoop(prompt, output, sequences), step_tokens=_CHUNK, memory=memory)
    per_h = usd_range(((offer, tensor),))
    power = offer.device.power
    rates = [offer.device.memory_bandwidth.grade, *(peak.grade for peak in offer.device.peak.values())]
    latency = worst_grade([model_grade, case.constants.grade, *rates])
    parts: dict[Binding, float] = full.by_binding
    return ComparedDevice(
        device=offer.device.name,
        devices=tensor,
        weights=label,
        prompt_alone_s=prefill_time(model, prompt, chunk_tokens=_CHUNK).latency_s,
        tpot_alone_s=alone.tpot_s,
        sequences=sequences,
        tpot_full_s=full.tpot_s,
        output_tokens_per_s=full.output_tokens_per_s,
        usd_per_h=per_h,
        usd_per_million_tokens=per_million(per_h, full.output_tokens_per_s),
        joules_per_output_token=None if power is None else power.value * tensor / full.output_tokens_per_s,
        binds=STEP_PARTS[max(parts, key=lambda part: parts[part])],
        grades={"latency": latency, "price": worst_grade([latency, offer.price.grade])},
    )
