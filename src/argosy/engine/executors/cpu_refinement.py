"""Which groups of a product's input are quantised more finely: those with outliers.

In a trained model a few channels of the residual stream are far larger than the others, for every token alike (Dettmers et
al. 2022, LLM.int8()). They set the scale of the group of 32 they are in, and as a group's rounding error grows with the
square of its scale, one or two of 18 groups make most of the error of a whole product. What rounding left of these is
quantised once more (`kernels/quantize_activations.py`), which costs the product as much as so many columns more.

The groups are found by computing a few pseudo-random tokens when the model is loaded: the same ones for every model and
machine, so that results do not depend on what was asked before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from argosy.engine.executors.cpu_buffers import FloatArray, StepBuffers
from argosy.engine.executors.cpu_weights import ModelWeights, Projection
from argosy.engine.executors.sized_tape import Size, SizedTapeBuilder
from argosy.kernels.ops_copy import CopyArgs, copy_rows_op
from argosy.kernels.packed import WeightKind
from argosy.kernels.quantize_vectors import GROUP
from argosy.kernels.tape import op_address

NUM_TOKENS = 64
"""Tokens that are computed to find the groups."""

MAX_REFINED = 8
_MAX_SHARE_OF_COLUMNS = 8
"""At most one group in so many."""
_TIMES_THE_MEAN = 3.0
"""A group is refined if it makes this many times as much error as the mean one."""

_KINDS = frozenset({WeightKind.Q4_0, WeightKind.Q4_1, WeightKind.Q5_0, WeightKind.Q5_1, WeightKind.Q8_0})
"""Kinds whose panels are groups of 32 columns, one like the other."""


def can_be_refined(projection: Projection) -> bool:
    """Whether there is a kernel for it; K-quants come in groups of 256, and bytes per row have one scale per token."""
    return all(part.kind in _KINDS for part in projection.parts) and projection.columns % GROUP == 0


def groups_to_refine(scales: FloatArray) -> tuple[int, ...]:
    """From the scales of some tokens, f32[tokens, groups], the numbers of the groups worth it, ascending.

    A group's share of the error is that of its squared scale, over the tokens that have any. None if a scale is not finite.
    """
    num_groups = scales.shape[1]
    squares = scales.astype(np.float64) ** 2
    totals = squares.sum(axis=1)
    if not np.isfinite(totals).all() or not (totals > 0).any():
        return ()
    shares = (squares[totals > 0] / totals[totals > 0, None]).mean(axis=0)
    limit = min(MAX_REFINED, num_groups // _MAX_SHARE_OF_COLUMNS)
    largest = np.argsort(-shares, kind="stable")[:limit]
    return tuple(sorted(int(group) for group in largest if shares[group] * num_groups >= _TIMES_THE_MEAN))


def sample_tokens(vocab_size: int, count: int) -> tuple[int, ...]:
    """Token ids to compute."""
    return tuple(np.random.Generator(np.random.Philox(7)).integers(vocab_size, size=count).tolist())


class ScaleRecorder:
    """Takes down the scales of products' inputs while a tape runs: of one projection after the other, as appended."""

    def __init__(self) -> None:
        self._scales: list[FloatArray] = []

    def append(self, tape: SizedTapeBuilder, buffers: StepBuffers, projection: Projection, size: Size) -> None:
        """Append an op that keeps the scales `projection` is about to be computed with, of at most `NUM_TOKENS` tokens."""
        columns = projection.columns // GROUP if can_be_refined(projection) else 0
        kept = np.zeros((NUM_TOKENS, columns), np.float32)
        self._scales.append(kept)
        if columns:
            args = CopyArgs(buffers.scales.ctypes.data, columns, kept.ctypes.data)
            tape.add_sized(op_address(copy_rows_op), args, size=size)

    def choose(self, num_tokens: int, num_logit_rows: int) -> list[tuple[int, ...]]:
        """The groups of each projection; the last is the head, which saw logit rows."""
        counts = [num_tokens] * (len(self._scales) - 1) + [num_logit_rows]
        return [groups_to_refine(kept[:count]) for kept, count in zip(self._scales, counts, strict=True)]


def with_refined_inputs(weights: ModelWeights, groups: Sequence[tuple[int, ...]]) -> ModelWeights:
    """`weights` with the groups of what `ScaleRecorder` saw: qkv and gate_up of each layer, and the head."""
    choices = iter(groups)
    layers = tuple(
        replace(layer, qkv=replace(layer.qkv, refined=next(choices)), gate_up=replace(layer.gate_up, refined=next(choices)))
        for layer in weights.layers
    )
    return replace(weights, layers=layers, head=replace(weights.head, refined=next(choices)))
