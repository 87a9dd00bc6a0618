"""Every field out of range is refused under its own name."""

import math

import pytest

from argosy.engine.core.sampling_params import (
    MAX_BAD_WORDS,
    MAX_BAD_WORDS_CHARS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    SamplingParams,
)
from argosy.errors import InvalidRequest

REFUSED = [
    ("n", [0, -1, MAX_N + 1]),
    ("temperature", [-0.1, 100.1, math.nan, math.inf]),
    ("top_p", [0.0, -0.1, 1.1, math.nan]),
    ("min_p", [-0.1, 1.1, math.nan]),
    ("top_k", [-2]),
    ("repetition_penalty", [0.0, 1e-38, 9e-4, -1.0, math.nan]),
    ("presence_penalty", [-2.1, 2.1, math.nan]),
    ("frequency_penalty", [-2.1, 2.1, math.nan]),
    ("seed", [2**64, -(2**63) - 1]),
    ("max_tokens", [-1]),
    ("min_tokens", [-1]),
    ("logit_bias", [((-1, 0.0),), ((1, 100.5),), ((1, math.nan),), ((1, 60.0), (2, 0.0), (1, 60.0))]),
    ("stop", [("",), ("x",) * (MAX_STOP_STRINGS + 1), ("x" * MAX_STOP_CHARS, "y")]),
    ("bad_words", [("",), ("  ",), ("x",) * (MAX_BAD_WORDS + 1), ("x" * MAX_BAD_WORDS_CHARS, "y")]),
    ("logprobs", [-1, MAX_LOGPROBS + 1]),
    ("prompt_logprobs", [-1, MAX_LOGPROBS + 1]),
]

ACCEPTED = [
    ("n", [1, MAX_N]),
    ("temperature", [0.0, 100.0]),
    ("top_p", [1e-6, 1.0]),
    ("min_p", [0.0, 1.0]),
    ("top_k", [-1, 0, 1, 10**9]),
    ("repetition_penalty", [1e-3, 100.0]),
    ("presence_penalty", [-2.0, 2.0]),
    ("seed", [None, 0, 2**64 - 1, -(2**63)]),
    ("max_tokens", [None, 0, 1]),
    ("logit_bias", [((0, -100.0), (1, 100.0))]),
    ("stop", [(), ("x",) * MAX_STOP_STRINGS, ("x" * MAX_STOP_CHARS,)]),
    ("bad_words", [(), ("x",) * MAX_BAD_WORDS, ("x" * MAX_BAD_WORDS_CHARS,)]),
    ("logprobs", [None, 0, MAX_LOGPROBS]),
    ("prompt_logprobs", [None, 0, MAX_LOGPROBS]),
]


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in REFUSED for value in values])
def test_a_value_out_of_range_is_refused_with_the_name_of_the_field(field, value):
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**{field: value})
    assert refused.value.param == field


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in ACCEPTED for value in values])
def test_the_ends_of_each_range_are_accepted(field, value):
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_min_tokens_must_not_exceed_max_tokens():
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(min_tokens=3, max_tokens=2)
    assert refused.value.param == "min_tokens"
    SamplingParams(min_tokens=2, max_tokens=2)


def test_temperature_zero_is_greedy():
    assert SamplingParams(temperature=0.0).greedy
    assert not SamplingParams(temperature=0.1).greedy
