"""From a measured row to the deployment it was measured on.

Tables record layouts by hand, and not always alike. Read here are, beside the plain form tensor x attention-DP =
expert-TP x expert degree:

- g devices with g-way expert parallelism recorded as g^2 devices, tensor or attention-DP g^2 and experts g x g (the same
  measurements occur in both forms);
- g devices with attention-DP and expert parallelism recorded as tensor g, attention-DP g, experts g^2.

What checkpoints are made of is not in the columns either: published fp8 checkpoints of models with routed experts carry one
scale per 128 x 128 block, gpt-oss has MXFP4 experts and bf16 elsewhere, int4 checkpoints quantise experts only.
"""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.catalogue import find_device, find_model
from argosy.cost.deployment import Deployment
from argosy.cost.device import Device, Precision
from argosy.cost.measured_rows import AggregatedLayout, MeasuredRow, Quantisation
from argosy.cost.model_spec import ModelSpec, MoeFfn
from argosy.cost.parallel import ParallelPlan, Precisions
from argosy.cost.serving_engines import find_engine
from argosy.errors import ConfigError

_BLOCK_SCALE = 4 / (128 * 128)
_NVFP4_SCALE = 1 / 16
_MXFP4_SCALE = 1 / 32
_INT4_GROUP_SCALE = 2 / 32


@dataclass(frozen=True, slots=True)
class Configuration:
    """What was served, on what, by which engine: the unit in which measurements are held out.

    Attributes:
        system: the device's name, which stands for it when configurations are compared.
    """

    system: str
    engine: str
    deployment: Deployment

    @property
    def device(self) -> Device:
        """The device itself."""
        return find_device(self.system)

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.deployment.spec.name

    @property
    def routed(self) -> bool:
        """Whether the model has routed experts."""
        return has_routed_experts(self.deployment.spec)

    def __str__(self) -> str:
        plan, precisions = self.deployment.plan, self.deployment.precisions
        degrees = f"tp{plan.tensor} pp{plan.pipeline} dp{plan.data} ep{plan.expert}"
        return f"{self.model} {precisions.experts or precisions.weights} on {self.system} {degrees}, {self.engine}"


def has_routed_experts(spec: ModelSpec) -> bool:
    """Whether any layer has routed experts."""
    return any(isinstance(layer.ffn, MoeFfn) for _, layer in spec.layers)


def configuration_of(row: MeasuredRow) -> Configuration:
    """The configuration of an aggregated row.

    Raises:
        ConfigError: the row is disaggregated, a name is unknown, or the layout does not divide the model; names the line.
    """
    if not isinstance(row.layout, AggregatedLayout):
        raise ConfigError(f"line {row.line}: a disaggregated row has two deployments, not one")
    try:
        spec, device = find_model(row.model), find_device(row.system)
        plan = _plan(row.layout, has_routed_experts(spec))
        return Configuration(
            device.name, find_engine(row.backend).name, Deployment(spec, plan, _precisions(row, spec, device))
        )
    except ConfigError as error:
        raise ConfigError(f"line {row.line}: {error}") from None


def _plan(layout: AggregatedLayout, routed: bool) -> ParallelPlan:
    tensor, data, expert = layout.tensor, layout.attention_data, layout.expert
    if not routed:
        return ParallelPlan.for_serving(tensor, layout.pipeline, data)
    squared = expert > 2 and layout.expert_tensor == expert and tensor * data == expert * expert
    doubled = tensor == data > 1 and layout.expert_tensor == 1 and expert == tensor * data
    if squared:
        tensor, data = (1, expert) if data > 1 else (expert, 1)
    elif doubled:
        tensor, data, expert = 1, tensor, tensor
    return ParallelPlan.for_serving(tensor, layout.pipeline, data, expert)


def _precisions(row: MeasuredRow, spec: ModelSpec, device: Device) -> Precisions:
    routed = has_routed_experts(spec)
    weights, compute, scale = _types(row.gemm, device, routed)
    experts, expert_compute, expert_scale = _types(row.experts, device, routed)
    if spec.name.startswith("gpt-oss") and row.experts is Quantisation.NVFP4:
        weights = compute = Precision.BF16
        scale = expert_scale = _MXFP4_SCALE
    if routed and row.gemm is Quantisation.INT4_WEIGHTS:
        weights = Precision.BF16
    quantised = row.gemm in (Quantisation.FP8, Quantisation.NVFP4)
    fp8_kv = find_engine(row.backend).fp8_kv_with_quantised_weights[Precision.FP4 in device.peak]
    return Precisions(
        weights=weights,
        compute=compute,
        kv=Precision.FP8 if quantised and fp8_kv else Precision.BF16,
        experts=experts,
        expert_compute=expert_compute,
        scale_bytes_per_element=max(scale, expert_scale),
    )


def _types(kind: Quantisation, device: Device, routed: bool) -> tuple[Precision, Precision, float]:
    """(weights, arithmetic, bytes of scales per element); fp4 is computed in bf16 where a device has no fp4."""
    if kind is Quantisation.NVFP4:
        return Precision.FP4, Precision.FP4 if Precision.FP4 in device.peak else Precision.BF16, _NVFP4_SCALE
    if kind is Quantisation.INT4_WEIGHTS:
        return Precision.INT4, Precision.BF16, _INT4_GROUP_SCALE
    if kind is Quantisation.NONE:
        return Precision.BF16, Precision.BF16, 0.0
    blocks = routed or kind is Quantisation.FP8_BLOCK
    return Precision.FP8, Precision.FP8, _BLOCK_SCALE if blocks else 0.0
