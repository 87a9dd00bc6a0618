"""From logits to the distribution that a token is drawn from: top-k, top-p, min-p.

Each filter is a threshold, so that its result does not depend on the order in which equal logits happen to be sorted:
- top-k keeps a token unless k tokens have a greater logit (Fan et al. 2018);
- top-p keeps a token if the tokens of greater probability hold less than p together (nucleus, Holtzman et al. 2020);
- min-p keeps a token if its probability is at least p times the greatest (Nguyen et al. 2024).

Each works on what the previous one left, renormalised. Rows do not affect each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executors.step_layout import to_device

T = TypeVar("T", int, float)

_FIRST_LOOKS = (64, 1024)
"""How many of the most probable tokens are sorted before the whole vocabulary has to be."""


def filtered_probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Probabilities [rows, vocab] f32 after temperature and filters; dropped tokens have 0. Rows need not sum to 1.

    `logits` [rows, vocab] f32 is overwritten; `params[r]` belongs to row r and is not greedy. A row in which all logits
    are -inf gives NaN.
    """
    vocab = logits.shape[1]
    # Shifted first: a small temperature could make quotients infinite, and then their differences are lost.
    logits.sub_(logits.amax(dim=-1, keepdim=True)).div_(_column([p.temperature for p in params], logits.device))
    _apply(_drop_below_top_k, logits, {row: p.top_k for row, p in enumerate(params) if 0 < p.top_k < vocab})
    probabilities = torch.softmax(logits, dim=-1)
    _apply(_drop_outside_nucleus, probabilities, {row: p.top_p for row, p in enumerate(params) if p.top_p < 1.0})
    _apply(_drop_below_min_p, probabilities, {row: p.min_p for row, p in enumerate(params) if p.min_p > 0.0})
    return probabilities


def _drop_below_top_k(logits: Tensor, top_k: Sequence[int]) -> Tensor:
    largest = torch.topk(logits, max(top_k), dim=-1).values
    kth = largest.gather(1, _column([k - 1 for k in top_k], logits.device, np.int64))
    return logits.masked_fill_(logits < kth, float("-inf"))


def _drop_outside_nucleus(probabilities: Tensor, top_p: Sequence[float]) -> Tensor:
    """The nucleus is nearly always among the few most probable tokens; only rows for which it is not are sorted whole."""
    mass = _column(top_p, probabilities.device, np.float64)
    threshold = torch.zeros(len(top_p), 1, dtype=probabilities.dtype, device=probabilities.device)
    open_rows = torch.arange(len(top_p), device=probabilities.device)
    vocab = probabilities.shape[1]
    for look in (*(n for n in _FIRST_LOOKS if n < vocab), vocab):
        rows = probabilities if len(open_rows) == len(probabilities) else probabilities.index_select(0, open_rows)
        largest = torch.topk(rows, look, dim=-1).values if look < vocab else rows.sort(dim=-1, descending=True).values
        cumulative = torch.cumsum(largest, dim=-1, dtype=torch.float64)
        reached = cumulative >= mass.index_select(0, open_rows)
        found = reached[:, -1]
        # argmax gives the first True: the token with which the mass is reached is the last one kept.
        last_kept = largest.gather(1, reached.to(torch.uint8).argmax(dim=-1, keepdim=True))
        threshold.index_copy_(0, open_rows[found], last_kept[found])
        open_rows = open_rows[~found]
        if len(open_rows) == 0:
            break
    return probabilities.masked_fill_(probabilities < threshold, 0.0)


def _drop_below_min_p(probabilities: Tensor, min_p: Sequence[float]) -> Tensor:
    floor = probabilities.amax(dim=-1, keepdim=True) * _column(min_p, probabilities.device)
    return probabilities.masked_fill_(probabilities < floor, 0.0)


def _apply(keep: Callable[[Tensor, Sequence[T]], Tensor], values: Tensor, settings: Mapping[int, T]) -> None:
    """Run a filter in place on the rows of `values` that have a setting for it."""
    if len(settings) == len(values):
        keep(values, list(settings.values()))
    elif settings:
        rows = to_device(np.array(list(settings), dtype=np.int64), values.device)
        values.index_copy_(0, rows, keep(values.index_select(0, rows), list(settings.values())))


def _column(
    values: Sequence[float] | NDArray[np.float64], device: torch.device, dtype: type[np.generic] = np.float32
) -> Tensor:
    return to_device(np.array(values, dtype=dtype)[:, None], device)
