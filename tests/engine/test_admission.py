from __future__ import annotations

import pytest

from argosy.engine.admission import Admission
from argosy.engine.core.sampling_params import SamplingParams
from argosy.errors import ContextLengthExceeded, InvalidRequest

WIDTH = 300  # wider than the tokenizer's 259 ids, as with padded embeddings


@pytest.fixture
def admission(byte_tokenizer) -> Admission:
    seeds = iter([7, 2**64 - 1])
    return Admission(byte_tokenizer, WIDTH, 8, frozenset({256, 257}), lambda: next(seeds))


def admit(admission, prompt=(1, 2), **params):
    return admission.admit("r", tuple(prompt), SamplingParams(**params), arrival_s=0.5, priority=3, cache_salt="tenant")


def test_everything_is_carried_and_resolved(admission):
    request = admit(admission, bad_words=("hi",))
    assert (request.request_id, request.prompt_token_ids, request.arrival_s) == ("r", (1, 2), 0.5)
    assert (request.priority, request.cache_salt, request.seed) == (3, "tenant", 7)
    assert request.eos_token_ids == {256, 257}
    assert request.bad_words_ids == (tuple(b"hi"), tuple(b" hi"))


@pytest.mark.parametrize("seed", [0, 12, 2**64 - 1])
def test_a_given_seed_is_kept(admission, seed):
    assert admit(admission, seed=seed).seed == seed


def test_a_negative_seed_wraps_to_64_bits_and_a_missing_one_is_drawn(admission):
    assert admit(admission, seed=-1).seed == 2**64 - 1
    assert [admit(admission).seed, admit(admission).seed] == [7, 2**64 - 1]


def test_ignore_eos_drops_the_models_ids_only(admission):
    request = admit(admission, ignore_eos=True, stop_token_ids=(256,))
    assert request.eos_token_ids == frozenset()
    assert request.params.stop_token_ids == (256,)


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ((), {}, "prompt"),
        ((-1,), {}, "prompt"),
        ((1, WIDTH), {}, "prompt"),
        ((1,), {"stop_token_ids": (WIDTH,), "min_tokens": 1}, "stop_token_ids"),
        ((1,), {"stop_token_ids": (-1,)}, "stop_token_ids"),
        ((1,), {"logit_bias": ((191222, -100.0),)}, "logit_bias"),
    ],
)
def test_ids_outside_the_logits_and_empty_prompts_name_the_field(admission, prompt, params, param):
    with pytest.raises(InvalidRequest) as caught:
        admit(admission, prompt, **params)
    assert caught.value.param == param
    assert caught.value.http_status == 400


def test_the_bound_is_the_width_of_the_logits_not_the_size_of_the_tokenizer(admission):
    last = WIDTH - 1
    request = admit(admission, (last,), stop_token_ids=(last,), logit_bias=((last, 1.0),))
    assert request.prompt_token_ids == (last,)


@pytest.mark.parametrize("length", [8, 9, 1000])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(admission, length):
    with pytest.raises(ContextLengthExceeded, match=rf"{length} tokens.* 8 ") as caught:
        admit(admission, [1] * length)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_one_token_below_the_context_is_taken_whatever_max_tokens_says(admission):
    assert admit(admission, [1] * 7, max_tokens=10_000).params.max_tokens == 10_000
    assert admit(admission, [1] * 7).params.max_tokens is None


def test_bad_words_that_the_model_cannot_spell_or_whose_ids_it_lacks_are_refused(byte_tokenizer):
    narrow = Admission(byte_tokenizer, 100, 8, frozenset(), lambda: 0)
    with pytest.raises(InvalidRequest, match="bad_words") as caught:
        admit(narrow, bad_words=("z",))
    assert caught.value.param == "bad_words"

    class Mute(type(byte_tokenizer)):
        def encode(self, text, *, add_special_tokens=True):
            return []

    mute = Admission(Mute([b"a"]), 100, 8, frozenset(), lambda: 0)
    with pytest.raises(InvalidRequest, match="cannot spell"):
        admit(mute, bad_words=("z",))


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_more_logprobs_than_the_model_has_tokens_are_refused(byte_tokenizer, field):
    tiny = Admission(byte_tokenizer, 5, 8, frozenset(), lambda: 0)
    assert getattr(admit(tiny, **{field: 5}).params, field) == 5
    with pytest.raises(InvalidRequest, match="has 5") as caught:
        admit(tiny, **{field: 6})
    assert caught.value.param == field


def test_several_greedy_sequences_of_one_prompt_are_taken(admission):
    assert admit(admission, n=4, temperature=0.0).params.n == 4


@pytest.mark.parametrize(
    ("allowed", "params"),
    [((), {}), ((256, 257), {}), (b"ab", {"bad_words": ("a", "b")})],
)
def test_min_tokens_that_leaves_no_token_to_generate_is_refused(admission, allowed, params):
    stop_token_ids = tuple(set(range(WIDTH)) - set(allowed))
    with pytest.raises(InvalidRequest) as caught:
        admit(admission, min_tokens=1, stop_token_ids=stop_token_ids, **params)
    assert caught.value.param == "min_tokens"
    assert admit(admission, stop_token_ids=stop_token_ids, **params).params.min_tokens == 0
    assert admit(admission, min_tokens=1, stop_token_ids=stop_token_ids[1:], **params).params.min_tokens == 1


def test_bad_words_that_are_the_whole_vocabulary_are_refused(byte_tokenizer):
    class Letters(type(byte_tokenizer)):
        def encode(self, text, *, add_special_tokens=True):
            return [ord(c) - ord("a") for c in text.strip()]

    letters = Admission(Letters([b"a", b"b", b"c"]), 3, 8, frozenset(), lambda: 0)
    with pytest.raises(InvalidRequest) as caught:
        letters.admit("r", (0,), SamplingParams(bad_words=("a", "b", "c")), arrival_s=0.0)
    assert caught.value.param == "bad_words"
    assert letters.admit("r", (0,), SamplingParams(bad_words=("a", "b", "cc")), arrival_s=0.0).bad_words_ids


def test_checked_parameters_are_not_checked_again(admission):
    params = SamplingParams(bad_words=("hi",), ignore_eos=True, seed=5)
    checked = admission.check(params)
    encode = admission.tokenizer.encode
    try:
        admission.tokenizer.encode = None
        request = admission.admit("r", (1, 2), checked, arrival_s=0.5)
    finally:
        admission.tokenizer.encode = encode
    assert (request.params, request.seed, request.eos_token_ids) == (params, 5, frozenset())
    assert request.bad_words_ids == (tuple(b"hi"), tuple(b" hi"))
    with pytest.raises(InvalidRequest, match="stop_token_ids"):
        admission.check(SamplingParams(stop_token_ids=(1, WIDTH)))
