"""`POST /v1/chat/completions`."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from argosy.engine.admission import CheckedParams
from argosy.engine.core.plan import TokenLogprob
from argosy.engine.core.sampling_params import SamplingParams
from argosy.models.loaded import Tokenizer
from argosy.observe.logs import log_event
from argosy.server.body import read_model
from argosy.server.chunks import ChunkWriter, chat_finish_choice, chat_role_choice, chat_text_choice, usage_of
from argosy.server.connection import while_connected
from argosy.server.errors import json_response
from argosy.server.event_stream import EventStream
from argosy.server.generation import Generation
from argosy.server.logprobs import chat_logprobs, logprobs_size, prompt_logprobs
from argosy.server.prompts import CHARACTERS_PER_MESSAGE, EncodedPrompt, encode_chat
from argosy.server.protocol.chat import ChatCompletionRequest
from argosy.server.sampling import chat_params, params_size, priority_of
from argosy.server.state import record_of, state_of

_LOGGER = logging.getLogger("argosy.server")


async def chat_completions(request: Request) -> Response:
    """Answer a conversation with n messages, at once or as a stream."""
    state, record = state_of(request), record_of(request)
    state.check_open()
    body = await read_model(request, ChatCompletionRequest)
    record.user = body.user
    record.tags = {"safety_identifier": body.safety_identifier, "metadata": body.metadata}
    record.stream = bool(body.stream)
    record.model = state.resolve_model(body.model)
    engine, tokenizer = state.engine, state.engine.tokenizer

    def prepare() -> tuple[CheckedParams, EncodedPrompt]:
        return engine.check(chat_params(body, engine.info.default_sampling)), encode_chat(
            body, tokenizer, max_model_len=engine.info.max_model_len
        )

    size = record.body_bytes + CHARACTERS_PER_MESSAGE * len(body.messages) + params_size(body)
    checked, prompt = await state.side_work.run(prepare, size, request.receive)
    params = checked.params
    record.completion_id = f"chatcmpl-{uuid.uuid4().hex}"
    if state.config.log_prompts:
        log_event(_LOGGER, logging.INFO, "prompt", request_id=record.request_id, prompt=prompt.text)

    generation = Generation(
        engine,
        record.completion_id,
        [prompt],
        checked,
        clock=state.clock,
        priority=priority_of(body, engine.info),
        cache_salt=body.cache_salt or "",
    )
    envelope = {"id": record.completion_id, "created": int(time.time()), "model": record.model}
    if body.stream:
        return EventStream(_events(body, params, generation, tokenizer, envelope), generation, record, state)
    try:
        collected = await while_connected(_collect(params, generation), request.receive)
    finally:
        generation.abort()
        record.take(generation)

    def write() -> bytes:
        answer = _answer(params, collected, tokenizer)
        return orjson.dumps({**envelope, "object": "chat.completion", **answer, "usage": usage_of(generation)})

    return json_response(await state.side_work.run(write, collected.size(params), request.receive))


async def _events(
    body: ChatCompletionRequest,
    params: SamplingParams,
    generation: Generation,
    tokenizer: Tokenizer,
    envelope: dict[str, Any],
) -> AsyncGenerator[bytes, None]:
    writer = ChunkWriter(
        {**envelope, "object": "chat.completion.chunk"},
        generation,
        wants_usage=body.wants_usage,
        wants_running_usage=body.wants_running_usage,
    )
    yield b"".join(writer.chunk(chat_role_choice(index)) for index in range(params.n))
    async for _, delta in generation.deltas():
        event = b""
        logprobs = chat_logprobs(delta.logprobs, tokenizer) if delta.logprobs else None
        if delta.text or logprobs:
            event = writer.chunk(chat_text_choice(delta.index, delta.text, logprobs))
        if delta.finish_reason is not None:
            event += writer.chunk(chat_finish_choice(delta.index, delta.finish_reason, delta.stop_reason))
        if event:
            yield event
    if body.wants_usage:
        yield writer.usage_chunk()


@dataclass(slots=True)
class _Collected:
    """What the sequences of a request gave, by index."""

    texts: list[list[str]]
    logprobs: list[list[TokenLogprob]]
    ends: list[tuple[str | None, int | str | None]]
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None

    def size(self, params: SamplingParams) -> int:
        """How much there is to write, beside the text, which is quick."""
        return logprobs_size(sum(map(len, self.logprobs)), params.logprobs) + logprobs_size(
            len(self.prompt_logprobs or ()), params.prompt_logprobs
        )


async def _collect(params: SamplingParams, generation: Generation) -> _Collected:
    """All that comes, until every sequence has ended."""
    texts: list[list[str]] = [[] for _ in range(params.n)]
    logprobs: list[list[TokenLogprob]] = [[] for _ in range(params.n)]
    collected = _Collected(texts, logprobs, [(None, None)] * params.n)
    async for _, delta in generation.deltas():
        texts[delta.index].append(delta.text)
        logprobs[delta.index].extend(delta.logprobs or ())
        if delta.finish_reason is not None:
            collected.ends[delta.index] = (delta.finish_reason, delta.stop_reason)
        if delta.prompt_logprobs is not None:
            collected.prompt_logprobs = delta.prompt_logprobs
    return collected


def _answer(params: SamplingParams, collected: _Collected, tokenizer: Tokenizer) -> dict[str, Any]:
    """The choices, and the prompt's log probabilities if asked for."""
    answer: dict[str, Any] = {}
    if collected.prompt_logprobs is not None and params.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs(collected.prompt_logprobs, params.prompt_logprobs, tokenizer)
    answer["choices"] = [
        {
            "index": index,
            "message": {"role": "assistant", "content": "".join(collected.texts[index]), "refusal": None},
            "logprobs": None if params.logprobs is None else chat_logprobs(collected.logprobs[index], tokenizer),
            "finish_reason": collected.ends[index][0],
            "stop_reason": collected.ends[index][1],
        }
        for index in range(params.n)
    ]
    return answer
