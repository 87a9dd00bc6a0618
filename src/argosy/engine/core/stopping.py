"""Where a sequence ends."""

from __future__ import annotations

from typing import NamedTuple

from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.request import FinishReason, Request, Sequence


class Ending(NamedTuple):
    """How many of the tokens offered are accepted, and why the sequence ends with the last of them, if it does."""

    num_accepted: int
    reason: FinishReason | None
    stop_reason: int | str | None


def stop_ids(request: Request) -> frozenset[int]:
    """Every id that ends the request's sequences: the model's, unless ignored, and the request's own."""
    own = frozenset(request.params.stop_token_ids)
    return own if request.params.ignore_eos else own | request.eos_token_ids


def length_limit(config: SchedulerConfig, request: Request) -> tuple[int, str]:
    """The length in tokens at which the request's sequences end, and the name of the limit that sets it."""
    num_prompt, max_tokens = len(request.prompt_token_ids), request.params.max_tokens
    limit = config.effective_max_len
    if max_tokens is not None and num_prompt + max_tokens <= limit:
        return num_prompt + max_tokens, "max_tokens"
    return limit, "kv_pool" if limit < config.max_model_len else "max_model_len"


def ending_of(sequence: Sequence, token_ids: tuple[int, ...]) -> Ending:
    """Cut the tokens of one step at the first that ends `sequence`. Mutates nothing.

    A stop id counts from the token on that makes the sequence longer than `min_len`; at the length limit itself a stop id
    wins, beyond it the limit does.
    """
    known = len(sequence.token_ids)
    for offset, token_id in enumerate(token_ids[: sequence.max_len - known], start=1):
        if token_id in sequence.stop_ids and known + offset > sequence.min_len:
            request = sequence.request
            is_eos = token_id in request.eos_token_ids and not request.params.ignore_eos
            return Ending(offset, FinishReason.STOP, None if is_eos else token_id)
    if known + len(token_ids) >= sequence.max_len:
        return Ending(sequence.max_len - known, FinishReason.LENGTH, sequence.length_reason)
    return Ending(len(token_ids), None, None)
