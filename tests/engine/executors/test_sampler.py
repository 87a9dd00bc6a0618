from __future__ import annotations

import math
from contextlib import closing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.engine.core.plan import NewSequence
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executors.cpu_drawing import Drawing
from argosy.engine.executors.sampler import Greatest, Sampled, SampleRow, sample
from argosy.engine.executors.sequence_state import SequenceState
from argosy.kernels.team import Team

VOCAB = 50


def row_of(params, *, seed=1, sample_index=0, position=4, bad_words_ids=(), prompt=(1, 2)):
    new = NewSequence(1, prompt, params, sample_index, seed, (), bad_words_ids)
    return SampleRow(SequenceState(new), position, 0)


def random_logits(rows, seed=0):
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.2]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    logit_bias=st.sampled_from([(), ((3, 5.0),)]),
)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(PARAMS, st.integers(0, 2**64 - 1), st.integers(0, 3)), min_size=1, max_size=40), st.integers(0, 99)
)
def test_a_row_gets_the_same_token_alone_and_in_any_batch(cases, seed):
    logits = random_logits(len(cases), seed)
    before = logits.clone()
    rows = [row_of(p, seed=s, sample_index=i, position=7 + i) for p, s, i in cases]
    together = sample(logits, rows)
    assert torch.equal(logits, before)
    for i, row in enumerate(rows):
        assert sample(logits[i : i + 1], [row]) == [together[i]]
        if row.is_plain_greedy:
            assert together[i].token_id == int(logits[i].argmax())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(PARAMS, st.integers(0, 2**64 - 1), st.integers(0, 3)), min_size=1, max_size=20), st.integers(0, 99)
)
def test_kernels_draw_what_torch_draws_from_rows_that_nothing_edits(cases, seed):
    logits = random_logits(len(cases), seed)
    rows = [row_of(p, seed=s, sample_index=i, position=7 + i) for p, s, i in cases]
    asked = []
    with closing(Team(2)) as team:
        drawing = Drawing(logits.numpy(), team)

        def draw(indices, params, keys):
            asked.extend(indices)
            assert params == [rows[i].state.params for i in indices]
            return drawing.draw(indices, params, keys)

        values, ids = logits.max(dim=-1)
        by_kernels = sample(logits, rows, Greatest(ids.tolist(), values.tolist()), draw)
    assert by_kernels == sample(logits, rows)
    assert asked == [i for i, row in enumerate(rows) if not (row.state.params.greedy or row.state.edits_logits)]


def test_rows_without_a_finite_greatest_are_not_drawn_from():
    logits, params = random_logits(3), SamplingParams(temperature=1.0)
    logits[1, 4] = math.nan
    rows, asked = [row_of(params) for _ in range(3)], []

    def draw(indices, params, keys):
        asked.extend(indices)
        return [11] * len(indices)

    results = sample(logits, rows, None, draw)
    assert asked == [0, 2]
    assert [r.token_id for r in results if not r.error] == [11, 11]
    assert "not finite" in results[1].error


def test_greedy_takes_the_lowest_id_of_equal_logits_and_ignores_filters():
    logits = torch.zeros(1, VOCAB)
    logits[0, [7, 9]] = 2.0
    params = SamplingParams(temperature=0.0, top_k=1, top_p=0.1, min_p=0.9)
    assert sample(logits, [row_of(params)]) == [Sampled(7, "")]
    assert sample(logits, [row_of(SamplingParams(temperature=0.0, logit_bias=((0, 2.0),)))]) == [Sampled(0, "")]


def test_seed_sample_index_and_position_each_change_the_draw():
    logits = torch.zeros(1, VOCAB).expand(64, VOCAB)
    params = SamplingParams()
    for rows in (
        [row_of(params, seed=i) for i in range(64)],
        [row_of(params, sample_index=i) for i in range(64)],
        [row_of(params, position=i) for i in range(64)],
    ):
        assert len({s.token_id for s in sample(logits, rows)}) > 25  # 36 expected of 50


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("others", [0.0, 1.0])
def test_a_damaged_row_fails_alone(poison, temperature, others):
    logits = random_logits(3)
    neighbours = [row_of(SamplingParams(temperature=others, top_p=0.9)) for _ in range(3)]
    sound = sample(logits, neighbours)
    logits[1, 30] = poison
    rows = [neighbours[0], row_of(SamplingParams(temperature=temperature)), neighbours[2]]
    results = sample(logits, rows)
    assert "not finite" in results[1].error
    assert [results[0], results[2]] == [sound[0], sound[2]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_does_not_hide_damage(temperature):
    logits = random_logits(1)
    logits[0, 30] = math.nan
    (result,) = sample(logits, [row_of(SamplingParams(temperature=temperature), bad_words_ids=((30,),))])
    assert "not finite" in result.error


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_everything_masked_fails_alone(temperature):
    masked = row_of(SamplingParams(temperature=temperature), bad_words_ids=tuple((i,) for i in range(VOCAB)))
    fine = row_of(SamplingParams(temperature=temperature, logit_bias=((5, 100.0),)))
    results = sample(random_logits(2), [masked, fine])
    assert "bad_words" in results[0].error
    assert results[1] == Sampled(5, "")


def test_minus_infinity_in_raw_logits_is_sound_and_never_drawn():
    logits = torch.full((8, VOCAB), -math.inf)
    logits[:, [4, 6]] = 1.0
    results = sample(logits, [row_of(SamplingParams(), seed=i) for i in range(8)])
    assert {r.token_id for r in results} <= {4, 6}
    assert not any(r.error for r in results)
