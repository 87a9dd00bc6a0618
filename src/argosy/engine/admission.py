"""The checks that need the model: from what a caller asks to a `Request` that cannot harm the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from argosy.engine.core.request import Request
from argosy.engine.core.sampling_params import SamplingParams
from argosy.errors import ContextLengthExceeded, InvalidRequest
from argosy.models.loaded import Tokenizer

_SEED_MODULUS = 2**64


@dataclass(frozen=True, slots=True)
class CheckedParams:
    """Sampling parameters that suit the model. All prompts of one call share them, however long they took to check.

    Attributes:
        eos_token_ids: the model's, unless they are to be ignored.
        bad_words_ids: every spelling of each bad word.
    """

    params: SamplingParams
    eos_token_ids: frozenset[int]
    bad_words_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Admission:
    """Checks and completes requests; safe to use from several threads.

    Attributes:
        logits_width: every token id must be below it; it may exceed the tokenizer's vocabulary.
        max_model_len: longest sequence in tokens, prompt and output, that both the model and the KV pool allow.
        eos_token_ids: union of what tokenizer, configuration and generation configuration name.
        draw_seed: gives the 64-bit seed of a request that brings none.
    """

    tokenizer: Tokenizer
    logits_width: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    draw_seed: Callable[[], int]

    def admit(
        self,
        request_id: str,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams | CheckedParams,
        *,
        arrival_s: float,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Request:
        """Return the request with everything resolved: seed, EOS ids, bad words as ids.

        `max_tokens` stays as given: it is a ceiling, and a sequence that meets the context first ends with "length".

        Raises:
            InvalidRequest: the prompt is empty or has an id outside the logits; and what `check` raises.
            ContextLengthExceeded: the prompt leaves no room for a token.
        """
        self._check_prompt(prompt_token_ids)
        checked = params if isinstance(params, CheckedParams) else self.check(params)
        seed = checked.params.seed
        return Request(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            params=checked.params,
            arrival_s=arrival_s,
            seed=(self.draw_seed() if seed is None else seed) % _SEED_MODULUS,
            eos_token_ids=checked.eos_token_ids,
            priority=priority,
            cache_salt=cache_salt,
            bad_words_ids=checked.bad_words_ids,
        )

    def check(self, params: SamplingParams) -> CheckedParams:
        """Check what does not depend on a prompt; takes as long as the lists in `params`.

        Raises:
            InvalidRequest: an id is outside the logits, more logprobs are wanted than exist, or no token may be generated.
        """
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("logit_bias", [token_id for token_id, _ in params.logit_bias])
        self._check_num_logprobs("logprobs", params.logprobs)
        self._check_num_logprobs("prompt_logprobs", params.prompt_logprobs)
        eos_token_ids = frozenset() if params.ignore_eos else self.eos_token_ids
        bad_words_ids = self._bad_words_ids(params.bad_words)
        self._check_something_is_left(params, eos_token_ids, bad_words_ids)
        return CheckedParams(params, eos_token_ids, bad_words_ids)

    def _check_prompt(self, prompt_token_ids: tuple[int, ...]) -> None:
        if not prompt_token_ids:
            raise InvalidRequest("the prompt is empty: at least one token is needed", param="prompt")
        if len(prompt_token_ids) >= self.max_model_len:
            raise ContextLengthExceeded(
                f"the prompt has {len(prompt_token_ids)} tokens, but the context holds {self.max_model_len} with at least "
                f"one generated token: shorten the prompt to {self.max_model_len - 1} tokens or fewer",
                param="prompt",
            )
        self._check_ids("prompt", prompt_token_ids)

    def _check_ids(self, param: str, token_ids: Sequence[int]) -> None:
        if not token_ids or (min(token_ids) >= 0 and max(token_ids) < self.logits_width):
            return
        outside = next(token_id for token_id in token_ids if not 0 <= token_id < self.logits_width)
        raise InvalidRequest(
            f"{param} has the token id {outside}, but this model's ids are 0 to {self.logits_width - 1}", param=param
        )

    def _check_num_logprobs(self, param: str, wanted: int | None) -> None:
        if wanted is not None and wanted > self.logits_width:
            raise InvalidRequest(
                f"{param} asks for the {wanted} most likely tokens, but this model has {self.logits_width}", param=param
            )

    def _check_something_is_left(
        self, params: SamplingParams, eos_token_ids: frozenset[int], bad_words_ids: tuple[tuple[int, ...], ...]
    ) -> None:
        masked = {word[0] for word in bad_words_ids if len(word) == 1}
        if params.min_tokens:
            masked |= eos_token_ids.union(params.stop_token_ids)
        if len(masked) >= self.logits_width:
            param = "min_tokens" if params.min_tokens else "bad_words"
            raise InvalidRequest(
                f"{param}: bad_words, and before min_tokens all that ends a sequence, rule out every token of this model",
                param=param,
            )

    def _bad_words_ids(self, bad_words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Each word as it is spelled at the start of a text and after a space, which most vocabularies tell apart."""
        spellings: dict[tuple[int, ...], None] = {}
        for word in bad_words:
            for text in (word.lstrip(), " " + word.lstrip()):
                ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))
                if not ids:
                    raise InvalidRequest(
                        f"bad_words has {word!r}, which this model's tokenizer cannot spell", param="bad_words"
                    )
                self._check_ids("bad_words", ids)
                spellings[ids] = None
        return tuple(spellings)
