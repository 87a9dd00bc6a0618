"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from argosy.engine.client import EngineClient
from argosy.errors import InvalidRequest
from argosy.server.body import read_model
from argosy.server.errors import json_response
from argosy.server.logprobs import token_text
from argosy.server.prompts import CHARACTERS_PER_MESSAGE, check_text_length, encode_chat
from argosy.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from argosy.server.state import record_of, state_of


async def tokenize(request: Request) -> Response:
    """Ids of a prompt, or of messages as the model's template renders them."""
    state = state_of(request)
    body = await read_model(request, TokenizeRequest)
    state.resolve_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    size = record_of(request).body_bytes + CHARACTERS_PER_MESSAGE * len(body.messages or ())
    answer = await state.side_work.run(lambda: _tokenize(body, state.engine), size, request.receive)
    return json_response(answer)


def _tokenize(body: TokenizeRequest, engine: EngineClient) -> bytes:
    tokenizer = engine.tokenizer
    if body.messages is not None:
        if body.add_special_tokens:
            raise InvalidRequest(
                "add_special_tokens must not be true with messages: their template writes the special tokens",
                param="add_special_tokens",
            )
        ids: Sequence[int] = encode_chat(body, tokenizer, max_model_len=engine.info.max_model_len).token_ids
    else:
        for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
            if getattr(body, name):
                raise InvalidRequest(f"{name} needs messages", param=name)
        check_text_length(len(body.prompt or ""), "prompt", engine.info.max_model_len)
        ids = tokenizer.encode(body.prompt or "", add_special_tokens=body.add_special_tokens is not False)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": engine.info.max_model_len, "tokens": ids}
    if body.return_token_strs:
        answer["token_strs"] = [token_text(tokenizer, token_id) for token_id in ids]
    return orjson.dumps(answer)


async def detokenize(request: Request) -> Response:
    """The text of ids, special tokens included."""
    state = state_of(request)
    body = await read_model(request, DetokenizeRequest)
    state.resolve_model(body.model)
    size = record_of(request).body_bytes
    return json_response(await state.side_work.run(lambda: _detokenize(body, state.engine), size, request.receive))


def _detokenize(body: DetokenizeRequest, engine: EngineClient) -> bytes:
    width = engine.info.logits_width
    for i, token_id in enumerate(body.tokens):
        if token_id >= width:
            raise InvalidRequest(f"tokens[{i}] must be below {width}, got {token_id}", param=f"tokens[{i}]")
    return orjson.dumps({"prompt": engine.tokenizer.decode(body.tokens, skip_special_tokens=False)})
