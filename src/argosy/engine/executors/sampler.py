"""Chooses one token per row of logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executors.filters import filtered_probabilities
from argosy.engine.executors.logits_edits import edit_logits
from argosy.engine.executors.philox import token_keys
from argosy.engine.executors.race import draw
from argosy.engine.executors.sequence_state import SequenceState
from argosy.engine.executors.step_layout import to_device

NOT_FINITE = "the model's logits are not finite; the weights may be damaged, or their type too narrow for this model"
ALL_MASKED = "no token is left to sample: min_tokens and bad_words mask all of them"

_ROWS_AT_ONCE = 16
"""Rows edited and drawn together; bounds the fp64 intermediates to 16 x vocabulary and keeps them near the cache."""


class SampleRow(NamedTuple):
    """One row to sample: whose it is, the position of the token to be sampled, and the number of outputs before it."""

    state: SequenceState
    position: int
    num_output_tokens: int

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the token is the arg max of the raw logits."""
        return self.state.params.greedy and not self.state.edits_logits


class Sampled(NamedTuple):
    """The token of one row; or an `error` line, and then `token_id` means nothing."""

    token_id: int
    error: str


class Greatest(NamedTuple):
    """Of each row of logits where the greatest is first, and its value: NaN if any of the row is NaN."""

    ids: Sequence[int]
    values: Sequence[float]


Draw = Callable[[Sequence[int], Sequence[SamplingParams], NDArray[np.uint64]], Sequence[int]]
"""Draws a token from each of some rows of logits, given their numbers, their settings (not greedy) and their keys."""


def sample(
    logits: Tensor, rows: Sequence[SampleRow], greatest: Greatest | None = None, draw_raw: Draw | None = None
) -> list[Sampled]:
    """One token for each row of raw `logits` [rows, vocab] f32, which are left as they are.

    Mutates nothing: the caller records what it accepts in the rows' states. Each result depends on its own row of logits
    and on its sequence's state, seed, sample index and position; on no other row. Equal greatest logits: the lowest id.

    Args:
        greatest: of the rows, if known already.
        draw_raw: draws from rows whose logits nothing edits, in place of torch; the same tokens up to rounding.
    """
    if greatest is None:
        values, ids = logits.max(dim=-1)
        greatest = Greatest(ids.tolist(), values.tolist())
    results = _arg_max(greatest)
    usable = [i for i, result in enumerate(results) if not (result.error or rows[i].is_plain_greedy)]
    if draw_raw is not None:
        raw = [i for i in usable if not rows[i].state.edits_logits]
        usable = [i for i in usable if rows[i].state.edits_logits]
        if raw:
            drawn_rows = [rows[i] for i in raw]
            token_ids = draw_raw(raw, [row.state.params for row in drawn_rows], _keys(drawn_rows))
            for i, token_id in zip(raw, token_ids, strict=True):
                results[i] = Sampled(token_id, "")
    edited = [i for i in usable if rows[i].state.params.greedy]
    drawn = [i for i in usable if not rows[i].state.params.greedy]
    groups = [kind[i : i + _ROWS_AT_ONCE] for kind in (edited, drawn) for i in range(0, len(kind), _ROWS_AT_ONCE)]
    for group in groups:
        own = logits.index_select(0, to_device(np.array(group, dtype=np.int64), logits.device))
        for i, result in zip(group, _sample_alike(own, [rows[i] for i in group]), strict=True):
            results[i] = result
    return results


def _sample_alike(logits: Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
    """Rows that are all greedy or all drawn; overwrites `logits`, which hold no NaN and no +inf."""
    if any(row.state.edits_logits for row in rows):
        edit_logits(logits, [row.state for row in rows], [row.num_output_tokens for row in rows])
    values, ids = logits.max(dim=-1)
    greatest = _arg_max(Greatest(ids.tolist(), values.tolist()))
    if rows[0].state.params.greedy:
        return greatest
    probabilities = filtered_probabilities(logits, [row.state.params for row in rows])
    token_ids = draw(probabilities, _keys(rows)).tolist()
    return [Sampled(token_id, of_row.error) for token_id, of_row in zip(token_ids, greatest, strict=True)]


def _keys(rows: Sequence[SampleRow]) -> NDArray[np.uint64]:
    return token_keys(
        np.array([row.state.new.seed for row in rows], dtype=np.uint64),
        np.array([row.state.new.sample_index for row in rows], dtype=np.uint64),
        np.array([row.position for row in rows], dtype=np.uint64),
    )


def _arg_max(greatest: Greatest) -> list[Sampled]:
    """NaN counts as greatest, so that the greatest value tells whether the row is sound."""
    return [Sampled(token_id, _error(value)) for token_id, value in zip(*greatest, strict=True)]


def _error(greatest: float) -> str:
    """By a row's greatest logit: -inf means that nothing is left, NaN or +inf that the row is damaged."""
    if math.isfinite(greatest):
        return ""
    return ALL_MASKED if greatest == -math.inf else NOT_FINITE
