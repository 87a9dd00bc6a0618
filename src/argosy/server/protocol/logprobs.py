"""Log probabilities in the shapes of the two endpoints and of vLLM's `prompt_logprobs`."""

from __future__ import annotations

from argosy.server.protocol.base import ResponseModel


class TopLogprob(ResponseModel):
    """A token and its natural log probability; `bytes` are those of the token's text."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A generated token, with the most likely ones at its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(ResponseModel):
    """One entry per generated token."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(ResponseModel):
    """Parallel lists, one entry per token; the first token of an echoed prompt has None for want of a context.

    `text_offset` is the index of the token's first character in the choice's text.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(ResponseModel):
    """One candidate for a prompt position; `rank` 1 is the most likely."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
