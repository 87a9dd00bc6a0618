"""What is known of one request after it was sent: when its tokens came, how many, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from argosy.bench.load import PlannedRequest
from argosy.bench.sse import EventParser

MAX_ERROR_BYTES = 1 << 16
DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. Times are seconds on the generator's clock.

    Attributes:
        due_s: when it should have been sent; latencies count from here, so that a generator or a server that falls
            behind cannot hide it ("coordinated omission"). In a closed loop the same as `sent_s`.
        sent_s: when it was sent.
        arrivals_s: when each event with text came.
        done_s: when the answer was complete, or failed.
        prompt_tokens, output_tokens: as the server reported them; None if it did not.
        text: the answer, where it must be counted afterwards.
        error: "" or the kind of failure: http_STATUS, connect, cut, timeout, stream_error or no_text.
        message: a line about the failure.
    """

    planned: PlannedRequest
    due_s: float
    sent_s: float
    arrivals_s: tuple[float, ...]
    done_s: float
    prompt_tokens: int | None
    output_tokens: int | None
    text: str
    error: str = ""
    message: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it was answered."""
        return not self.error

    @property
    def ttft_s(self) -> float:
        """Time to first token, of an answered request."""
        return self.arrivals_s[0] - self.due_s

    @property
    def e2e_s(self) -> float:
        """From due to complete."""
        return self.done_s - self.due_s

    def tpot_s(self, output_tokens: int) -> float | None:
        """Mean time per output token after the first; None with fewer than two."""
        if output_tokens < 2:
            return None
        return (self.arrivals_s[-1] - self.arrivals_s[0]) / (output_tokens - 1)


class AnswerRecorder:
    """An `AnswerSink` that turns one streamed answer into a record."""

    def __init__(self) -> None:
        self._events = EventParser()
        self._status = 0
        self._body = b""
        self._arrivals_s: list[float] = []
        self._texts: list[str] = []
        self._usage: dict[str, Any] = {}
        self._failure = ("", "")
        self._is_done = False

    def on_status(self, status: int) -> None:
        """As `AnswerSink`."""
        self._status = status

    def on_body(self, body: bytes, now_s: float) -> None:
        """As `AnswerSink`. Of an error's body the first `MAX_ERROR_BYTES` are kept."""
        if self._status != 200:
            self._body = (self._body + body)[:MAX_ERROR_BYTES]
            return
        for data in self._events.feed(body):
            if data == DONE:
                self._is_done = True
            else:
                self._on_event(data, now_s)

    def _on_event(self, data: bytes, now_s: float) -> None:
        try:
            event = orjson.loads(data)
            if "error" in event:
                self._failure = ("stream_error", _error_line(event))
                return
            self._usage = event.get("usage") or self._usage
            for choice in event.get("choices") or ():
                text = choice.get("text") or _delta_text(choice.get("delta") or {})
                if text:
                    self._arrivals_s.append(now_s)
                    self._texts.append(text)
        except (ValueError, TypeError, AttributeError):
            self._failure = ("stream_error", f"an event that is no chunk of an answer: {data[:80]!r}")

    def record(
        self, planned: PlannedRequest, due_s: float, sent_s: float, done_s: float, failure: tuple[str, str] = ("", "")
    ) -> RequestRecord:
        """What came, as a record; `failure` is (kind, line) of one that the sink could not see."""
        kind, line = self._outcome(failure)
        usage = self._usage
        return RequestRecord(
            planned,
            due_s,
            sent_s,
            tuple(self._arrivals_s),
            done_s,
            _count(usage.get("prompt_tokens")),
            _count(usage.get("completion_tokens")),
            "".join(self._texts),
            kind,
            line,
        )

    def _outcome(self, failure: tuple[str, str]) -> tuple[str, str]:
        if self._status not in (0, 200):
            return f"http_{self._status}", _error_line_of(self._body) or f"status {self._status}"
        if self._failure[0]:
            return self._failure
        if failure[0]:
            return failure
        if not self._is_done:
            return "cut", "the stream ended without [DONE]"
        if not self._arrivals_s:
            return "no_text", "the stream ended without any text"
        return "", ""


def _delta_text(delta: dict[str, Any]) -> str:
    return delta.get("content") or delta.get("reasoning_content") or ""


def _error_line_of(body: bytes) -> str:
    try:
        return _error_line(orjson.loads(body))
    except (ValueError, TypeError, AttributeError):
        return " ".join(body.decode("utf-8", "replace").split())[:200]


def _error_line(answer: dict[str, Any]) -> str:
    error = answer.get("error") or answer.get("detail") or answer
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:200]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
