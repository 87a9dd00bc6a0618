"""What one layout of a model takes of a device's memory, and how many requests then fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from argosy.cost.catalogue import find_device
from argosy.cost.checks import at_least_one
from argosy.cost.deployment import Deployment
from argosy.cost.device import Device, Precision
from argosy.cost.formats import WeightFormat, base_precision, kv_type, precisions_for
from argosy.cost.model_spec import ModelSpec
from argosy.cost.parallel import ParallelPlan
from argosy.cost.quantity import Grade, worst_grade
from argosy.cost.serving_memory import MemoryConstants, ServingMemory, serving_memory
from argosy.errors import ConfigError
from argosy.planner.model_source import find_spec
from argosy.planner.plain import Plain
from argosy.planner.serving_answer import MemoryBreakdown
from argosy.planner.serving_plan import memory_breakdown


@dataclass(frozen=True, slots=True)
class MemoryAnswer(Plain):
    """Memory of a layout holding `sequences` requests of `tokens` tokens.

    Attributes:
        devices: of the layout; kv_token_bytes: of one more token on a device of the fullest stage.
        sequence_bytes: KV of one request there.
        admissible: requests of that length that fit at once; why_not: "" if `sequences` fit, else by how much they do not.
    """

    model: str
    device: str
    devices: int
    weights: str
    kv: str
    tokens: int
    sequences: int
    breakdown: MemoryBreakdown
    kv_token_bytes: float
    sequence_bytes: float
    admissible: int
    why_not: str
    grades: Mapping[str, Grade]

    @property
    def fits(self) -> bool:
        """Whether the requests fit."""
        return not self.why_not


def plan_memory(
    model: str | ModelSpec,
    device: str | Device,
    *,
    tokens: int,
    sequences: int = 1,
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    expert: int = 1,
    weights: WeightFormat = WeightFormat.BASE,
    kv: Precision | None = None,
    chunk_tokens: int = 8192,
    draft: str | ModelSpec | None = None,
    constants: MemoryConstants | None = None,
) -> MemoryAnswer:
    """Memory of one layout; what does not fit is said with a breakdown, not refused.

    Args:
        tokens: of a request at its end; chunk_tokens: most of a step, which activations are sized for.

    Raises:
        ConfigError: an unknown name, a degree that does not divide, a format that the device lacks, or a count below 1.
    """
    at_least_one(tokens=tokens, sequences=sequences, chunk_tokens=chunk_tokens)
    spec, model_grade = find_spec(model)
    chip = device if isinstance(device, Device) else find_device(device)
    element = base_precision(chip) if kv is None else kv_type(chip, kv)
    precisions = precisions_for(chip, weights, element)
    deployment = Deployment(spec, ParallelPlan.for_serving(tensor, pipeline, data, expert), precisions)
    beside = None
    if draft is not None:
        small = find_spec(draft)[0]
        beside = Deployment(small, ParallelPlan.for_serving(tensor), precisions_for(chip, WeightFormat.BASE, element))
    stated = constants or MemoryConstants()
    memory = serving_memory(
        deployment,
        chip,
        step_tokens=chunk_tokens,
        step_sequences=min(chunk_tokens, max(1, -(-sequences // data))),
        constants=stated,
        draft=beside,
    )
    breakdown = memory_breakdown(memory, "serve", sequences, tokens)
    fullest = max(memory.stages, key=lambda stage: stage.sequence_bytes(tokens, memory.block_tokens))
    return MemoryAnswer(
        model=spec.name,
        device=chip.name,
        devices=deployment.plan.devices,
        weights=str(base_precision(chip) if weights.stored is None else weights),
        kv=str(element),
        tokens=tokens,
        sequences=sequences,
        breakdown=breakdown,
        kv_token_bytes=fullest.token_bytes,
        sequence_bytes=fullest.sequence_bytes(tokens, memory.block_tokens),
        admissible=memory.admissible_concurrency(tokens),
        why_not=_why_not(memory, sequences, tokens),
        grades={"memory": worst_grade([model_grade, chip.memory.grade, stated.runtime.grade])},
    )


def _why_not(memory: ServingMemory, sequences: int, tokens: int) -> str:
    try:
        memory.require(sequences, tokens)
    except ConfigError as error:
        return error.message
    return ""
