"""What changes logits before the temperature: logit_bias, the min_tokens and bad_words masks, penalties.

All rows are edited together: the few entries that change are listed as (row, token id) pairs and changed by one indexed
operation per kind, whose cost is that of the entries and not of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from argosy.engine.executors.sequence_state import SequenceState
from argosy.engine.executors.step_layout import IntArray, to_device


def edit_logits(logits: Tensor, states: Sequence[SequenceState], num_output_tokens: Sequence[int]) -> None:
    """Apply the edits of `states[r]` to row r of `logits` [rows, vocab] f32, in place.

    `num_output_tokens[r]` is how many tokens the row's sequence has generated.
    """
    _add_bias(logits, states)
    _mask(logits, states, num_output_tokens)
    _penalize(logits, states)


def _add_bias(logits: Tensor, states: Sequence[SequenceState]) -> None:
    counts = [len(state.bias_ids) for state in states]
    if not any(counts):
        return
    rows = to_device(np.repeat(np.arange(len(states)), counts), logits.device)
    ids = to_device(np.concatenate([state.bias_ids for state in states]), logits.device)
    values = to_device(np.concatenate([state.bias_values for state in states]), logits.device)
    logits.index_put_((rows, ids), values, accumulate=True)


def _mask(logits: Tensor, states: Sequence[SequenceState], num_output_tokens: Sequence[int]) -> None:
    masked = [state.masked_ids(count) for state, count in zip(states, num_output_tokens, strict=True)]
    if not any(masked):
        return
    rows = to_device(np.repeat(np.arange(len(states)), [len(ids) for ids in masked]), logits.device)
    ids = to_device(np.concatenate([np.array(ids, dtype=np.int64) for ids in masked]), logits.device)
    logits.index_put_((rows, ids), torch.full((), float("-inf"), device=logits.device))


def _penalize(logits: Tensor, states: Sequence[SequenceState]) -> None:
    """Repetition (Keskar et al. 2019) divides a positive logit and multiplies a negative one, for tokens of prompt and
    output; frequency and presence (OpenAI) are subtracted per occurrence and once, for tokens of the output."""
    penalized = [(row, state, state.penalized) for row, state in enumerate(states) if state.penalized is not None]
    if not penalized:
        return
    ids_by_row: list[IntArray] = [counts.ids for _, _, counts in penalized]
    lengths = [len(ids) for ids in ids_by_row]

    def per_entry(values: Sequence[float]) -> Tensor:
        return to_device(np.repeat(np.array(values, dtype=np.float32), lengths), logits.device)

    rows = to_device(np.repeat(np.array([row for row, _, _ in penalized]), lengths), logits.device)
    ids = to_device(np.concatenate(ids_by_row), logits.device)
    counts = to_device(np.concatenate([c.counts for _, _, c in penalized]), logits.device)
    repetition = per_entry([state.params.repetition_penalty for _, state, _ in penalized])
    frequency = per_entry([state.params.frequency_penalty for _, state, _ in penalized])
    presence = per_entry([state.params.presence_penalty for _, state, _ in penalized])
    entries = logits[rows, ids]
    entries = torch.where(entries > 0, entries / repetition, entries * repetition)
    entries = entries - frequency * counts - presence * (counts > 0)
    logits.index_put_((rows, ids), entries)
