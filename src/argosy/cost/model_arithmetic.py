"""Exact counts from a model's shape: parameters, active parameters, KV bytes, recurrent state, layers per stage."""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from argosy.cost.device import Precision
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, LinearAttention, Mla, ModelSpec, QkNorm
from argosy.errors import ConfigError

# The reference indexer keeps its keys in fp8 with one fp32 scale per 128 elements.
INDEX_KEY_BYTES_PER_ELEMENT = 1.0 + 4.0 / 128.0


class ActiveConvention(enum.StrEnum):
    """What "active parameters" counts. The head always counts; a tied matrix is the head."""

    WITH_INPUT_EMBEDDING = "with input embedding"
    WITHOUT_INPUT_EMBEDDING = "without input embedding"


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Elements of one layer. `routed` is of all routed experts; `routed_active` of the `top_k` a token visits."""

    attention: int
    dense_ffn: int
    router: int
    routed: int
    routed_active: int
    shared: int
    norms: int

    @property
    def total(self) -> int:
        """All elements of the layer."""
        return self.attention + self.dense_ffn + self.router + self.routed + self.shared + self.norms

    @property
    def active(self) -> int:
        """Elements that take part in computing one token."""
        return self.total - self.routed + self.routed_active


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """Elements of a whole model. `embedding` holds learned positions too; `head` is 0 where it is tied to the embedding."""

    embedding: int
    head: int
    final_norm: int
    attention: int
    dense_ffn: int
    router: int
    routed: int
    routed_active: int
    shared: int
    norms: int

    @property
    def total(self) -> int:
        """All elements, each once."""
        outside = self.embedding + self.head + self.final_norm
        return outside + self.attention + self.dense_ffn + self.router + self.routed + self.shared + self.norms


def attention_parameters(attention: Gqa | Mla | LinearAttention, hidden_size: int) -> int:
    """Elements of the projections, biases, norms and sinks of one attention block."""
    if isinstance(attention, Gqa):
        return _gqa_parameters(attention, hidden_size)
    if isinstance(attention, Mla):
        return _mla_parameters(attention, hidden_size)
    keys, values = 2 * attention.kv_heads * attention.key_dim, attention.heads * attention.value_dim
    projections = hidden_size * (keys + 2 * values + 2 * attention.heads) + values * hidden_size
    convolution = (keys + values) * attention.conv_width
    return projections + convolution + 2 * attention.heads + attention.value_dim  # decay and step per head, output norm


def _gqa_parameters(attention: Gqa, hidden_size: int) -> int:
    queries = attention.heads * attention.head_dim
    keys = attention.kv_heads * attention.head_dim
    projected = (2 if attention.output_gate else 1) * queries + (1 if attention.keys_are_values else 2) * keys
    count = hidden_size * (projected + queries)
    count += projected if attention.qkv_bias else 0
    count += hidden_size if attention.output_bias else 0
    count += attention.heads if attention.sinks else 0
    norms = {QkNorm.NONE: 0, QkNorm.PER_HEAD: 2 * attention.head_dim, QkNorm.PER_PROJECTION: queries + keys}
    return count + norms[attention.qk_norm]


def _mla_parameters(attention: Mla, hidden_size: int) -> int:
    queries = attention.heads * (attention.nope_dim + attention.rope_dim)
    if attention.q_lora is None:
        count = hidden_size * queries
    else:
        count = hidden_size * attention.q_lora + attention.q_lora + attention.q_lora * queries
    count += hidden_size * (attention.kv_lora + attention.rope_dim) + attention.kv_lora
    count += attention.kv_lora * attention.heads * (attention.nope_dim + attention.v_dim)
    count += attention.heads * attention.v_dim * hidden_size
    if attention.index is not None:
        index = attention.index
        count += (attention.q_lora or hidden_size) * index.heads * index.dim + hidden_size * (index.dim + index.heads)
        count += 2 * index.dim  # the key's LayerNorm has weight and bias
    return count


def ffn_matrix_parameters(hidden_size: int, size: int, *, gated: bool, bias: bool) -> int:
    """Elements of one feed-forward (or one expert) of `size`."""
    inner = (2 if gated else 1) * size
    return hidden_size * (inner + size) + ((inner + hidden_size) if bias else 0)


@functools.lru_cache(maxsize=4096)
def layer_parameters(layer: Layer, hidden_size: int, *, norm_has_bias: bool = False) -> LayerParameters:
    """Elements of one decoder layer, by part."""
    ffn = layer.ffn
    dense = router = routed = routed_active = shared = 0
    if isinstance(ffn, DenseFfn):
        dense = ffn_matrix_parameters(hidden_size, ffn.size, gated=ffn.gated, bias=ffn.bias)
    else:
        expert = ffn_matrix_parameters(hidden_size, ffn.size, gated=ffn.gated, bias=ffn.bias)
        routed, routed_active = ffn.experts * expert, ffn.top_k * expert
        router = hidden_size * ffn.experts + (ffn.experts if ffn.router_bias else 0)
        router += hidden_size if ffn.router_scale else 0
        if ffn.shared_size:
            shared = ffn_matrix_parameters(hidden_size, ffn.shared_size, gated=ffn.gated, bias=ffn.bias)
            shared += hidden_size if ffn.shared_gate else 0
    norms = layer.norms * hidden_size * (2 if norm_has_bias else 1)
    attention = attention_parameters(layer.attention, hidden_size)
    return LayerParameters(attention, dense, router, routed, routed_active, shared, norms)


@functools.lru_cache(maxsize=1024)
def model_parameters(spec: ModelSpec) -> ModelParameters:
    """Elements of the model, by part; `.total` is the published parameter count."""
    hidden = spec.hidden_size
    parts = [(count, layer_parameters(layer, hidden, norm_has_bias=spec.norm_has_bias)) for count, layer in spec.layers]
    return ModelParameters(
        embedding=(spec.vocab_size + spec.learned_positions) * hidden,
        head=0 if spec.tied_embeddings else spec.vocab_size * hidden,
        final_norm=hidden * (2 if spec.norm_has_bias else 1),
        attention=sum(count * part.attention for count, part in parts),
        dense_ffn=sum(count * part.dense_ffn for count, part in parts),
        router=sum(count * part.router for count, part in parts),
        routed=sum(count * part.routed for count, part in parts),
        routed_active=sum(count * part.routed_active for count, part in parts),
        shared=sum(count * part.shared for count, part in parts),
        norms=sum(count * part.norms for count, part in parts),
    )


def parameter_count(spec: ModelSpec) -> int:
    """All parameters, each stored element once, without modules for multi-token prediction."""
    return model_parameters(spec).total


def active_parameters(spec: ModelSpec, convention: ActiveConvention) -> int:
    """Parameters that take part in computing one token, under the convention named.

    Tables of models disagree on whether the input embedding (a look-up, no FLOPs) counts: gpt-oss-20b is 4.19 B with it and
    3.61 B without. A tied matrix is used as the head and counts in both; learned positions are part of the input embedding.
    """
    parts = model_parameters(spec)
    active = parts.total - parts.routed + parts.routed_active
    if convention is ActiveConvention.WITH_INPUT_EMBEDDING:
        return active
    tied = spec.vocab_size * spec.hidden_size if spec.tied_embeddings else 0
    return active - parts.embedding + tied


def mtp_parameters(spec: ModelSpec) -> int:
    """Parameters of the multi-token prediction modules that the main model does not share (DeepSeek-V3, section 2.2).

    A module is one more layer of the last kind, a projection of two hidden vectors to one, a norm on each of the two and one
    before the shared head; embedding and head are the main model's.
    """
    last = layer_parameters(spec.layers[-1][1], spec.hidden_size, norm_has_bias=spec.norm_has_bias)
    return spec.mtp_layers * (last.total + 2 * spec.hidden_size**2 + 3 * spec.hidden_size)


def kv_heads_per_device(attention: Gqa, tensor: int) -> int:
    """KV heads that each of `tensor` devices holds: a share, or one replica once there are more devices than heads.

    Raises:
        ConfigError: the heads do not divide.
    """
    if attention.heads % tensor:
        raise ConfigError(f"tensor parallelism {tensor} does not divide {attention.heads} attention heads")
    if tensor <= attention.kv_heads:
        if attention.kv_heads % tensor:
            raise ConfigError(f"tensor parallelism {tensor} does not divide {attention.kv_heads} KV heads")
        return attention.kv_heads // tensor
    if tensor % attention.kv_heads:
        raise ConfigError(f"tensor parallelism {tensor} is not a multiple of {attention.kv_heads} KV heads to replicate")
    return 1


def kv_elements_per_token(attention: Gqa | Mla | LinearAttention, tensor: int = 1) -> int:
    """Elements cached per token by one layer on each of `tensor` devices, without an indexer's keys.

    Grouped-query: keys and values of the device's KV heads. MLA: the latent and its rope part, the same on every device.
    Linear attention: none.

    Raises:
        ConfigError: `tensor` does not divide the heads.
    """
    if isinstance(attention, Gqa):
        return 2 * kv_heads_per_device(attention, tensor) * attention.head_dim
    if attention.heads % tensor:
        raise ConfigError(f"tensor parallelism {tensor} does not divide {attention.heads} attention heads")
    return attention.kv_lora + attention.rope_dim if isinstance(attention, Mla) else 0


def layer_kv_bytes(attention: Gqa | Mla | LinearAttention, tokens: int, precision: Precision, tensor: int = 1) -> float:
    """KV bytes of one sequence of `tokens` in one layer on each of `tensor` devices; a window caps the tokens kept.

    Raises:
        ConfigError: `tensor` does not divide the heads, or `tokens` is negative.
    """
    if tokens < 0:
        raise ConfigError(f"a sequence cannot have {tokens} tokens")
    window = attention.window if isinstance(attention, Gqa) else None
    kept = tokens if window is None else min(tokens, window)
    index = attention.index.dim * INDEX_KEY_BYTES_PER_ELEMENT if isinstance(attention, Mla) and attention.index else 0.0
    return kept * (kv_elements_per_token(attention, tensor) * precision.bytes_per_element + index)


def kv_bytes(
    spec: ModelSpec, tokens: int, precision: Precision, *, tensor: int = 1, layers: tuple[int, int] | None = None
) -> float:
    """KV bytes of one sequence of `tokens` on one device.

    Args:
        tensor: devices the heads are split over; what is replicated makes their sum exceed the whole.
        layers: (first, one past the last) of a pipeline stage, or None for all.

    Raises:
        ConfigError: `tensor` does not divide the heads, `tokens` is negative, or `layers` is outside the model.
    """
    runs = layer_runs(spec, *(layers or (0, spec.num_layers)))
    return sum(count * layer_kv_bytes(layer.attention, tokens, precision, tensor) for count, layer in runs)


def kv_bytes_per_token(spec: ModelSpec, precision: Precision, *, tensor: int = 1) -> float:
    """KV bytes that one more token costs on one device while no window is full yet.

    Raises:
        ConfigError: `tensor` does not divide the heads.
    """
    return kv_bytes(spec, 1, precision, tensor=tensor)


def state_bytes(spec: ModelSpec, precision: Precision = Precision.FP32, *, tensor: int = 1) -> float:
    """Bytes of recurrent state of one sequence on one device: matrix state and convolution tail of linear attention layers.

    The matrix state is usually kept in fp32 whatever the weights are.

    Raises:
        ConfigError: `tensor` does not divide the heads of a linear attention layer.
    """
    total = 0.0
    for count, layer in spec.layers:
        attention = layer.attention
        if not isinstance(attention, LinearAttention):
            continue
        if attention.heads % tensor or attention.kv_heads % tensor:
            heads = f"{attention.heads} value and {attention.kv_heads} key heads"
            raise ConfigError(f"tensor parallelism {tensor} does not divide {heads} of linear attention")
        channels = 2 * attention.kv_heads * attention.key_dim + attention.heads * attention.value_dim
        matrix = attention.heads * attention.key_dim * attention.value_dim
        total += count * (matrix + channels * (attention.conv_width - 1)) * precision.bytes_per_element / tensor
    return total


def split_layers(num_layers: int, stages: int) -> tuple[tuple[int, int], ...]:
    """(first, one past the last) layer of each pipeline stage; sizes differ by at most one, larger ones first.

    Raises:
        ConfigError: fewer layers than stages, or no stage.
    """
    if not 1 <= stages <= num_layers:
        raise ConfigError(f"{num_layers} layers cannot be split into {stages} pipeline stages")
    share, rest = divmod(num_layers, stages)
    bounds = [stage * share + min(stage, rest) for stage in range(stages + 1)]
    return tuple(itertools.pairwise(bounds))


def layer_runs(spec: ModelSpec, first: int, stop: int) -> Iterator[tuple[int, Layer]]:
    """Runs (count, layer) of the layers `first` to `stop` - 1, in order.

    Raises:
        ConfigError: the range is not within the model.
    """
    if not 0 <= first <= stop <= spec.num_layers:
        raise ConfigError(f"layers {first} to {stop} are not within the {spec.num_layers} layers of {spec.name}")
    start = 0
    for count, layer in spec.layers:
        inside = min(stop, start + count) - max(first, start)
        if inside > 0:
            yield inside, layer
        start += count
