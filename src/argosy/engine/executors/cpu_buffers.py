"""The memory that a step works in: allocated once, for the largest step."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from argosy.kernels.ops_logits import FOUND_WORDS, num_chunks
from argosy.kernels.packed import aligned_empty
from argosy.kernels.quantize_activations import padded_columns
from argosy.kernels.quantize_vectors import GROUP
from argosy.models.config import ModelConfig

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
_Element = TypeVar("_Element", bound=np.generic)


class HeaderField(IntEnum):
    """Sizes of a step that ops read, as positions in `StepBuffers.header`."""

    NUM_TOKENS = 0
    NUM_LOGIT_ROWS = 1


class StepBuffers:
    """Arrays that ops are given the addresses of. T is `max_tokens`, R is `max_logit_rows`, all start on a cache line.

    Attributes:
        header: i64, by `HeaderField`.
        token_ids, positions, slots: i64[T]; `slots` is where each token's K and V go.
        logit_rows: i64[R]: the tokens whose logits are wanted.
        hidden: f32[T, hidden_size], the residual stream.
        branch: f32[T, hidden_size]: what a block adds to it, where that is normalised first.
        normed: f32[T, hidden_size]: input of products with floating-point weights.
        quantized, scales, scale_sums: s8[T, columns], f32[T, columns / 32] twice: input of products with quantised ones;
            each product lays its own tokens one after the other, with up to `max_refined` groups more than it has columns.
        qkv: f32[T, (num_heads + 2 · num_kv_heads) · head_dim].
        attended: f32[T, num_heads · head_dim].
        gate_up: f32[T, 2 · intermediate_size].
        activated: f32[T, intermediate_size]: input of a down projection with floating-point weights.
        logits: f32[R, vocab_size].
        greatest_ids, greatest: i64[R], f32[R]: where each row's greatest logit is first, and its value (NaN if any is).
        greatest_by_chunk: scratch of the search for it.
        scratch: f32[threads, columns]: a row for each thread.
    """

    def __init__(
        self, config: ModelConfig, *, max_tokens: int, max_logit_rows: int, num_threads: int, max_refined: int = 0
    ) -> None:
        self.max_tokens, self.max_logit_rows = max_tokens, max_logit_rows
        width = config.hidden_size
        attention_width = config.num_heads * config.head_dim
        widest = padded_columns(max(width, attention_width, config.intermediate_size))
        rows = max(max_tokens, max_logit_rows)
        self.header = _zeros((8,), np.int64)
        self.token_ids, self.positions, self.slots = (_zeros((max_tokens,), np.int64) for _ in range(3))
        self.logit_rows = _zeros((max_logit_rows,), np.int64)
        self.hidden = _zeros((max_tokens, width), np.float32)
        self.branch = _zeros((max_tokens, width), np.float32)
        self.normed = _zeros((rows, width), np.float32)
        groups = widest // GROUP + max_refined
        self.quantized = _zeros((rows, groups * GROUP), np.int8)
        self.scales, self.scale_sums = (_zeros((rows, groups), np.float32) for _ in range(2))
        heads = config.num_heads + 2 * config.num_kv_heads
        self.qkv = _zeros((max_tokens, heads * config.head_dim), np.float32)
        self.attended = _zeros((max_tokens, attention_width), np.float32)
        self.gate_up = _zeros((max_tokens, 2 * config.intermediate_size), np.float32)
        self.activated = _zeros((max_tokens, config.intermediate_size), np.float32)
        self.logits = _zeros((max_logit_rows, config.vocab_size), np.float32)
        self.greatest_ids = _zeros((max_logit_rows,), np.int64)
        self.greatest = _zeros((max_logit_rows,), np.float32)
        self.greatest_by_chunk = _zeros((max_logit_rows * num_chunks(config.vocab_size), FOUND_WORDS), np.int64)
        self.scratch = _zeros((num_threads, widest), np.float32)

    def header_address(self, field: HeaderField) -> int:
        """Address of one field of the header."""
        return self.header.ctypes.data + field * self.header.itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))


def _zeros(shape: tuple[int, ...], dtype: type[_Element]) -> NDArray[_Element]:
    """Zeroed, so that its pages are there before the first request."""
    array = cast(NDArray[_Element], aligned_empty(shape, dtype))
    array[...] = 0
    return array
