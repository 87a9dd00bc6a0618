"""Draws tokens from rows of logits: temperature, top-k, top-p, min-p and the race of exponential clocks, in one pass each.

The filters and the race of `engine.executors.filters` and `.race`, where they are explained, and the tokens that these draw
with torch: probabilities agree up to rounding, and the random numbers exactly. What differs is the work done:

- All filters are thresholds on x = (logit - greatest) / temperature, whose order is that of the probabilities, so none of
  them needs the vocabulary sorted: the few greatest are kept in a heap, and if a nucleus is larger than that, its border is
  found by histograms over the bits of x.
- Nearly all tokens lose the race without their probability being known. Let the favourite's clock ring at time t. A token of
  probability p whose uniform number is u can ring before only if u >= 1 - p t, and p is at most that of the greatest logit
  among its 64 neighbours: one comparison of integers against the stream of random bits.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import cfunc, njit

from argosy.kernels.ops_logits import first_of, greatest_of
from argosy.kernels.pointers import OP_SIGNATURE, load_f32, load_f64, load_i64, store_i64
from argosy.kernels.simd import LANES, any_at_least, load, splat, sum_lanes
from argosy.kernels.simd_math import exp

_BLOCK = 64
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)
_SLACK = 2.0**-40
"""Keeps rounding from losing a token whose clock rings with the favourite's."""
_FIRST_LOOKS = (64, 1024)
_MINUS_INFINITY = np.float32(-np.inf)
_LEVELS = ((20, 2048), (10, 1024), (0, 1024))
"""Of the histograms over 31 bits: where a digit begins and how many values it has."""


@njit(nogil=True, cache=True, forceinline=True)
def _random_bits(key: Any, token: int) -> Any:
    """53 bits of number `token` of the SplitMix64 stream that starts at `key`."""
    z = key + np.uint64(token + 1) * _GAMMA
    z = (z ^ (z >> np.uint64(30))) * _FIRST_MULTIPLIER
    z = (z ^ (z >> np.uint64(27))) * _SECOND_MULTIPLIER
    return (z ^ (z >> np.uint64(31))) >> np.uint64(11)


@njit(nogil=True, cache=True, forceinline=True)
def _hazard(bits: Any) -> float:
    """-log of a uniform number in (0, 1): the time at which a clock of rate 1 rings."""
    return -math.log((float(bits) + 0.5) * 2.0**-53)


@njit(nogil=True, cache=True, forceinline=True)
def _scaled(logits: int, token: int, greatest: Any, temperature: Any) -> Any:
    """x of a token, f32, at most 0."""
    return (load_f32(logits + 4 * token) - greatest) / temperature


