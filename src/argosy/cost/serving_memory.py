"""Memory of one device while serving: weights, KV, activations, communication buffers, runtime; and what then fits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from argosy.cost.checks import at_least_one, fraction, not_negative
from argosy.cost.deployment import Deployment
from argosy.cost.device import Device
from argosy.cost.model_arithmetic import layer_kv_bytes, layer_runs
from argosy.cost.model_spec import Gqa, LinearAttention
from argosy.cost.op import OpKind
from argosy.cost.op_list import forward_templates, held_weight_bytes
from argosy.cost.op_template import RowOp, Rows, Template
from argosy.cost.quantity import GIB, Dimension, Grade, Quantity
from argosy.cost.serving_arithmetic import usable_kv_bytes
from argosy.errors import ConfigError

_OBSERVED = "constants common to public performance models of GPU serving (NCCL buffers by tensor degree, other memory)"


def _observed(value: float) -> Quantity:
    return Quantity(value, Dimension.BYTES, _OBSERVED, Grade.SECONDARY)


@dataclass(frozen=True, slots=True)
class MemoryConstants:
    """Memory that no arithmetic gives.

    Attributes:
        communication_pair, communication_group: collective buffers of a device in a group of 2 or 3, and of 4 or more.
        runtime: driver context, allocator slack, captured graphs, libraries' workspaces.
        total_fraction: share of the device's memory that may be used at all (0.9 is usual where it is shared or displays).
        kv_fraction: share of what weights, activations and overheads leave that KV may take.
        block_tokens: tokens of a KV block; a sequence holds whole blocks.
        reserved_output: share of its output for which a running request holds KV, on average: 1 where the whole request is
            reserved on admission, 0.5 where blocks are taken as it grows and requests are preempted when there are none.
    """

    communication_pair: Quantity = field(default_factory=lambda: _observed(342e6))
    communication_group: Quantity = field(default_factory=lambda: _observed(392e6))
    runtime: Quantity = field(default_factory=lambda: _observed(3.5e9))
    total_fraction: float = 1.0
    kv_fraction: float = 0.9
    block_tokens: int = 16
    reserved_output: float = 1.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for shares outside 0 to 1 or blocks of no tokens."""
        fraction(total_fraction=self.total_fraction, kv_fraction=self.kv_fraction, reserved_output=self.reserved_output)
        at_least_one(block_tokens=self.block_tokens)

    def communication_bytes(self, ranks: int) -> float:
        """Buffers of a device whose largest group has `ranks`."""
        if ranks == 1:
            return 0.0
        return self.communication_pair.value if ranks < 4 else self.communication_group.value


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Layers of a stage whose KV grows alike: `token_bytes` of all of them together, up to `window` tokens or for ever."""

    token_bytes: float
    window: int | None


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes on each device of one stage.

    Attributes:
        total_bytes: memory that may be used.
        activation_bytes: peak of one step; state_bytes: recurrent state of one sequence.
        kv_layers: by window; draft layers included.
        usable_kv_bytes: for KV and recurrent states; negative when the rest does not fit.
    """

    stage: int
    total_bytes: float
    weight_bytes: float
    draft_weight_bytes: float
    activation_bytes: float
    communication_bytes: float
    runtime_bytes: float
    usable_kv_bytes: float
    state_bytes: float
    kv_layers: tuple[KvLayers, ...]

    @property
    def token_bytes(self) -> float:
        """KV bytes of one more token while no window is full."""
        return sum(layers.token_bytes for layers in self.kv_layers)

    def sequence_bytes(self, tokens: int, block_tokens: int) -> float:
        """KV and state of one sequence of `tokens`, in whole blocks; windows cap what is kept."""
        total = self.state_bytes
        for layers in self.kv_layers:
            kept = tokens if layers.window is None else min(tokens, layers.window)
            total += math.ceil(kept / block_tokens) * block_tokens * layers.token_bytes
        return total

    def parts(self) -> dict[str, float]:
        """What is resident beside KV, by name."""
        return {
            "weights": self.weight_bytes,
            "draft weights": self.draft_weight_bytes,
            "activations": self.activation_bytes,
            "communication buffers": self.communication_bytes,
            "runtime": self.runtime_bytes,
        }


