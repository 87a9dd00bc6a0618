"""`POST /v1/completions`."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from argosy.observe.logs import log_event
from argosy.server.body import read_model
from argosy.server.chunks import ChunkWriter, text_choice, usage_of
from argosy.server.completion_pieces import PieceMaker
from argosy.server.connection import while_connected
from argosy.server.errors import json_response
from argosy.server.event_stream import EventStream
from argosy.server.generation import Generation
from argosy.server.prompts import encode_prompts
from argosy.server.protocol.completions import CompletionRequest
from argosy.server.sampling import completion_params, priority_of
from argosy.server.state import record_of, state_of

_LOGGER = logging.getLogger("argosy.server")


async def completions(request: Request) -> Response:
    """Continue one or several prompts, n times each, at once or as a stream."""
    state, record = state_of(request), record_of(request)
    state.check_open()
    body = await read_model(request, CompletionRequest, state.config)
    record.user, record.stream = body.user, bool(body.stream)
    record.model = state.resolve_model(body.model)
    params = completion_params(body, state.engine.info.default_sampling)
    tokenizer = state.engine.tokenizer
    prompts = await encode_prompts(body, tokenizer, min(state.config.max_prompts, state.engine.info.max_waiting))
    record.completion_id = f"cmpl-{uuid.uuid4().hex}"
    if state.config.log_prompts:
        log_event(_LOGGER, logging.INFO, "prompt", request_id=record.request_id, prompt=body.prompt)

    generation = Generation(
        state.engine,
        record.completion_id,
        prompts,
        params,
        clock=state.clock,
        priority=priority_of(body, state.engine.info),
        cache_salt=body.cache_salt or "",
    )
    maker = PieceMaker(body, params, prompts, tokenizer)
    envelope = {
        "id": record.completion_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": record.model,
    }
    if body.stream:
        return EventStream(_events(body, generation, maker, envelope), generation, record, state)
    try:
        choices = await while_connected(_collect(generation, maker), request.receive)
    finally:
        generation.abort()
        record.take(generation)
    return json_response(orjson.dumps({**envelope, "choices": choices, "usage": usage_of(generation)}))


async def _events(
    body: CompletionRequest, generation: Generation, maker: PieceMaker, envelope: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    writer = ChunkWriter(envelope, generation, wants_usage=body.wants_usage, wants_running_usage=body.wants_running_usage)
    async for prompt_index, delta in generation.deltas():
        event = b"".join(
            writer.chunk(text_choice(piece.choice, piece.text, piece.logprobs, piece.finish_reason, piece.stop_reason))
            for piece in maker.pieces(prompt_index, delta)
            if piece.text or piece.logprobs or piece.finish_reason
        )
        if event:
            yield event
    if body.wants_usage:
        yield writer.usage_chunk()


async def _collect(generation: Generation, maker: PieceMaker) -> list[dict[str, Any]]:
    """The choices of all prompts, in order."""
    choices = [maker.empty_choice(index) for index in range(maker.num_choices)]
    async for prompt_index, delta in generation.deltas():
        for piece in maker.pieces(prompt_index, delta):
            choice = choices[piece.choice]
            choice["text"].append(piece.text)
            if piece.logprobs is not None:
                for name, values in piece.logprobs.items():
                    choice["logprobs"][name].extend(values)
            if piece.finish_reason is not None:
                choice["finish_reason"], choice["stop_reason"] = piece.finish_reason, piece.stop_reason
    for choice in choices:
        choice["text"] = "".join(choice["text"])
        choice |= maker.prompt_logprobs_of(choice["index"])
    return choices
