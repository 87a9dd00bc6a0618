from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.kernels.attention_plan import COMBINE_WORDS, WORK_WORDS, max_work_rows, plan_attention, tile_tokens
from argosy.kernels.kv_elements import KV_ELEMENTS
from argosy.kernels.ops_attention import (
    AttentionArgs,
    CombineArgs,
    attention_op,
    attention_scratch_bytes,
    combine_attention_op,
)
from argosy.kernels.quantize_activations import quantize_row

BLOCK_SIZE, MAX_PARTIALS = 16, 300
MANY = 10_000


class Shape(NamedTuple):
    heads: int
    kv_heads: int
    head_dim: int


class Batch:
    """Sequences whose K, V and queries at a position are the same in every batch that has that position."""

    def __init__(self, shape: Shape, kv_dtype: str = "float32", *, sequences: int = 3, length: int = 1100) -> None:
        generator = torch.Generator().manual_seed(5)
        self.shape, self.kv_dtype = shape, kv_dtype
        blocks = -(-length // BLOCK_SIZE)
        self.tables = torch.randperm(sequences * blocks + 1, generator=generator)[:-1].numpy().reshape(sequences, blocks)
        slots = (sequences * blocks + 1) * BLOCK_SIZE
        pool = torch.randn(2, slots, shape.kv_heads, shape.head_dim, generator=generator)
        self.pool = pool.to(getattr(torch, kv_dtype))
        self.q = torch.randn(sequences, length, shape.heads, shape.head_dim, generator=generator).numpy() * 2

    def slots(self, sequence: int, positions: np.ndarray) -> np.ndarray:
        return self.tables[sequence][positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE

    def attend(self, run_op, chunks, *, window=0, softcap=0.0, split=MANY, quantize=False, tokens_per_tile=None, chunk=7):
        """Attention of chunks (sequence, start, count) in one step: f32[tokens, heads, head_dim], or the quantised rows."""
        heads, kv_heads, head_dim = self.shape
        sequences, starts, counts = (np.array(column, dtype=np.int64) for column in zip(*chunks, strict=True))
        first_rows = np.concatenate(([0], np.cumsum(counts)))
        tile = tokens_per_tile or tile_tokens(heads, kv_heads)
        tokens = int(first_rows[-1])
        work = np.full((max_work_rows(tokens, len(chunks), MAX_PARTIALS), WORK_WORDS), -9, np.int64)
        combine = np.full((len(work), COMBINE_WORDS), -9, np.int64)
        offsets = sequences * self.tables.shape[1]
        planned = plan_attention(starts, counts, first_rows, offsets, window, tile, split, MAX_PARTIALS, work, combine)
        q = np.concatenate([self.q[s, a : a + n] for s, a, n in chunks])
        out = np.full((tokens, heads, head_dim), np.nan, np.float32)
        quantised = [
            np.full((tokens, heads * head_dim), 99, np.int8),
            *np.full((2, tokens, heads * head_dim // 32), np.nan, np.float32),
        ]
        scratch = np.full(attention_scratch_bytes(tile, heads // kv_heads, head_dim) // 4, np.nan, np.float32)
        partials = np.full((MAX_PARTIALS, heads, head_dim + 2), np.nan, np.float32)
        tail = (partials.ctypes.data, out.ctypes.data, *(a.ctypes.data if quantize else 0 for a in quantised))
        args = AttentionArgs(
            work.ctypes.data,
            q.ctypes.data,
            heads * head_dim,
            kv_heads,
            heads // kv_heads,
            head_dim,
            head_dim**-0.5,
            softcap,
            window,
            self.pool[0].data_ptr(),
            self.pool[1].data_ptr(),
            KV_ELEMENTS[self.kv_dtype],
            self.tables.ctypes.data,
            BLOCK_SIZE,
            scratch.ctypes.data,
            *tail[1:],
            tail[0],
        )
        run_op(attention_op, args, planned[0] * kv_heads, chunk=chunk)
        combine_args = CombineArgs(combine.ctypes.data, heads, head_dim, scratch.ctypes.data, *tail)
        run_op(combine_attention_op, combine_args, planned[1] * heads, chunk=chunk)
        return quantised if quantize else out

    def reference(self, chunks, *, window=0, softcap=0.0) -> np.ndarray:
        """In fp64, one query at a time."""
        heads, kv_heads, head_dim = self.shape
        rows = []
        for sequence, start, count in chunks:
            for position in range(start, start + count):
                seen = np.arange(max(0, position - window + 1) if window else 0, position + 1)
                k, v = self.pool[:, self.slots(sequence, seen)].double().repeat_interleave(heads // kv_heads, dim=2)
                q = torch.from_numpy(self.q[sequence, position]).double()
                scores = torch.einsum("hd,khd->hk", q, k) * head_dim**-0.5
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                rows.append(torch.einsum("hk,khd->hd", scores.softmax(dim=-1), v))
        return torch.stack(rows).numpy()


SHAPES = [Shape(9, 3, 64), Shape(14, 2, 32), Shape(4, 4, 24), Shape(4, 1, 256), Shape(8, 1, 8), Shape(2, 1, 80)]
MIX = [(0, 0, 70), (1, 700, 1), (2, 250, 40)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (100, 0.0), (7, 0.0), (0, 4.0), (300, 20.0)])
def test_a_mixed_step_is_attention_in_fp64_up_to_rounding(run_op, shape, window, softcap):
    batch = Batch(shape)
    out = batch.attend(run_op, MIX, window=window, softcap=softcap)
    np.testing.assert_allclose(out, batch.reference(MIX, window=window, softcap=softcap), rtol=0, atol=8e-6)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_pools_of_narrower_elements(run_op, shape, kv_dtype):
    batch = Batch(shape, kv_dtype)
    np.testing.assert_allclose(batch.attend(run_op, MIX), batch.reference(MIX), rtol=0, atol=3e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [0, 100])
def test_decoding_gives_the_bits_of_prefill_however_it_is_cut(run_op, shape, kv_dtype, window):
    batch = Batch(shape, kv_dtype)
    whole = batch.attend(run_op, [(0, 0, 600)], window=window, split=0)
    for position in (0, 1, 63, 64, 255, 256, 300, 511, 512, 599):
        for split in (0, MANY):
            decoded = batch.attend(run_op, [(1, 900, 1), (0, position, 1)], window=window, split=split)
            np.testing.assert_array_equal(decoded[1], whole[position])
    for start, count in ((0, 1), (3, 60), (63, 200), (290, 17), (500, 100)):
        chunk = batch.attend(run_op, [(0, start, count), (2, 5, 9)], window=window)
        np.testing.assert_array_equal(chunk[:count], whole[start : start + count])


@settings(deadline=None, max_examples=40)
@given(
    chunks=st.lists(st.tuples(st.integers(0, 700), st.integers(1, 90)), min_size=1, max_size=3),
    window=st.sampled_from([0, 1, 64, 257]),
    split=st.sampled_from([0, 3, MANY]),
    tokens_per_tile=st.sampled_from([1, 5, 21]),
)
def test_bits_do_not_depend_on_tiles_splits_or_neighbours(run_op, chunks, window, split, tokens_per_tile):
    batch = Batch(Shape(6, 2, 16))
    pieces = [(s, start, count) for s, (start, count) in enumerate(chunks)]
    together = batch.attend(run_op, pieces, window=window, split=split, tokens_per_tile=tokens_per_tile)
    row = 0
    for piece in pieces:
        alone = batch.attend(run_op, [piece], window=window, split=MANY)
        np.testing.assert_array_equal(together[row : row + piece[2]], alone)
        row += piece[2]


@pytest.mark.parametrize("split", [0, MANY])
def test_quantised_output_is_the_quantised_f32_output_bit_for_bit(run_op, split):
    batch = Batch(Shape(9, 3, 64))
    out = batch.attend(run_op, MIX, split=split).reshape(-1, 9 * 64)
    q8, scales, scale_sums = batch.attend(run_op, MIX, split=split, quantize=True)
    expected = [np.empty_like(a) for a in (q8, scales, scale_sums)]
    for row in range(len(out)):
        quantize_row(out[row].ctypes.data, 9 * 64, *(a[row].ctypes.data for a in expected))
    for array, got in zip(expected, (q8, scales, scale_sums), strict=True):
        np.testing.assert_array_equal(got, array)


def test_slots_of_others_are_not_read(run_op):
    """Every slot that is not one of the sequence's own positions so far holds NaN."""
    batch = Batch(Shape(6, 2, 16))
    own = batch.slots(0, np.arange(330))
    others = np.setdiff1d(np.arange(batch.pool.shape[1]), own)
    expected = batch.attend(run_op, [(0, 329, 1), (0, 260, 70)])
    batch.pool[:, others] = torch.nan
    np.testing.assert_array_equal(batch.attend(run_op, [(0, 329, 1), (0, 260, 70)]), expected)


def test_keys_before_the_window_are_not_read(run_op):
    batch = Batch(Shape(6, 2, 16))
    expected = batch.attend(run_op, [(0, 329, 1)], window=50)
    batch.pool[:, batch.slots(0, np.arange(280))] = torch.nan
    np.testing.assert_array_equal(batch.attend(run_op, [(0, 329, 1)], window=50), expected)


@pytest.mark.parametrize("side", [0, 1])
def test_a_nan_that_is_seen_reaches_the_output(run_op, side):
    batch = Batch(Shape(6, 2, 16))
    batch.pool[side, batch.slots(0, np.array([100]))] = torch.nan
    out = batch.attend(run_op, [(0, 329, 1)])
    assert np.isnan(out).any(axis=-1).all()


def test_scores_too_large_for_an_exponential(run_op):
    batch = Batch(Shape(6, 2, 16))
    batch.q *= 1e4
    np.testing.assert_allclose(batch.attend(run_op, MIX), batch.reference(MIX), rtol=0, atol=1e-4)
