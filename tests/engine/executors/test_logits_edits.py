from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from argosy.engine.core.plan import NewSequence
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executors.logits_edits import edit_logits
from argosy.engine.executors.sequence_state import SequenceState

VOCAB = 12
TOKEN = st.integers(0, VOCAB - 1)


def state_of(prompt, output, params, stop_ids=(), bad_words_ids=()):
    state = SequenceState(NewSequence(1, tuple(prompt), params, 0, 0, tuple(stop_ids), tuple(bad_words_ids)))
    for index, token in enumerate(output):
        state.record(index, token)
    return state


def plain_reference(row, state, output):
    """One row by loops, in the documented order."""
    params, new, row = state.params, state.new, np.array(row, dtype=np.float64)
    for token, bias in params.logit_bias:
        row[token] += bias
    if len(output) < params.min_tokens:
        for token in new.stop_ids:
            row[token] = -np.inf
    for word in new.bad_words_ids:
        if list(word[:-1]) == output[len(output) - len(word) + 1 :]:
            row[word[-1]] = -np.inf
    for token in set(new.prompt_token_ids) | set(output):
        row[token] = row[token] / params.repetition_penalty if row[token] > 0 else row[token] * params.repetition_penalty
    for token, count in Counter(output).items():
        row[token] -= params.frequency_penalty * count + params.presence_penalty
    return row


STATES = st.tuples(
    st.lists(TOKEN, min_size=1, max_size=8),
    st.lists(TOKEN, max_size=8),
    st.builds(
        SamplingParams,
        repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
        presence_penalty=st.sampled_from([0.0, 0.5, -2.0]),
        frequency_penalty=st.sampled_from([0.0, 0.25, -1.0]),
        min_tokens=st.integers(0, 9),
        logit_bias=st.dictionaries(TOKEN, st.sampled_from([-100.0, 1.5, 100.0]), max_size=3).map(lambda d: tuple(d.items())),
    ),
    st.lists(TOKEN, max_size=2),
    st.lists(st.lists(TOKEN, min_size=1, max_size=3).map(tuple), max_size=3),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(STATES, min_size=1, max_size=5), st.integers(0, 2**31))
def test_every_edit_in_the_documented_order_row_by_row(cases, seed):
    states = [state_of(*case) for case in cases]
    logits = torch.randn(len(cases), VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    edited = logits.clone()
    edit_logits(edited, states, [len(case[1]) for case in cases])
    for row, (state, case) in enumerate(zip(states, cases, strict=True)):
        if not state.edits_logits:
            assert torch.equal(edited[row], logits[row])
        # Without looks_back nothing is held of the output; then no edit may depend on it.
        np.testing.assert_allclose(
            edited[row].numpy(), plain_reference(logits[row].numpy(), state, case[1]), rtol=1e-5, atol=1e-4
        )


def test_repetition_like_transformers():
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    prompts, outputs = [(1, 1, 2), (5,), (7, 0)], [[3, 3], [], [7]]
    states = [state_of(p, o, SamplingParams(repetition_penalty=1.3)) for p, o in zip(prompts, outputs, strict=True)]
    edited = logits.clone()
    edit_logits(edited, states, [2, 0, 1])
    processor = RepetitionPenaltyLogitsProcessor(1.3)
    for row in range(3):
        history = torch.tensor([[*prompts[row], *outputs[row]]])
        torch.testing.assert_close(edited[row : row + 1], processor(history, logits[row : row + 1].clone()))
