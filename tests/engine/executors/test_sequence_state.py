from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.engine.core.plan import NewSequence, ScheduledSequence
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executors.sequence_state import SequenceState

PROMPT = (3, 5, 3)


def state_of(prompt=PROMPT, bad_words_ids=(), stop_ids=(), **params) -> SequenceState:
    return SequenceState(NewSequence(1, tuple(prompt), SamplingParams(**params), 0, 0, stop_ids, bad_words_ids))


def computing(tokens, start, num_output) -> ScheduledSequence:
    return ScheduledSequence(1, tuple(tokens), start, (), False, num_output, "", -1)


def counts_of(state):
    return dict(zip(state.penalized.ids.tolist(), state.penalized.counts.tolist(), strict=True))


def expected_counts(prompt, output):
    counts = dict.fromkeys(prompt, 0)
    counts.update(Counter(output))
    return counts


@given(st.lists(st.integers(0, 5), max_size=6), st.lists(st.integers(0, 5), max_size=30), st.data())
def test_counts_follow_the_scheduler_through_recompute_and_rollback(prompt, output, data):
    prompt = prompt or [0]
    state = state_of(prompt, repetition_penalty=1.5)
    known = 0
    for index, token in enumerate(output):
        state.record(index, token)
        known = index + 1
        if data.draw(st.integers(0, 4)) == 0:  # preempted: recompute from some position on, in chunks
            tokens = prompt + output[:known]
            at = data.draw(st.integers(0, len(tokens) - 1))
            while at < len(tokens):
                stop = data.draw(st.integers(at + 1, len(tokens)))
                state.learn(computing(tokens[at:stop], at, known))
                at = stop
        assert counts_of(state) == expected_counts(prompt, output[:known])
    cut = data.draw(st.integers(0, known))
    tokens = prompt + output[:cut]
    state.learn(computing(tokens[-1:], len(tokens) - 1, cut))
    assert counts_of(state) == expected_counts(prompt, output[:cut])
    assert state.output_token_ids == output[:cut]


def test_tokens_replaced_by_the_scheduler_replace_the_history():
    state = state_of(frequency_penalty=1.0)
    for index, token in enumerate((7, 8, 9)):
        state.record(index, token)
    state.learn(computing((4,), len(PROMPT) + 1, 2))
    assert state.output_token_ids == [7, 4]
    assert counts_of(state) == {3: 0, 5: 0, 7: 1, 4: 1}


def test_outputs_generated_elsewhere_are_learnt_as_they_are_computed():
    state = state_of(presence_penalty=1.0)
    state.learn(computing((*PROMPT, 6, 6, 2), 0, 3))
    assert counts_of(state) == {3: 0, 5: 0, 6: 2, 2: 1}


def test_a_gap_in_the_history_is_our_bug():
    state = state_of(presence_penalty=1.0)
    with pytest.raises(AssertionError, match="history"):
        state.learn(computing((6,), len(PROMPT) + 2, 3))


def test_nothing_is_kept_where_nothing_looks_back():
    state = state_of(temperature=0.5, logit_bias=((1, 2.0),), bad_words_ids=((4,),))
    state.record(0, 9)
    assert not state.looks_back
    assert state.output_token_ids == []
    assert state.edits_logits
    assert not state_of().edits_logits


def test_stop_ids_are_masked_until_min_tokens():
    state = state_of(min_tokens=2, stop_ids=(8, 9))
    assert [list(state.masked_ids(n)) for n in range(4)] == [[8, 9], [8, 9], [], []]


def test_a_bad_word_is_masked_when_all_but_its_last_token_was_just_generated():
    state = state_of(bad_words_ids=((3, 5, 6), (1,), (5, 2)))
    masked = []
    for index, token in enumerate((5, 3, 5, 4)):
        masked.append(sorted(state.masked_ids(index)))
        state.record(index, token)
    # The prompt ends in 5, 3: it is not output, so it completes nothing.
    assert masked == [[1], [1, 2], [1], [1, 2, 6]]
    assert sorted(state.masked_ids(4)) == [1]
