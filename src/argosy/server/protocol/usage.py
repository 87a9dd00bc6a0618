"""Token counts of an answer."""

from __future__ import annotations

from argosy.server.protocol.base import ResponseModel


class PromptTokensDetails(ResponseModel):
    """`cached_tokens`: prompt tokens whose KV came from the prefix cache."""

    cached_tokens: int


class Usage(ResponseModel):
    """Totals over all prompts and all n of a request; a prompt counts once however large n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
