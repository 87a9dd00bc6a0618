"""Drawing one token from a distribution by a race of exponential clocks.

Token i of probability p_i gets an exponential time E_i / p_i from a random number of its own; the first one wins, and it
is i with probability p_i (the Gumbel-max trick in another form; Maddison, Tarlow and Minka, "A* Sampling", 2014). Each
token's number depends on the token alone, so a rounding error in one probability can change the outcome only if two tokens
finish within that error of each other. Inverting the cumulative distribution needs one number in all, but there an error
moves the borders of every token after it, and among thousands of improbable ones the draw lands on a neighbour.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argosy.engine.executors.step_layout import to_device

# SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014): number i of the stream
# that starts at a key. As int64, whose products wrap like those of uint64.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64), (31, 1))
_SLACK = 2.0**-50
_DENSE_ROWS_AT_ONCE = 4
"""Keeps the 64-bit intermediates of a full vocabulary near the cache."""


def draw(probabilities: Tensor, keys: NDArray[np.uint64]) -> Tensor:
    """One token id per row, [rows] int64.

    `probabilities` [rows, vocab] f32 need not be normalised; `keys` [rows] name each row's stream of random numbers. A token
    of probability 0 is never drawn from a row that has another one. Which token is drawn does not depend on how the row is
    scaled, nor on the other rows.
    """
    rows, vocab = probabilities.shape
    starts = to_device(keys.view(np.int64), probabilities.device)
    row, token = _contenders(probabilities, starts)
    speeds = probabilities[row, token].double() / -torch.log(_uniforms(starts[row] + (token + 1) * _GAMMA))
    fastest = torch.zeros(rows, dtype=torch.float64, device=speeds.device).scatter_reduce_(0, row, speeds, "amax")
    winners = torch.full((rows,), vocab, device=speeds.device)
    return winners.scatter_reduce_(0, row, torch.where(speeds == fastest[row], token, vocab), "amin").clamp_(max=vocab - 1)


def _contenders(probabilities: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """(row, token) pairs among which each row's winner is: all of positive probability, or fewer where those are many."""
    positive = probabilities > 0
    if 8 * int(torch.count_nonzero(positive)) < positive.numel():
        row, token = torch.nonzero(positive, as_tuple=True)
        return row, token
    steps = torch.arange(1, positive.shape[1] + 1, device=positive.device) * _GAMMA
    pairs = []
    for low in range(0, len(starts), _DENSE_ROWS_AT_ONCE):
        some = slice(low, low + _DENSE_ROWS_AT_ONCE)
        found = _not_left_behind(probabilities[some].double(), _uniforms(starts[some, None] + steps))
        pairs.append(found.add_(torch.tensor([low, 0], device=found.device)))
    row, token = torch.cat(pairs).unbind(dim=1)
    return row, token


def _not_left_behind(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """[n, 2] pairs of a row and a token that may finish no later than the row's most probable token. Overwrites its first
    argument.

    A clock has rung by time t if u > exp(-p t), and 1 - p t <= exp(-p t) spares the exponential. The slack keeps rounding
    from losing the most probable token itself.
    """
    greatest, favourite = probabilities.max(dim=-1, keepdim=True)
    time = -torch.log(uniforms.gather(1, favourite)) / greatest
    return torch.nonzero(uniforms >= probabilities.mul_(-time).add_(1.0 - _SLACK))


def _uniforms(z: Tensor) -> Tensor:
    """SplitMix64's output for states `z`, which are overwritten: its upper 53 bits as fp64 in (0, 1), never 0 nor 1, whose
    logarithms would be infinite and 0."""
    shifted = torch.empty_like(z)
    for bits, multiplier in _MIX:
        z.bitwise_xor_(_shift_right(z, bits, shifted)).mul_(multiplier)
    return _shift_right(z, 11, shifted).double().add_(0.5).mul_(2.0**-53)


def _shift_right(z: Tensor, bits: int, out: Tensor) -> Tensor:
    """Logical shift of what are unsigned numbers: torch shifts the sign in."""
    return torch.bitwise_right_shift(z, bits, out=out).bitwise_and_((1 << (64 - bits)) - 1)
