"""What offline generation returns."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.engine.core.plan import TokenLogprob


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One finished sequence.

    Attributes:
        index: 0..n-1 among the sequences of the request.
        logprobs: one per token, or None if not asked for.
        finish_reason: "stop", "length" or "error".
        stop_reason: the matched stop string or stop token id, or the limit met; None for EOS.
        error: a line, with finish_reason "error".
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: str
    stop_reason: int | str | None
    error: str


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One prompt and what was generated for it.

    Attributes:
        prompt: the text given or rendered, or None if token ids were given.
        prompt_logprobs: one per prompt token, the first None; None if not asked for.
        completions: by index.
        num_cached_tokens: prompt tokens found in the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    completions: tuple[CompletionOutput, ...]
    num_cached_tokens: int
