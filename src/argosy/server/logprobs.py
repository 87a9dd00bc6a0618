"""Log probabilities from the engine's tuples to the protocol's shapes."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from typing import Any

from argosy.engine.core.plan import TokenLogprob
from argosy.errors import GenerationFailed
from argosy.models.loaded import Tokenizer

LOWEST_LOGPROB = -9999.0
SIZE_PER_LOGPROB = 8
"""Characters of text that take about as long to encode as a log probability to write."""


def json_logprob(value: float) -> float:
    """JSON has no -inf: it becomes -9999.0, as in OpenAI's and vLLM's answers.

    Raises:
        GenerationFailed: NaN or +inf, which no sound distribution has.
    """
    if math.isfinite(value):
        return value
    if value == -math.inf:
        return LOWEST_LOGPROB
    raise GenerationFailed(f"the model gave a log probability of {value}")


def logprobs_size(num_tokens: int, num_top: int | None) -> int:
    """The log probabilities of so many tokens, as `SideWork` counts."""
    return 0 if num_top is None else num_tokens * (1 + num_top) * SIZE_PER_LOGPROB


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    r"""A token's text; bytes that are no text by themselves are written `bytes:\xf0\x9f`, as OpenAI does."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(logprobs: Iterable[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """`ChatLogprobs` of generated tokens."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token_text(tokenizer, token_id),
            "logprob": json_logprob(logprob),
            "bytes": list(tokenizer.token_bytes(token_id)),
        }

    content = [
        {**entry(item.token_id, item.logprob), "top_logprobs": [entry(*candidate) for candidate in item.top]}
        for item in logprobs
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobsBuilder:
    """`CompletionLogprobs` of one choice, in pieces; keeps the offset of the next token's text.

    A token that completes a character begins where the character does.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int, *, skip_special_tokens: bool, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._silent = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> dict[str, Any]:
        """The lists for these tokens; an entry of None has no log probabilities (the first token of a prompt)."""
        offsets = [self._advance(token_id) for token_id in token_ids]
        return {
            "tokens": [token_text(self._tokenizer, token_id) for token_id in token_ids],
            "token_logprobs": [None if item is None else json_logprob(item.logprob) for item in logprobs],
            "top_logprobs": [None if item is None else self._top(item) for item in logprobs],
            "text_offset": offsets,
        }

    def continue_at(self, offset: int) -> None:
        """The next token's text begins at `offset`: an echoed prompt need not be what its ids decode to."""
        self._offset = offset
        self._decoder.reset()

    def _advance(self, token_id: int) -> int:
        start = self._offset
        if token_id not in self._silent:
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        return start

    def _top(self, item: TokenLogprob) -> dict[str, float]:
        candidates = ((item.token_id, item.logprob), *item.top[: self._num_top])
        return {token_text(self._tokenizer, token_id): json_logprob(logprob) for token_id, logprob in candidates}


def prompt_logprobs(
    logprobs: Iterable[TokenLogprob | None], num_top: int, tokenizer: Tokenizer
) -> list[dict[str, dict[str, Any]] | None]:
    """`PromptLogprobs`: per prompt token the `num_top` most likely ones at its place and the token itself, by id."""

    def entry(token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": json_logprob(logprob), "rank": rank, "decoded_token": token_text(tokenizer, token_id)}

    def position(item: TokenLogprob) -> dict[str, dict[str, Any]]:
        candidates = {str(token_id): entry(token_id, lp, i + 1) for i, (token_id, lp) in enumerate(item.top[:num_top])}
        return {str(item.token_id): entry(item.token_id, item.logprob, item.rank), **candidates}

    return [None if item is None else position(item) for item in logprobs]
