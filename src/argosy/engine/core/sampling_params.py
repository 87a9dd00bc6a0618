"""How the tokens of one request are chosen.

One frozen value travels from the HTTP edge to the sampler. Ranges are checked here, against nothing but numbers; what needs
the tokenizer or the width of the logits (ids in range, words to ids) is checked by `engine.admission`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from argosy.errors import InvalidRequest

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 16_384
MAX_BAD_WORDS = 1024
MAX_BAD_WORDS_CHARS = 16_384
MAX_N = 128
MIN_REPETITION_PENALTY = 0.001
"""Logits are divided by it: next to zero it would take them out of fp32's range."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings under the names of the OpenAI API and of vLLM.

    Order of application to a row of logits: logit_bias, min_tokens and bad_words masks, penalties, temperature, top_k,
    top_p, min_p, draw. `temperature == 0` is greedy and ignores top_k, top_p and min_p.

    Attributes:
        n: sequences generated from one prompt; they share its KV blocks.
        top_k: 0 or -1 means all tokens.
        repetition_penalty: over prompt and output (CTRL, Keskar et al. 2019); > 1 discourages.
        presence_penalty, frequency_penalty: over output only (OpenAI's definition).
        logit_bias: pairs (token id, bias in logits), each id once, bias within [-100, 100].
        seed: 64-bit; None lets the engine draw one. Results depend on (seed, sequence index, position) only.
        max_tokens: ceiling on generated tokens; None means the rest of the context.
        min_tokens: until as many are generated, every EOS and stop id is masked and stop strings are not looked for.
        ignore_eos: EOS ids of the model do not end the sequence; `stop_token_ids` still do.
        stop: up to `MAX_STOP_STRINGS` strings that end the text; not part of it unless `include_stop_str_in_output`.
            All of them are searched for at once, by an automaton whose size is that of their text: `MAX_STOP_CHARS` in all.
        bad_words: up to `MAX_BAD_WORDS` words, `MAX_BAD_WORDS_CHARS` in all, that are never completed; each is compared
            with the output at every step.
        logprobs: None = none; k = the chosen token's and the k most likely ones' (natural log, of the raw logits).
        prompt_logprobs: the same for the prompt's tokens; the first entry is None.
        skip_special_tokens: special tokens give no text.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    bad_words: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` naming the field that is out of range."""
        _within("n", self.n, 1, MAX_N)
        _within("temperature", self.temperature, 0.0, 100.0)
        _within("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, 100.0)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.top_k < -1:
            raise InvalidRequest(f"top_k must be -1 or 0 (all tokens) or at least 1, got {self.top_k}", param="top_k")
        if self.seed is not None:
            _within("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InvalidRequest(f"max_tokens must not be negative, got {self.max_tokens}", param="max_tokens")
        if self.min_tokens < 0:
            raise InvalidRequest(f"min_tokens must not be negative, got {self.min_tokens}", param="min_tokens")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})", param="min_tokens"
            )
        for token_id, bias in self.logit_bias:
            if token_id < 0 or not (-100.0 <= bias <= 100.0):
                raise InvalidRequest(
                    f"logit_bias maps token ids to values within [-100, 100], got {token_id}: {bias}",
                    param="logit_bias",
                )
        if len({token_id for token_id, _ in self.logit_bias}) < len(self.logit_bias):
            raise InvalidRequest("logit_bias has a token id more than once", param="logit_bias")
        if len(self.stop) > MAX_STOP_STRINGS or any(s == "" for s in self.stop):
            raise InvalidRequest(f"stop takes up to {MAX_STOP_STRINGS} non-empty strings", param="stop")
        _short_enough("stop", self.stop, MAX_STOP_CHARS)
        if len(self.bad_words) > MAX_BAD_WORDS or any(w.strip() == "" for w in self.bad_words):
            raise InvalidRequest(f"bad_words takes up to {MAX_BAD_WORDS} non-blank strings", param="bad_words")
        _short_enough("bad_words", self.bad_words, MAX_BAD_WORDS_CHARS)
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if value is not None:
                _within(name, value, 0, MAX_LOGPROBS)

    @property
    def greedy(self) -> bool:
        """Whether each token is the arg max; below 1e-5 dividing by the temperature has no meaning in fp32."""
        return self.temperature < 1e-5


def _within(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    inside = (low < value if low_open else low <= value) and value <= high
    if math.isnan(value) or not inside:
        raise InvalidRequest(f"{name} must be within {'(' if low_open else '['}{low}, {high}], got {value}", param=name)


def _short_enough(name: str, texts: tuple[str, ...], limit: int) -> None:
    num_chars = sum(map(len, texts))
    if num_chars > limit:
        raise InvalidRequest(f"{name} takes up to {limit} characters in all, got {num_chars}", param=name)
