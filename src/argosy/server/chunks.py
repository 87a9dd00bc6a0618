"""Bytes of server-sent events.

Encoding is on the path of every token of every stream, so the parts that do not change are encoded once per request.
"""

from __future__ import annotations

from typing import Any

import orjson

from argosy.server.generation import Generation

DONE = b"data: [DONE]\n\n"
PING = b": keep-alive\n\n"


def usage_of(generation: Generation) -> dict[str, Any]:
    """`Usage` with the totals so far."""
    return {
        "prompt_tokens": generation.num_prompt_tokens,
        "completion_tokens": generation.num_output_tokens,
        "total_tokens": generation.num_prompt_tokens + generation.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": generation.num_cached_tokens},
    }


def error_event(body: bytes) -> bytes:
    """An error body as an event."""
    return b"data: " + body + b"\n\n"


class ChunkWriter:
    """Wraps choices in the envelope of one stream.

    `usage` is left out, null or the totals so far, as `stream_options` asks.
    """

    def __init__(
        self, envelope: dict[str, Any], generation: Generation, *, wants_usage: bool, wants_running_usage: bool
    ) -> None:
        """`envelope` is the chunk without `choices` and `usage`."""
        self._head = b"data: " + orjson.dumps(envelope)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if wants_usage else b"]}\n\n"
        self._generation = generation
        self._running_usage = wants_running_usage

    def chunk(self, choice: bytes) -> bytes:
        """The event that carries one choice, given as JSON."""
        return self._head + choice + (self._usage_tail() if self._running_usage else self._tail)

    def usage_chunk(self) -> bytes:
        """The event with the totals and no choices."""
        return self._head + self._usage_tail()

    def _usage_tail(self) -> bytes:
        return b'],"usage":' + orjson.dumps(usage_of(self._generation)) + b"}\n\n"


def chat_role_choice(index: int) -> bytes:
    """The choice that opens an answer."""
    return b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}' % index


def chat_text_choice(index: int, text: str, logprobs: dict[str, Any] | None) -> bytes:
    """A choice with a piece of text."""
    return b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null}' % (
        index,
        orjson.dumps(text),
        b"null" if logprobs is None else orjson.dumps(logprobs),
    )


def chat_finish_choice(index: int, finish_reason: str, stop_reason: int | str | None) -> bytes:
    """The last choice of an answer."""
    return b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b,"stop_reason":%b}' % (
        index,
        orjson.dumps(finish_reason),
        orjson.dumps(stop_reason),
    )


def text_choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None, stop_reason: int | str | None
) -> bytes:
    """A choice of a streamed text completion."""
    return b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b,"stop_reason":%b}' % (
        index,
        orjson.dumps(text),
        b"null" if logprobs is None else orjson.dumps(logprobs),
        b"null" if finish_reason is None else orjson.dumps(finish_reason),
        b"null" if stop_reason is None else orjson.dumps(stop_reason),
    )