@njit(nogil=True, cache=True)
def keep_greatest(logits: int, count: int, size: int, values: Any, tokens: Any) -> int:
    """The `size` greatest of `count` floats at `logits`, in descending order, equal ones by ascending index.

    Writes `values` f32[size] and `tokens` i64[size]; returns how many there are, which is less than `size` if `count` is.
    """
    kept = min(size, count)
    for i in range(kept):
        values[i], tokens[i] = load_f32(logits + 4 * i), i
    for i in range(kept // 2 - 1, -1, -1):
        _sift_down(values, tokens, i, kept)
    i = kept
    while i < count:
        if i + LANES <= count and not any_at_least(load(logits + 4 * i), splat(values[0])):
            i += LANES
            continue
        for j in range(i, min(i + LANES, count)):
            value = load_f32(logits + 4 * j)
            if value > values[0]:
                values[0], tokens[0] = value, j
                _sift_down(values, tokens, 0, kept)
        i += LANES
    for end in range(kept - 1, 0, -1):
        values[0], values[end] = values[end], values[0]
        tokens[0], tokens[end] = tokens[end], tokens[0]
        _sift_down(values, tokens, 0, end)
    return kept


@njit(nogil=True, cache=True)
def _sift_down(values: Any, tokens: Any, place: int, count: int) -> None:
    """Restore the heap below `place`: the least value is on top, of equal ones the last token."""
    while True:
        child = 2 * place + 1
        if child >= count:
            return
        if child + 1 < count and _is_less(values, tokens, child + 1, child):
            child += 1
        if not _is_less(values, tokens, child, place):
            return
        values[place], values[child] = values[child], values[place]
        tokens[place], tokens[child] = tokens[child], tokens[place]
        place = child


@njit(nogil=True, cache=True, forceinline=True)
def _is_less(values: Any, tokens: Any, i: int, j: int) -> Any:
    return values[i] < values[j] or (values[i] == values[j] and tokens[i] > tokens[j])


@njit(nogil=True, cache=True)
def _weight_at_least(x: Any, border: Any, by_mass: bool) -> float:
    """What a token adds to a count or a mass: nothing below the border."""
    if not x >= border:
        return 0.0
    return math.exp(x) if by_mass else 1.0


@njit(nogil=True, cache=True)
def _border(logits: int, vocab: int, greatest: Any, temperature: Any, border: Any, target: float, by_mass: bool) -> Any:
    """The greatest value such that the tokens of x no less than it, and than `border`, reach `target` together.

    x is at most 0, so its magnitude's bits, as an integer, ascend as x descends: a histogram over their first 11 names the
    digit in which the target is reached, two more the rest. Never reached, it is `border`.
    """
    prefix, reached = 0, 0.0
    histogram = np.empty(2048, np.float64)
    x = np.empty(1, np.float32)
    bits = x.view(np.int32)
    for level in range(3):
        shift, size = _LEVELS[level]
        histogram[:] = 0.0
        for token in range(vocab):
            x[0] = _scaled(logits, token, greatest, temperature)
            magnitude = bits[0] & 0x7FFFFFFF
            if level == 0 or magnitude >> (shift + 10) == prefix:
                histogram[(magnitude >> shift) & (size - 1)] += _weight_at_least(x[0], border, by_mass)
        digit = 0
        while digit < size and reached + histogram[digit] < target:
            reached += histogram[digit]
            digit += 1
        if digit == size:
            if level == 0:
                return border
            digit = size - 1  # by rounding: the last digit that holds anything is not below the border's
            while digit > 0 and histogram[digit] == 0.0:
                digit -= 1
        prefix = prefix * size + digit
    bits[0] = prefix
    return -x[0]


@njit(nogil=True, cache=True)
def _mass(logits: int, vocab: int, greatest: Any, temperature: Any) -> float:
    """Σ e^x over the vocabulary, summed in fp64 block by block."""
    total = 0.0
    greatests, temperatures = splat(greatest), splat(temperature)
    whole = vocab // _BLOCK * _BLOCK
    for first in range(0, whole, _BLOCK):
        partial = splat(np.float32(0.0))
        for i in range(first, first + _BLOCK, LANES):
            partial = partial + exp((load(logits + 4 * i) - greatests) / temperatures)
        total += sum_lanes(partial)
    for token in range(whole, vocab):
        total += math.exp(_scaled(logits, token, greatest, temperature))
    return total


@njit(nogil=True, cache=True)
def _mass_at_least(logits: int, vocab: int, greatest: Any, temperature: Any, border: Any) -> float:
    """Σ e^x over the tokens of x no less than `border`, taken to be few."""
    total = 0.0
    greatests, temperatures, borders = splat(greatest), splat(temperature), splat(border)
    for first in range(0, vocab, LANES):
        whole = first + LANES <= vocab
        if whole and not any_at_least((load(logits + 4 * first) - greatests) / temperatures, borders):
            continue
        for token in range(first, min(first + LANES, vocab)):
            total += _weight_at_least(_scaled(logits, token, greatest, temperature), border, True)
    return total


@njit(nogil=True, cache=True)
def _threshold(logits: int, vocab: int, greatest: Any, temperature: Any, top_k: int, top_p: float, min_p: float) -> Any:
    """The least x that the three filters leave, one after the other."""
    border = _MINUS_INFINITY
    looks = _FIRST_LOOKS
    values, tokens = np.empty(looks[1], np.float32), np.empty(looks[1], np.int64)
    if 0 < top_k < vocab:
        if top_k <= looks[1]:
            kept = keep_greatest(logits, vocab, top_k, values, tokens)
            border = (values[kept - 1] - greatest) / temperature
        else:
            border = _border(logits, vocab, greatest, temperature, border, float(top_k), False)
    if top_p < 1.0:
        if border == _MINUS_INFINITY:
            total = _mass(logits, vocab, greatest, temperature)
        else:
            total = _mass_at_least(logits, vocab, greatest, temperature, border)
        border = _nucleus(logits, vocab, greatest, temperature, border, top_p * total, values, tokens)
    if min_p > 0.0:
        border = max(border, np.float32(math.log(min_p)))
    return border


@njit(nogil=True, cache=True)
def _nucleus(
    logits: int, vocab: int, greatest: Any, temperature: Any, border: Any, target: float, values: Any, tokens: Any
) -> Any:
    """The x at which the mass of the greatest reaches `target`; looks among few first."""
    for look in _FIRST_LOOKS:
        reached = 0.0
        for i in range(keep_greatest(logits, vocab, look, values, tokens)):
            x = (values[i] - greatest) / temperature
            reached += _weight_at_least(x, border, True)
            if reached >= target:
                return x
    return _border(logits, vocab, greatest, temperature, border, target, True)


@njit(nogil=True, cache=True)
def _race(logits: int, vocab: int, greatest: Any, temperature: Any, border: Any, key: Any) -> Any:
    """The token whose clock rings first, among those of x no less than `border`."""
    winner = first_of(logits, vocab, greatest)
    time = _hazard(_random_bits(key, winner))
    for first in range(0, vocab, _BLOCK):
        count = min(_BLOCK, vocab - first)
        x = (greatest_of(logits + 4 * first, count) - greatest) / temperature
        if not x >= border:
            continue
        least = int(max(0.0, 1.0 - math.exp(x) * time - _SLACK) * 2.0**53)
        hits = 0
        for token in range(first, first + count):
            hits += _random_bits(key, token) >= np.uint64(least)
        if hits == 0:
            continue
        for token in range(first, first + count):
            bits = _random_bits(key, token)
            x = _scaled(logits, token, greatest, temperature)
            if bits >= np.uint64(least) and x >= border and x > _MINUS_INFINITY:
                own = _hazard(bits) * math.exp(-x)
                if own < time or (own == time and token < winner):
                    winner, time = token, own
    return winner


@njit(nogil=True, cache=True)
def sample_row(logits: int, vocab: int, temperature: Any, top_k: int, top_p: float, min_p: float, key: Any) -> Any:
    """Draw a token from the `vocab` logits, f32, at address `logits`; changes nothing.

    Args:
        logits: have a greatest value that is finite.
        temperature: f32, above 0.
        top_k: 0 for all.
        top_p, min_p: 1 and 0 for all.
        key: uint64 that names the row's stream of random numbers.
    """
    greatest = greatest_of(logits, vocab)
    border = _threshold(logits, vocab, greatest, temperature, top_k, top_p, min_p)
    return _race(logits, vocab, greatest, temperature, border, key)


class SampleArgs(NamedTuple):
    """Args of `sample_op`. Items are rows.

    Attributes:
        logits: address of f32[rows, vocab].
        vocab: width of a row.
        temperatures, top_ks, top_ps, min_ps, keys: addresses of f32, i64, f64, f64 and u64 [items], as of `sample_row`.
        token_ids: address of i64[items], the result.
        rows: address of i64[items]: the row of `logits` that each item reads, or 0 for row i.
    """

    logits: int
    vocab: int
    temperatures: int
    top_ks: int
    top_ps: int
    min_ps: int
    keys: int
    token_ids: int
    rows: int = 0


@njit(nogil=True, cache=True)
def sample_rows(logits: Any, temperatures: Any, top_ks: Any, top_ps: Any, min_ps: Any, keys: Any) -> Any:
    """`sample_row` of each row of `logits`, f32[rows, vocab] C-contiguous; the others are [rows] as there. i64[rows]."""
    rows, vocab = logits.shape
    token_ids = np.empty(rows, np.int64)
    for i in range(rows):
        address = logits.ctypes.data + 4 * i * vocab
        token_ids[i] = sample_row(address, vocab, temperatures[i], top_ks[i], top_ps[i], min_ps[i], keys[i])
    return token_ids


@cfunc(OP_SIGNATURE, cache=True)
def sample_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Rows begin..end; args: `SampleArgs`."""
    vocab = args[1]
    for i in range(begin, end):
        top_k, key = load_i64(args[3] + 8 * i), np.uint64(load_i64(args[6] + 8 * i))
        top_p, min_p = load_f64(args[4] + 8 * i), load_f64(args[5] + 8 * i)
        row = i if args[8] == 0 else load_i64(args[8] + 8 * i)
        token = sample_row(args[0] + 4 * row * vocab, vocab, load_f32(args[2] + 4 * i), top_k, top_p, min_p, key)
        store_i64(args[7] + 8 * i, token)
