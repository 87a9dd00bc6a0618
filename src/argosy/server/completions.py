"""`POST /v1/completions`."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from argosy.engine.admission import CheckedParams
from argosy.engine.outputs import OutputDelta
from argosy.observe.logs import log_event
from argosy.server.body import read_model
from argosy.server.chunks import ChunkWriter, text_choice, usage_of
from argosy.server.completion_pieces import Piece, PieceMaker
from argosy.server.connection import while_connected
from argosy.server.errors import json_response
from argosy.server.event_stream import EventStream
from argosy.server.generation import Generation
from argosy.server.prompts import EncodedPrompt, encode_prompts
from argosy.server.protocol.completions import CompletionRequest
from argosy.server.sampling import completion_params, params_size, priority_of
from argosy.server.side_work import SideWork
from argosy.server.state import record_of, state_of

_LOGGER = logging.getLogger("argosy.server")


async def completions(request: Request) -> Response:
    """Continue one or several prompts, n times each, at once or as a stream."""
    state, record = state_of(request), record_of(request)
    state.check_open()
    body = await read_model(request, CompletionRequest)
    record.user, record.stream = body.user, bool(body.stream)
    record.model = state.resolve_model(body.model)
    engine, tokenizer = state.engine, state.engine.tokenizer
    max_prompts = min(state.config.max_prompts, engine.info.max_waiting)

    def prepare() -> tuple[CheckedParams, list[EncodedPrompt]]:
        checked = engine.check(completion_params(body, engine.info.default_sampling))
        return checked, encode_prompts(body, tokenizer, max_prompts=max_prompts, max_model_len=engine.info.max_model_len)

    checked, prompts = await state.side_work.run(prepare, record.body_bytes + params_size(body), request.receive)
    record.completion_id = f"cmpl-{uuid.uuid4().hex}"
    if state.config.log_prompts:
        log_event(_LOGGER, logging.INFO, "prompt", request_id=record.request_id, prompt=body.prompt)

    generation = Generation(
        engine,
        record.completion_id,
        prompts,
        checked,
        clock=state.clock,
        priority=priority_of(body, engine.info),
        cache_salt=body.cache_salt or "",
    )
    maker = PieceMaker(body, checked.params, prompts, tokenizer)
    envelope = {
        "id": record.completion_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": record.model,
    }
    if body.stream:
        return EventStream(_events(body, generation, maker, envelope, state.side_work), generation, record, state)
    try:
        choices = await while_connected(_collect(generation, maker, state.side_work), request.receive)
    finally:
        generation.abort()
        record.take(generation)

    def write() -> bytes:
        return orjson.dumps(
            {**envelope, "choices": [maker.complete(choice) for choice in choices], "usage": usage_of(generation)}
        )

    return json_response(await state.side_work.run(write, maker.size, request.receive))


async def _events(
    body: CompletionRequest, generation: Generation, maker: PieceMaker, envelope: dict[str, Any], side_work: SideWork
) -> AsyncGenerator[bytes, None]:
    writer = ChunkWriter(envelope, generation, wants_usage=body.wants_usage, wants_running_usage=body.wants_running_usage)
    async for prompt_index, delta in generation.deltas():
        write = partial(_write_pieces, writer, maker, prompt_index, delta)
        if event := await side_work.run(write, maker.size_of(prompt_index, delta)):
            yield event
    if body.wants_usage:
        yield writer.usage_chunk()


def _write_pieces(writer: ChunkWriter, maker: PieceMaker, prompt_index: int, delta: OutputDelta) -> bytes:
    return b"".join(
        writer.chunk(text_choice(piece.choice, piece.text, piece.logprobs, piece.finish_reason, piece.stop_reason))
        for piece in maker.pieces(prompt_index, delta)
        if piece.text or piece.logprobs or piece.finish_reason
    )


def _list_pieces(maker: PieceMaker, prompt_index: int, delta: OutputDelta) -> list[Piece]:
    return list(maker.pieces(prompt_index, delta))


async def _collect(generation: Generation, maker: PieceMaker, side_work: SideWork) -> list[dict[str, Any]]:
    """The choices of all prompts, in order, their texts in pieces."""
    choices = [maker.empty_choice(index) for index in range(maker.num_choices)]
    async for prompt_index, delta in generation.deltas():
        size = maker.size_of(prompt_index, delta)
        for piece in await side_work.run(partial(_list_pieces, maker, prompt_index, delta), size):
            choice = choices[piece.choice]
            choice["text"].append(piece.text)
            if piece.logprobs is not None:
                for name, values in piece.logprobs.items():
                    choice["logprobs"][name].extend(values)
            if piece.finish_reason is not None:
                choice["finish_reason"], choice["stop_reason"] = piece.finish_reason, piece.stop_reason
    return choices