@dataclass(frozen=True, slots=True)
class ServingMemory:
    """Memory of a whole deployment; attention-DP ranks are alike and each holds KV of its own sequences."""

    stages: tuple[StageMemory, ...]
    data: int
    block_tokens: int
    reserved_output: float = 1.0

    @property
    def shortfall_bytes(self) -> float:
        """Bytes that a device of the fullest stage lacks before any KV; 0 when it all fits."""
        return max(0.0, -min(stage.usable_kv_bytes for stage in self.stages))

    @property
    def kv_blocks(self) -> int | None:
        """KV blocks of a data rank if every layer keeps every token: the least of the stages; None if nothing is cached."""
        counts = [
            max(0, math.floor(stage.usable_kv_bytes / (self.block_tokens * stage.token_bytes)))
            for stage in self.stages
            if stage.token_bytes > 0
        ]
        return min(counts, default=None)

    def admissible_concurrency(self, tokens: int) -> int:
        """Sequences of `tokens` (prompt and output) that the whole deployment holds at once; no plan may exceed it."""
        at_least_one(tokens=tokens)
        per_rank = min(self._per_stage(stage, tokens) for stage in self.stages)
        return self.data * per_rank

    def running_limit(self, input_tokens: int, output_tokens: int) -> int:
        """Requests that run at once in steady state; none may, as a whole, exceed what is there."""
        if self.admissible_concurrency(input_tokens + output_tokens) == 0:
            return 0
        return self.admissible_concurrency(input_tokens + math.ceil(self.reserved_output * output_tokens))

    def _per_stage(self, stage: StageMemory, tokens: int) -> int:
        return max(0, math.floor(stage.usable_kv_bytes / stage.sequence_bytes(tokens, self.block_tokens)))

    def require(self, sequences: int, tokens: int) -> None:
        """Raise `ConfigError`, saying by how much and with a breakdown, unless `sequences` of `tokens` fit at once."""
        at_least_one(sequences=sequences, tokens=tokens)
        per_rank = math.ceil(sequences / self.data)
        missing = {
            stage.stage: per_rank * stage.sequence_bytes(tokens, self.block_tokens) - stage.usable_kv_bytes
            for stage in self.stages
        }
        worst = max(missing, key=lambda index: missing[index])
        if missing[worst] <= 0:
            return
        stage = self.stages[worst]
        parts = ", ".join(f"{name} {value / GIB:.2f}" for name, value in stage.parts().items() if value)
        kv = per_rank * stage.sequence_bytes(tokens, self.block_tokens) / GIB
        raise ConfigError(
            f"out of memory by {missing[worst] / GIB:.2f} GiB on each device of stage {worst}: {parts}, KV of {per_rank} "
            f"sequences of {tokens} tokens {kv:.2f} of {stage.total_bytes / GIB:.2f} GiB usable; "
            f"{self.admissible_concurrency(tokens)} sequences fit"
        )


