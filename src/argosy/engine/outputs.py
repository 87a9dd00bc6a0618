"""What a caller of the engine receives."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.engine.core.plan import TokenLogprob


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """The news of one sequence: text and tokens since its last delta, and at the end why it ended.

    Deltas of one sequence arrive in order; exactly one carries a `finish_reason` and it is the last. The texts of all its
    deltas joined are the sequence's text, whatever the batching was.

    Attributes:
        index: 0..n-1 among the sequences of the request.
        text: text released; may be "" while bytes are incomplete or a stop string may be forming.
        token_ids: tokens generated, those of held-back text included.
        logprobs: one per token of `token_ids`, or None if not asked for.
        prompt_logprobs: one per prompt token, the first None; on the first delta of index 0 only, if asked for.
        finish_reason: "stop", "length", "abort", "error", or None while it runs.
        stop_reason: the matched stop string or stop token id, or the limit met ("max_tokens", "max_model_len",
            "kv_pool"); None for EOS.
        error: a line, with finish_reason "error".
        num_prompt_tokens, num_cached_tokens, num_output_tokens: totals so far.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    finish_reason: str | None
    stop_reason: int | str | None
    error: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
