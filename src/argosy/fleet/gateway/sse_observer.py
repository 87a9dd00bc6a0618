"""Watches a stream of server-sent events as bytes go by: counts tokens, finds usage, takes out what was not asked for.

Works on bytes, so that a character cut between two reads is never decoded, and incrementally, so that any cut gives the same
result. The grammar is that of the WHATWG HTML standard, section 9.2.6: lines end with LF, CR or CRLF, a blank line ends an
event, several `data` lines of one event are joined with LF, one space after the colon is not part of the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from argosy.fleet.gateway.exchange import TokenUsage

_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_LAST_TYPES = frozenset({"response.completed", "response.failed", "response.incomplete", "message_stop"})
_TEXT_FIELDS = frozenset({"content", "text", "reasoning_content", "reasoning", "refusal", "partial_json", "thinking"})
_BYTES_PER_TOKEN = 4
_MAX_TOKENS = 10**9  # of one request; a report of more is none


class SseObserver:
    """One stream. `feed` what comes, send on what it returns, `flush` at the end.

    Events are passed on whole, byte for byte: a client has no use for a part of one, and if the backend fails within it, an
    error can follow in its place. With `strip_usage`, the chunk that holds nothing but usage is taken out.

    Attributes:
        is_done: the event that ends the stream has been seen.
        has_failed: an error came as an event.
        num_chunks: events that carried text; num_events: all with data.
        usage: as the backend reported it last, or None.
        finish_reason: the last one seen, "" if none.
    """

    __slots__ = (
        "_last_was_kept",
        "_lf_may_follow",
        "_max_event_bytes",
        "_oversize",
        "_pending",
        "_scanned",
        "_strip_usage",
        "_text_bytes",
        "finish_reason",
        "has_failed",
        "is_done",
        "num_chunks",
        "num_events",
        "usage",
    )

    def __init__(self, *, strip_usage: bool, max_event_bytes: int = 1024 * 1024) -> None:
        """An event larger than `max_event_bytes` is passed on without being looked at."""
        self._strip_usage = strip_usage
        self._max_event_bytes = max_event_bytes
        self._pending = b""
        self._scanned = 0
        self._oversize = False
        self._last_was_kept = True
        self._lf_may_follow = False
        self._text_bytes = 0
        self.is_done = False
        self.has_failed = False
        self.num_chunks = 0
        self.num_events = 0
        self.usage: TokenUsage | None = None
        self.finish_reason = ""

    def feed(self, data: bytes) -> bytes:
        """Take in what was read; return what is to be sent on: the events that are complete, in order, possibly none."""
        kept: list[bytes] = []
        if self._lf_may_follow and data:
            # The last event ended with a CR: an LF is the rest of that line end, and shares the event's fate.
            if data[:1] == b"\n":
                data = data[1:]
                if self._last_was_kept:
                    kept.append(b"\n")
            self._lf_may_follow = False
        pending = self._pending + data if self._pending else data
        begin = kept_from = 0
        for event_end, end in _blank_lines(pending, max(0, self._scanned - 3)):
            keep = self._oversize or self._observe(pending[begin:event_end])
            if not keep:
                kept.append(pending[kept_from:begin])
                kept_from = end
            self._oversize = False
            self._last_was_kept = keep
            self._lf_may_follow = end == len(pending) and pending[-1:] == b"\r"
            begin = end
        rest = pending[begin:]
        if len(rest) > self._max_event_bytes or (self._oversize and rest):
            self._oversize = True
            begin, rest = len(pending) - 3, rest[-3:]  # a blank line may have begun
        kept.append(pending[kept_from:begin])
        self._pending = rest
        self._scanned = len(rest)
        return kept[0] if len(kept) == 1 else b"".join(kept)

    def flush(self) -> bytes:
        """The stream is over; return what is still held. A last event without its blank line counts."""
        rest, self._pending, self._scanned = self._pending, b"", 0
        keep = not rest or self._oversize or self._observe(rest)
        return rest if keep else b""

    def counted_tokens(self) -> int:
        """Output tokens by count, for a backend that does not report usage.

        Engines send one chunk per token, unless they batch or speculate: then chunks are long, and four bytes count as one.
        """
        by_length = -(-self._text_bytes // _BYTES_PER_TOKEN)
        return self.num_chunks if self._text_bytes <= 2 * _BYTES_PER_TOKEN * self.num_chunks else by_length

    def _observe(self, event: bytes) -> bool:
        """Take in one event without its blank line; return whether it is to be passed on."""
        is_plain = event.startswith(b"data: ") and b"\n" not in event and b"\r" not in event
        payload = event[6:] if is_plain else data_of(event)
        if not payload:
            return True
        self.num_events += 1
        if payload[:1] != b"{" and payload.strip() == b"[DONE]":
            self.is_done = True
            return True
        try:
            document = orjson.loads(payload)
        except orjson.JSONDecodeError:
            return True
        return not isinstance(document, dict) or self._observe_document(document)

    def _observe_document(self, document: dict[str, Any]) -> bool:
        if document.get("error"):
            self.has_failed = True
        choices = document.get("choices")
        if choices and isinstance(choices, list):
            for choice in choices:
                if isinstance(choice, dict):
                    self._count_choice(choice)
            if not document.get("usage"):
                return True
        else:
            self._observe_typed(document)
        reported = find_usage(document)
        if reported is None:
            return True
        self.usage = reported if self.usage is None else _merged(self.usage, reported)
        return choices != [] or not self._strip_usage

    def _count_choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        size = text_size(delta if isinstance(delta, dict) else choice)
        if size:
            self.num_chunks += 1
            self._text_bytes += size
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            self.finish_reason = reason

    def _observe_typed(self, document: dict[str, Any]) -> None:
        """Events of the responses and messages APIs, told apart by `type`."""
        kind = document.get("type")
        if kind in _LAST_TYPES:
            self.is_done = True
        delta = document.get("delta")
        size = len(delta.encode()) if isinstance(delta, str) else text_size(delta) if isinstance(delta, dict) else 0
        if size:
            self.num_chunks += 1
            self._text_bytes += size


def _blank_lines(data: bytes, begin: int) -> Iterator[tuple[int, int]]:
    """Where blank lines begin (with the end of the line before) and end."""
    if b"\r" in data:
        for blank in _BLANK_LINE.finditer(data, begin):
            yield blank.span()
        return
    at = data.find(b"\n\n", begin)
    while at >= 0:
        yield at, at + 2
        at = data.find(b"\n\n", at + 2)


def data_of(event: bytes) -> bytes:
    """The data of one event (its lines without the blank one), b"" if it has none."""
    values = (line[5:] for line in _LINE_END.split(event) if line.startswith(b"data:"))
    return b"\n".join(value[1:] if value[:1] == b" " else value for value in values)


def text_size(delta: dict[str, Any]) -> int:
    """Bytes of text that a delta or choice carries: content, reasoning, refusal, names and arguments of tool calls."""
    size = 0
    for name, value in delta.items():
        if name in _TEXT_FIELDS:
            if isinstance(value, str):
                size += len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        elif name == "tool_calls" and isinstance(value, list):
            for call in value:
                function = call.get("function") if isinstance(call, dict) else None
                if isinstance(function, dict):
                    size += sum(len(part) for part in function.values() if isinstance(part, str))
    return size


def find_usage(document: dict[str, Any]) -> TokenUsage | None:
    """The usage that a response or event reports, in the words of any of the three APIs; None if it reports none, or an
    impossible one."""
    usage = document.get("usage")
    if not isinstance(usage, dict):
        inner = document.get("response") or document.get("message")
        usage = inner.get("usage") if isinstance(inner, dict) else None
        if not isinstance(usage, dict):
            return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else usage.get("cache_read_input_tokens")
    read = _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens"))
    total = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
    output = _count(usage.get("completion_tokens", usage.get("output_tokens")))
    if max(read, written, total, output) > _MAX_TOKENS:
        return None
    # The messages API counts what was read from or written to its cache beside `input_tokens`, the others within.
    return TokenUsage(
        total + (read + written if "prompt_tokens" not in usage else 0),
        _count(cached),
        output,
        True,
    )


def _merged(earlier: TokenUsage, later: TokenUsage) -> TokenUsage:
    """Usage that comes in parts (input with the first event, output with the last) or as running totals."""
    return TokenUsage(
        max(earlier.input_tokens, later.input_tokens),
        max(earlier.cached_tokens, later.cached_tokens),
        max(earlier.output_tokens, later.output_tokens),
        True,
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