def serving_memory(
    deployment: Deployment,
    device: Device,
    *,
    step_tokens: int = 8192,
    step_sequences: int = 256,
    constants: MemoryConstants | None = None,
    draft: Deployment | None = None,
) -> ServingMemory:
    """Memory of `deployment` on `device`s.

    Args:
        step_tokens: most tokens of a step of one data rank (the chunk size); step_sequences: most logit rows.
        draft: a draft model beside it, under the same pipeline degree, or whole on every stage with degree 1.

    Raises:
        ConfigError: tokens or sequences below 1, or a draft with another pipeline degree.
    """
    at_least_one(step_tokens=step_tokens, step_sequences=step_sequences)
    constants = constants or MemoryConstants()
    plan = deployment.plan
    if draft is not None and draft.plan.pipeline not in (1, plan.pipeline):
        raise ConfigError(f"the draft's pipeline degree must be 1 or {plan.pipeline}, got {draft.plan.pipeline}")
    templates = forward_templates(deployment)
    draft_templates = () if draft is None else forward_templates(draft)
    total = device.memory.value * constants.total_fraction
    communication = constants.communication_bytes(max(plan.tensor, plan.expert_group, plan.context, plan.pipeline))
    stages = []
    for stage in range(plan.pipeline):
        draft_stage = stage if draft is not None and draft.plan.pipeline > 1 else 0
        weights, draft_weights = held_weight_bytes(templates, stage), held_weight_bytes(draft_templates, draft_stage)
        activations = _peak_activation_bytes(deployment, templates, stage, step_tokens, step_sequences)
        if draft is not None:
            peak = _peak_activation_bytes(draft, draft_templates, draft_stage, step_tokens, step_sequences)
            activations = max(activations, peak)
        usable = usable_kv_bytes(
            total, weights + draft_weights, activations, communication + constants.runtime.value, constants.kv_fraction
        )
        stages.append(
            StageMemory(
                stage=stage,
                total_bytes=total,
                weight_bytes=weights,
                draft_weight_bytes=draft_weights,
                activation_bytes=activations,
                communication_bytes=communication,
                runtime_bytes=constants.runtime.value,
                usable_kv_bytes=usable,
                state_bytes=_state_bytes(deployment, stage) + (0.0 if draft is None else _state_bytes(draft, draft_stage)),
                kv_layers=_kv_layers(deployment, stage) + (() if draft is None else _kv_layers(draft, draft_stage)),
            )
        )
    return ServingMemory(tuple(stages), plan.data, constants.block_tokens, constants.reserved_output)


def _kv_layers(deployment: Deployment, stage: int) -> tuple[KvLayers, ...]:
    plan = deployment.plan
    totals: dict[int | None, float] = {}
    for count, layer in layer_runs(deployment.spec, *deployment.stages[stage]):
        token = layer_kv_bytes(layer.attention, 1, deployment.precisions.kv, plan.tensor) / plan.context
        window = layer.attention.window if isinstance(layer.attention, Gqa) else None
        if token:
            totals[window] = totals.get(window, 0.0) + count * token
    return tuple(KvLayers(token_bytes, window) for window, token_bytes in totals.items())


def _state_bytes(deployment: Deployment, stage: int) -> float:
    """Recurrent state of one sequence: matrix state and convolution tail in fp32."""
    total = 0.0
    for count, layer in layer_runs(deployment.spec, *deployment.stages[stage]):
        attention = layer.attention
        if isinstance(attention, LinearAttention):
            channels = 2 * attention.kv_heads * attention.key_dim + attention.heads * attention.value_dim
            matrix = attention.heads * attention.key_dim * attention.value_dim
            total += count * 4.0 * (matrix + channels * (attention.conv_width - 1)) / deployment.plan.tensor
    return total


def _peak_activation_bytes(
    deployment: Deployment, templates: tuple[Template, ...], stage: int, tokens: int, sequences: int
) -> float:
    """Residual stream and the op with the largest inputs and outputs, of a step of so many tokens.

    Norms work in place; latent attention expands the context in pieces of at most a step's tokens.
    """
    not_negative(tokens=tokens, sequences=sequences)
    rows = dict.fromkeys(Rows, float(tokens)) | {
        Rows.LOGITS: float(min(sequences, tokens)),
        Rows.SEQUENCES: float(sequences),
    }
    largest = max(
        template.share * rows[template.counted_in] * template.activation_bytes
        for template in templates
        if isinstance(template, RowOp) and template.place.stage == stage and template.kind is not OpKind.NORM
    )
    residual = tokens * deployment.residual_share * deployment.spec.hidden_size * deployment.activation_bytes
    return largest + residual
