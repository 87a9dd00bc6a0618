"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from argosy.errors import InvalidRequest
from argosy.server.body import read_model
from argosy.server.errors import json_response
from argosy.server.logprobs import token_text
from argosy.server.prompts import decode_ids, encode_chat, encode_text
from argosy.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from argosy.server.state import state_of


async def tokenize(request: Request) -> Response:
    """Ids of a prompt, or of messages as the model's template renders them."""
    state = state_of(request)
    body = await read_model(request, TokenizeRequest, state.config)
    state.resolve_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    tokenizer = state.engine.tokenizer
    if body.messages is not None:
        if body.add_special_tokens:
            raise InvalidRequest(
                "add_special_tokens must not be true with messages: their template writes the special tokens",
                param="add_special_tokens",
            )
        ids = list((await encode_chat(body, tokenizer)).token_ids)
    else:
        for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
            if getattr(body, name):
                raise InvalidRequest(f"{name} needs messages", param=name)
        special = body.add_special_tokens is not False
        ids = await encode_text(body.prompt or "", tokenizer, add_special_tokens=special)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": state.engine.info.max_model_len, "tokens": ids}
    if body.return_token_strs:
        answer["token_strs"] = [token_text(tokenizer, token_id) for token_id in ids]
    return json_response(orjson.dumps(answer))


async def detokenize(request: Request) -> Response:
    """The text of ids, special tokens included."""
    state = state_of(request)
    body = await read_model(request, DetokenizeRequest, state.config)
    state.resolve_model(body.model)
    width = state.engine.info.logits_width
    for i, token_id in enumerate(body.tokens):
        if token_id >= width:
            raise InvalidRequest(f"tokens[{i}] must be below {width}, got {token_id}", param=f"tokens[{i}]")
    return json_response(orjson.dumps({"prompt": await decode_ids(body.tokens, state.engine.tokenizer)}))
