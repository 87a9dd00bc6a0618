"""What the scheduler tells after a step, before anything is turned into text."""

from __future__ import annotations

from typing import NamedTuple

from argosy.engine.core.plan import TokenLogprob
from argosy.engine.core.request import FinishReason


class OutputEvent(NamedTuple):
    """The news of one sequence. Exactly one event of a sequence carries a `finish_reason`, and it is the last.

    Attributes:
        token_ids: tokens accepted in this step, the one that ended the sequence included.
        logprobs: one per token, or empty if not asked for.
        prompt_logprobs: entries for the next prompt positions in order, from position 1 on.
        stop_reason: the stop id that ended it, or the limit met ("max_tokens", "max_model_len", "kv_pool"); None for EOS.
        error: a line, with FinishReason.ERROR.
    """

    sequence_id: int
    request_id: str
    sample_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    error: str
