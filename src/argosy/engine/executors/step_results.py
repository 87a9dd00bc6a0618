"""From a step's logits to its results: sampled tokens, their logprobs, and the logprobs of prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from argosy.engine.core.plan import ScheduledSequence, SequenceResult, TokenLogprob
from argosy.engine.executors.logprobs import token_logprobs
from argosy.engine.executors.sampler import NOT_FINITE, Draw, Greatest, Sampled, SampleRow, sample
from argosy.engine.executors.sequence_state import SequenceState
from argosy.engine.executors.step_layout import IntArray, to_device

SCORED_ROWS_AT_ONCE = 64
"""Prompt rows whose logits exist together; a prompt of thousands of tokens would need gigabytes of them."""


class Logits(NamedTuple):
    """Raw logits, f32 [rows, vocab], of some of a step's tokens; the rest as of `sample`."""

    values: Tensor
    greatest: Greatest | None = None
    draw_raw: Draw | None = None


LogitsOf = Callable[[IntArray], Logits]
"""Makes the logits of some of a step's tokens; valid until the next call."""

_NOTHING = SequenceResult(-1, (), (), (), "")


class ComputedStep(NamedTuple):
    """The sequences of a step whose tokens are computed.

    Attributes:
        states: of each of `entries`.
        first_rows, ends: as of `StepLayout`.
        logits_of: makes the logits of some of the tokens.
    """

    entries: Sequence[ScheduledSequence]
    states: Sequence[SequenceState]
    first_rows: IntArray
    ends: IntArray
    logits_of: LogitsOf


def collect_results(step: ComputedStep) -> list[SequenceResult]:
    """One result per entry, in order. Records sampled tokens in the states."""
    results = [_NOTHING._replace(sequence_id=entry.sequence_id) for entry in step.entries]
    _score_prompts(step, results)
    _sample(step, results)
    return results


def refuse_adapter(entry: ScheduledSequence) -> SequenceResult:
    """The result of a sequence that wants an adapter, for executors that run the base model only."""
    error = f"adapter {entry.adapter_id!r} is not loaded: this executor runs the base model only"
    return SequenceResult(entry.sequence_id, (), (), (), error)


def _sample(step: ComputedStep, results: list[SequenceResult]) -> None:
    """Sample the entries that ask for it, except failed ones; updates `results` and the sequences' states."""
    sampling = [i for i, entry in enumerate(step.entries) if entry.sample and not results[i].error]
    if not sampling:
        return
    logits = step.logits_of(step.first_rows[1:][sampling] - 1)
    rows = [SampleRow(step.states[i], int(step.ends[i]), step.entries[i].num_output_tokens) for i in sampling]
    sampled = sample(logits.values, rows, logits.greatest, logits.draw_raw)
    logprobs = _sampled_logprobs(logits.values, rows, sampled)
    for i, row, (token_id, error), scored in zip(sampling, rows, sampled, logprobs, strict=True):
        if error:
            results[i] = results[i]._replace(error=error)
            continue
        row.state.record(row.num_output_tokens, token_id)
        results[i] = results[i]._replace(token_ids=(token_id,), logprobs=scored)


def _sampled_logprobs(
    logits: Tensor, rows: Sequence[SampleRow], sampled: Sequence[Sampled]
) -> list[tuple[TokenLogprob, ...]]:
    """One entry per row; empty where none are asked for or the row failed."""
    asked = [i for i, row in enumerate(rows) if row.state.params.logprobs is not None and not sampled[i].error]
    scored: list[tuple[TokenLogprob, ...]] = [()] * len(rows)
    if asked:
        own = logits.index_select(0, to_device(np.array(asked, dtype=np.int64), logits.device))
        num_top = [rows[i].state.params.logprobs or 0 for i in asked]
        for i, score in zip(asked, token_logprobs(own, [sampled[i].token_id for i in asked], num_top), strict=True):
            scored[i] = (score,)
    return scored


def _score_prompts(step: ComputedStep, results: list[SequenceResult]) -> None:
    """Prompt logprobs of the entries that ask for them; updates `results`."""
    for i, entry in enumerate(step.entries):
        if entry.prompt_logprobs_from < 0:
            continue
        new = step.states[i].new
        first = max(entry.prompt_logprobs_from, 1)
        stop = min(int(step.ends[i]), len(new.prompt_token_ids) - 1) + 1
        assert first > entry.start or first >= stop, "prompt logprobs asked for a position whose logits are not computed"
        scored: list[TokenLogprob] = []
        for low in range(first, stop, SCORED_ROWS_AT_ONCE):
            positions = np.arange(low, min(low + SCORED_ROWS_AT_ONCE, stop))
            logits = step.logits_of(step.first_rows[i] + positions - 1 - entry.start).values
            if not _is_sound(logits):
                results[i] = results[i]._replace(error=NOT_FINITE)
                break
            num_top = [new.params.prompt_logprobs or 0] * len(positions)
            scored += token_logprobs(logits, [new.prompt_token_ids[p] for p in positions], num_top)
        else:
            results[i] = results[i]._replace(prompt_logprobs=tuple(scored))


def _is_sound(logits: Tensor) -> bool:
    """Whether each row has a greatest logit that is finite; NaN and +inf both surface in the maximum."""
    return bool(torch.isfinite(logits.amax(dim=-1)).all())
