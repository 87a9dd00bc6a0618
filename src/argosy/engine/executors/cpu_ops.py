"""Appends the ops of a decoder to a tape, with their operands in a step's buffers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from argosy.engine.executors.cpu_buffers import FloatArray, HeaderField, StepBuffers
from argosy.engine.executors.cpu_weights import Projection
from argosy.engine.executors.sized_tape import LOGIT_ROWS, TOKENS, Size, SizedTapeBuilder
from argosy.kernels.gemm.abi import GemmArg
from argosy.kernels.hadamard import RotateArgs, rotate_quantize_tokens_op
from argosy.kernels.ops_activation import GateArgs, GateFunction, gate_op, gate_quantize_op
from argosy.kernels.ops_embed import EMBED_KINDS, EmbedArgs, embed_op
from argosy.kernels.ops_logits import ArgMaxArgs, arg_max_op, chunk_arg_max_op, num_chunks
from argosy.kernels.ops_norm import NormArgs, rms_norm_op, rms_norm_quantize_op
from argosy.kernels.packed import PackedMatrix, WeightKind
from argosy.kernels.quantize_activations import padded_columns, quantize_groups_op
from argosy.kernels.quantize_vectors import GROUP
from argosy.kernels.tape import PerThread, op_address
from argosy.models.config import Activation

FLOAT_KINDS = frozenset({WeightKind.F32, WeightKind.BF16, WeightKind.F16})
_CHUNK_BYTES = 24 * 1024
"""Weights that a thread takes at a time, at least: about a microsecond of reading, ten times what taking them costs."""
_GATE_GROUPS_PER_ITEM = 8
_GATE_FUNCTIONS = {"silu": GateFunction.SILU, "gelu_tanh": GateFunction.GELU_TANH}


@dataclass(frozen=True, slots=True)
class InputForms:
    """In which forms the matrices of a projection take their input.

    Attributes:
        floats: as f32.
        quantized: as bytes with a scale per 32.
        token_block: as bytes with a scale per token, after rotation by this Hadamard block; 0 for not so, and then none of
            the others.
        refined: of the bytes with a scale per 32, the groups that are refined.
    """

    floats: bool
    quantized: bool
    token_block: int = 0
    refined: tuple[int, ...] = ()

    @classmethod
    def of(cls, projection: Projection) -> InputForms:
        """What `projection` needs."""
        kinds = {part.kind for part in projection.parts}
        if kinds == {WeightKind.INT8}:
            return cls(floats=False, quantized=False, token_block=projection.input_block)
        assert WeightKind.INT8 not in kinds, "weights with a scale per row share no input with others"
        floats, quantized = bool(kinds & FLOAT_KINDS), bool(kinds - FLOAT_KINDS)
        return cls(floats=floats, quantized=quantized, refined=projection.refined)

    @property
    def needs_floats_first(self) -> bool:
        """Whether f32 must be written, if only to be quantised from."""
        return self.floats or self.token_block > 0


@dataclass(frozen=True, slots=True)
class NormWeights:
    """A norm of the residual stream. `branch_weight`: the stream first takes in `StepBuffers.branch`, normalised by it."""

    weight: FloatArray
    eps: float
    branch_weight: FloatArray | None = None


class OpWriter:
    """Appends ops to `tape`; every address comes from `buffers` or from arrays that the caller keeps alive.

    `products` are the addresses of the matrix products, by the kind of their weights.
    """

    def __init__(self, tape: SizedTapeBuilder, buffers: StepBuffers, products: Mapping[WeightKind, int]) -> None:
        self.tape = tape
        self.buffers = buffers
        self._products = products

    def embed(self, matrix: PackedMatrix, scale: float) -> None:
        """Begin the residual stream with the tokens' rows of `matrix`, times `scale`."""
        b = self.buffers
        args = EmbedArgs(
            token_ids=b.token_ids.ctypes.data,
            data=matrix.data.ctypes.data,
            panel_bytes=matrix.panel_bytes,
            columns=matrix.columns,
            kind=EMBED_KINDS[matrix.kind],
            scale=float(scale),
            out=b.hidden.ctypes.data,
        )
        self.tape.add_sized(op_address(embed_op), args, size=TOKENS)

    def norm(self, norm: NormWeights, forms: InputForms) -> None:
        """Normalise the residual stream of every token, in the forms wanted."""
        self._norm(norm, forms, rows_address=0, size=TOKENS)

    def norm_rows(self, norm: NormWeights, forms: InputForms, rows_address: int, size: Size) -> None:
        """Normalise the residual stream of the tokens listed as i64 at `rows_address`."""
        assert norm.branch_weight is None
        self._norm(norm, forms, rows_address=rows_address, size=size)

    def _norm(self, norm: NormWeights, forms: InputForms, *, rows_address: int, size: Size) -> None:
        b = self.buffers
        columns = b.hidden.shape[1]
        has_branch = norm.branch_weight is not None
        args = NormArgs(
            hidden=b.hidden.ctypes.data,
            branch=b.branch.ctypes.data if has_branch else 0,
            branch_weight=norm.branch_weight.ctypes.data if norm.branch_weight is not None else 0,
            weight=norm.weight.ctypes.data,
            columns=columns,
            eps=norm.eps,
            rows=rows_address,
            out=b.normed.ctypes.data,
        )
        if forms.needs_floats_first:
            assert not forms.refined
            self.tape.add_sized(op_address(rms_norm_op), args, size=size)
            self._quantize(b.normed, columns, forms, size)
            return
        args = args._replace(
            out=self._scratch(),
            q=b.quantized.ctypes.data,
            scales=b.scales.ctypes.data,
            scale_sums=b.scale_sums.ctypes.data,
            refined=self.tape.table(forms.refined),
            num_refined=len(forms.refined),
        )
        self.tape.add_sized(op_address(rms_norm_quantize_op), args, size=size)

    def quantize_attended(self, forms: InputForms) -> None:
        """Bring what attention gave, as f32, into the forms wanted."""
        self._quantize(self.buffers.attended, self.buffers.attended.shape[1], forms, TOKENS)

    def _quantize(self, x: FloatArray, columns: int, forms: InputForms, size: Size) -> None:
        """Quantise `x` if that is among `forms`."""
        b = self.buffers
        addresses = (b.quantized.ctypes.data, b.scales.ctypes.data, b.scale_sums.ctypes.data)
        args = (x.ctypes.data, x.strides[0], columns, *addresses)
        if forms.token_block:
            rotate = RotateArgs(*args, block=forms.token_block)
            self.tape.add_sized(op_address(rotate_quantize_tokens_op), rotate, size=size)
        elif forms.quantized:
            self.tape.add_sized(op_address(quantize_groups_op), args, size=size)

    def project(
        self,
        projection: Projection,
        floats: FloatArray,
        out: FloatArray,
        *,
        accumulate: bool = False,
        count: HeaderField = HeaderField.NUM_TOKENS,
    ) -> None:
        """out (+)= projection · input, the input being `floats` or what was quantised last."""
        column = 0
        for part in projection.parts:
            self._gemm(part, projection.refined, floats, out, column, accumulate=accumulate, count=count)
            column += part.rows

    def _gemm(
        self,
        matrix: PackedMatrix,
        refined: tuple[int, ...],
        floats: FloatArray,
        out: FloatArray,
        column: int,
        *,
        accumulate: bool,
        count: HeaderField,
    ) -> None:
        b = self.buffers
        args = dict.fromkeys(GemmArg, 0)
        args[GemmArg.NUM_TOKENS] = b.header_address(count)
        args[GemmArg.WEIGHTS] = matrix.data.ctypes.data
        args[GemmArg.ROWS] = matrix.rows
        args[GemmArg.PANEL_BYTES] = matrix.panel_bytes
        groups = padded_columns(matrix.columns) // GROUP
        args[GemmArg.GROUPS] = groups
        if matrix.kind in FLOAT_KINDS:
            args[GemmArg.ACTIVATIONS] = floats.ctypes.data
            args[GemmArg.ACTIVATION_STRIDE_BYTES] = floats.strides[0]
        else:
            args[GemmArg.ACTIVATIONS] = b.quantized.ctypes.data
            args[GemmArg.ACTIVATION_STRIDE_BYTES] = (groups + len(refined)) * GROUP
            args[GemmArg.SCALES] = b.scales.ctypes.data
            args[GemmArg.SCALED_SUMS] = b.scale_sums.ctypes.data
            scales_per_token = 1 if matrix.kind is WeightKind.INT8 else groups + len(refined)
            args[GemmArg.SCALE_STRIDE_BYTES] = scales_per_token * b.scales.itemsize
            args[GemmArg.NUM_REFINED] = len(refined)
            args[GemmArg.REFINED_OFFSETS] = self.tape.table([group * (matrix.panel_bytes // groups) for group in refined])
        args[GemmArg.OUT] = out.ctypes.data + column * out.itemsize
        args[GemmArg.OUT_STRIDE_BYTES] = out.strides[0]
        args[GemmArg.BIAS] = 0 if matrix.bias is None else matrix.bias.ctypes.data
        args[GemmArg.ACCUMULATE] = int(accumulate)
        chunk = max(1, _CHUNK_BYTES // matrix.panel_bytes)
        self.tape.add(self._products[matrix.kind], [args[arg] for arg in GemmArg], items=matrix.num_panels, chunk=chunk)

    def gate(self, activation: Activation, columns: int, forms: InputForms) -> None:
        """activation(gate) · up of every token, in the forms wanted."""
        b = self.buffers
        items_each = math.ceil(math.ceil(columns / GROUP) / _GATE_GROUPS_PER_ITEM)
        args = GateArgs(
            gate_up=b.gate_up.ctypes.data,
            columns=columns,
            interleaved=0,
            function=_GATE_FUNCTIONS[activation],
            groups_per_item=_GATE_GROUPS_PER_ITEM,
            out=b.activated.ctypes.data,
        )
        if forms.needs_floats_first:
            self.tape.add_sized(op_address(gate_op), args, size=TOKENS, items_each=items_each)
            self._quantize(b.activated, columns, forms, TOKENS)
            return
        args = args._replace(
            out=self._scratch(),
            q=b.quantized.ctypes.data,
            scales=b.scales.ctypes.data,
            scale_sums=b.scale_sums.ctypes.data,
        )
        self.tape.add_sized(op_address(gate_quantize_op), args, size=TOKENS, items_each=items_each)

    def arg_max(self, softcap: float) -> None:
        """Cap the logits (0: leave them) and find the greatest of each row."""
        b = self.buffers
        vocab = b.logits.shape[1]
        args = ArgMaxArgs(
            logits=b.logits.ctypes.data,
            vocab=vocab,
            softcap=softcap,
            found=b.greatest_by_chunk.ctypes.data,
            token_ids=b.greatest_ids.ctypes.data,
            greatest=b.greatest.ctypes.data,
        )
        self.tape.add_sized(op_address(chunk_arg_max_op), args, size=LOGIT_ROWS, items_each=num_chunks(vocab))
        self.tape.add_sized(op_address(arg_max_op), args, size=LOGIT_ROWS)

    def _scratch(self) -> PerThread:
        return PerThread(self.buffers.scratch.ctypes.data, self.buffers.scratch.strides[0])
