"""`POST /tokenize` and `POST /detokenize`, as vLLM has them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from argosy.server.protocol.base import ListOf, RequestModel, ResponseModel
from argosy.server.protocol.chat import ChatMessage
from argosy.server.protocol.sampling import TokenId


class TokenizeRequest(RequestModel):
    """Either `prompt` or `messages`. `add_special_tokens` is true for a prompt, false for rendered messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[ListOf[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeResponse(ResponseModel):
    """`token_strs` only if asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestModel):
    """Ids to turn into text, special tokens included."""

    model: str | None = None
    tokens: ListOf[TokenId]


class DetokenizeResponse(ResponseModel):
    """The text."""

    prompt: str
