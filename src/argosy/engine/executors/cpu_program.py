"""A model as two tapes: one takes a step's tokens through all layers, one makes logits of some of them.

    forward:  embed, then per layer
              norm → q, k, v → rotate, write K and V → attention → output (+)
              norm → gate, up → activation → down (+)
    logits:   final norm of the wanted rows → head → softcap, greatest

(+) adds to the residual stream. Where a norm follows the block first (Gemma), the product goes to `branch`, and the next
norm op adds it. An input is quantised by the op that makes it, unless some product of it needs f32, or it is rotated first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from argosy.engine.executors.cpu_attention import AttentionPlanner, LayerPool
from argosy.engine.executors.cpu_buffers import FloatArray, HeaderField, StepBuffers
from argosy.engine.executors.cpu_ops import InputForms, NormWeights, OpWriter
from argosy.engine.executors.cpu_refinement import ScaleRecorder
from argosy.engine.executors.cpu_weights import LayerWeights, ModelWeights, Projection
from argosy.engine.executors.sized_tape import LOGIT_ROWS, TOKENS, Size, SizedTape, SizedTapeBuilder
from argosy.kernels.kv_elements import KV_ELEMENTS
from argosy.kernels.ops_rope import RopeArgs, rope_op
from argosy.kernels.packed import WeightKind
from argosy.kernels.tape import op_address
from argosy.models.architectures.rope import RopeTable
from argosy.models.config import ModelConfig, RopeConfig


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """cos and sin of every position, f32[positions, rotary_dim / 2]."""

    cos: FloatArray
    sin: FloatArray

    @classmethod
    def build(cls, rope: RopeConfig, head_dim: int, max_positions: int) -> RotaryTable:
        """The table of positions below `max_positions`."""
        table = RopeTable(rope, head_dim, max_positions, dtype=torch.float32, device="cpu")
        return cls(table.cos.numpy(), table.sin.numpy())


@dataclass(frozen=True, slots=True)
class Program:
    """The tapes of one model, and what must live as long as they do."""

    forward: SizedTape
    logits: SizedTape
    keeps: tuple[object, ...]


class ProgramBuilder:
    """Builds the tapes of a dense decoder.

    Args:
        weights: kept alive by the program.
        pool: addresses of a layer's K and V.
        kv_dtype: element type of the pool.
        max_positions: rows of the rotary tables.
        products: addresses of the matrix products, by the kind of their weights.
        recorder: takes down the scales of what goes into qkv, gate and up of each layer, and into the head.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        buffers: StepBuffers,
        attention: AttentionPlanner,
        *,
        pool: Callable[[int], LayerPool],
        kv_dtype: str,
        max_positions: int,
        num_threads: int,
        products: Mapping[WeightKind, int],
        recorder: ScaleRecorder | None = None,
    ) -> None:
        self._recorder = recorder
        self._config = config
        self._weights = weights
        self._buffers = buffers
        self._attention = attention
        self._pool = pool
        self._element = KV_ELEMENTS[kv_dtype]
        self._num_threads = num_threads
        self._products = products
        self._rope = RotaryTable.build(config.rope, config.head_dim, max_positions)
        self._rope_local = self._rope
        if config.rope_local is not None:
            self._rope_local = RotaryTable.build(config.rope_local, config.head_dim, max_positions)

    def build(self) -> Program:
        """The program."""
        keeps = (self._weights, self._buffers, self._attention, self._rope, self._rope_local)
        return Program(self._forward(), self._logits(), keeps)

    def _writer(self) -> OpWriter:
        return OpWriter(SizedTapeBuilder(self._num_threads), self._buffers, self._products)

    def _forward(self) -> SizedTape:
        ops = self._writer()
        ops.embed(self._weights.embedding, self._config.embedding_scale)
        branch_weight: FloatArray | None = None  # of what waits in `branch` to be added
        for index, layer in enumerate(self._weights.layers):
            self._attention_block(ops, index, layer, branch_weight)
            self._mlp_block(ops, layer)
            branch_weight = layer.mlp_post_norm
        if branch_weight is not None:
            ops.norm(self._norm(self._weights.final_norm, branch_weight), InputForms(floats=True, quantized=False))
        return ops.tape.build()

    def _attention_block(self, ops: OpWriter, index: int, layer: LayerWeights, branch_weight: FloatArray | None) -> None:
        b, config = self._buffers, self._config
        ops.norm(self._norm(layer.attention_norm, branch_weight), InputForms.of(layer.qkv))
        self._record(ops, layer.qkv, TOKENS)
        ops.project(layer.qkv, b.normed, b.qkv)
        pool = self._pool(index)
        rope = self._rope if config.layer_windows[index] is None else self._rope_local
        args = RopeArgs(
            qkv=b.qkv.ctypes.data,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            half=rope.cos.shape[1],
            cos=rope.cos.ctypes.data,
            sin=rope.sin.ctypes.data,
            positions=b.positions.ctypes.data,
            slots=b.slots.ctypes.data,
            k_pool=pool.k_address,
            v_pool=pool.v_address,
            element=self._element,
            q_norm=_address(layer.q_norm),
            k_norm=_address(layer.k_norm),
            eps=float(config.norm_eps),
        )
        heads = config.num_heads + 2 * config.num_kv_heads
        ops.tape.add_sized(op_address(rope_op), args, size=TOKENS, items_each=heads, chunk=4)
        forms = InputForms.of(layer.attention_output)
        by_attention = forms.quantized and not forms.needs_floats_first
        if not self._attention.append(ops.tape, b, index, pool, quantize=by_attention):
            ops.quantize_attended(forms)
        self._to_stream(ops, layer.attention_output, b.attended, layer.attention_post_norm)

    def _mlp_block(self, ops: OpWriter, layer: LayerWeights) -> None:
        b, config = self._buffers, self._config
        ops.norm(self._norm(layer.mlp_norm, layer.attention_post_norm), InputForms.of(layer.gate_up))
        self._record(ops, layer.gate_up, TOKENS)
        ops.project(layer.gate_up, b.normed, b.gate_up)
        ops.gate(config.activation, config.intermediate_size, InputForms.of(layer.down))
        self._to_stream(ops, layer.down, b.activated, layer.mlp_post_norm)

    def _to_stream(self, ops: OpWriter, projection: Projection, floats: FloatArray, post_norm: FloatArray | None) -> None:
        """The end of a block: into the residual stream, or into `branch` if a norm comes first."""
        if post_norm is None:
            ops.project(projection, floats, self._buffers.hidden, accumulate=True)
        else:
            ops.project(projection, floats, self._buffers.branch)

    def _logits(self) -> SizedTape:
        ops, b, head = self._writer(), self._buffers, self._weights.head
        norm = self._norm(self._weights.final_norm)
        ops.norm_rows(norm, InputForms.of(head), b.logit_rows.ctypes.data, LOGIT_ROWS)
        self._record(ops, head, LOGIT_ROWS)
        ops.project(head, b.normed, b.logits, count=HeaderField.NUM_LOGIT_ROWS)
        ops.arg_max(float(self._config.final_logit_softcap or 0.0))
        return ops.tape.build()

    def _record(self, ops: OpWriter, projection: Projection, size: Size) -> None:
        if self._recorder is not None:
            self._recorder.append(ops.tape, self._buffers, projection, size)

    def _norm(self, weight: FloatArray, branch_weight: FloatArray | None = None) -> NormWeights:
        return NormWeights(weight, float(self._config.norm_eps), branch_weight)


def _address(array: NDArray[np.float32] | None) -> int:
    return 0 if array is None else array.ctypes.data
