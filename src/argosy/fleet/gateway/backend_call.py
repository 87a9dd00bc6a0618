"""One call of one backend for one request, from the connection to the settled answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import orjson

from argosy.fleet.gateway.exchange import AttemptResult, TokenUsage
from argosy.fleet.gateway.passthrough import PassThrough
from argosy.fleet.gateway.relay import Relay
from argosy.fleet.gateway.replies import shown_model
from argosy.fleet.gateway.sse_observer import SseObserver, find_usage, text_size
from argosy.fleet.gateway.stages import Placement, Route
from argosy.fleet.gateway.upstream import UpstreamError
from argosy.fleet.gateway.upstream_request import adds_usage, client_headers, upstream_request
from argosy.fleet.policies.attempts import Attempts
from argosy.fleet.policies.outcomes import Outcome, RequestDropped

if TYPE_CHECKING:
    from argosy.fleet.gateway.request_run import RequestRun

_MAX_ERROR_BYTES = 64 * 1024
_TOO_LONG = re.compile(
    rb"context_length_exceeded|maximum context length|context (?:length|window|size)|exceed_context_size|prompt is too long",
    re.IGNORECASE,
)
_OUTCOMES = MappingProxyType(
    {
        AttemptResult.CONNECT_ERROR: Outcome.FAILED_CONNECT,
        AttemptResult.BUSY: Outcome.REJECTED_CAPACITY,
        AttemptResult.FIRST_BYTE_TIMEOUT: Outcome.FAILED_FIRST_BYTE_TIMEOUT,
        AttemptResult.IDLE_TIMEOUT: Outcome.FAILED_IDLE_TIMEOUT,
    }
)
Reply = tuple[int, list[tuple[bytes, bytes]], bytes]


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that gave no good answer.

    Attributes:
        reply: the backend's own error, None if it gave none that may be shown.
        retry_after_s: what the backend asked for.
        context_too_long: it refused the prompt as longer than its context.
        refusal: the error to be shown, where it is not made from `outcome` and `message`.
    """

    result: AttemptResult
    outcome: Outcome
    message: str
    reply: Reply | None = None
    retry_after_s: float | None = None
    context_too_long: bool = False
    refusal: RequestDropped | None = None

    @classmethod
    def dropped(cls, error: RequestDropped) -> Failure:
        """No backend could be called."""
        return cls(AttemptResult.BUSY, error.outcome, error.message, refusal=error)

    def error(self) -> RequestDropped:
        """As an answer of ours."""
        return self.refusal or RequestDropped(self.outcome, self.message, retry_after_s=self.retry_after_s)


class BackendCall:
    """Sends the request, takes the answer in, and passes it on if it is a good one."""

    def __init__(self, run: RequestRun, route: Route, placement: Placement, attempts: Attempts) -> None:
        self._run = run
        self._exchange = run.exchange
        self._clock: Callable[[], float] = run.pipeline.clock
        self._settings = run.pipeline.settings
        self._route = route
        self._placement = placement
        self._attempts = attempts
        self._began_s = self._clock()
        self._relay: Relay | None = None
        self._result = AttemptResult.ABORTED

    async def run(self) -> Failure | None:
        """None when the client has been answered. Whatever happens, the placement is finished and nothing stays open."""
        retry_after_s = None
        try:
            failure = await self._attempt()
            if failure is not None:
                self._result, retry_after_s = failure.result, failure.retry_after_s
            return failure
        except UpstreamError as error:
            self._result = error.result
            return self._failed(error)
        finally:
            if self._relay is not None:
                self._relay.abort()
                if self._result is AttemptResult.ABORTED and not self._exchange.usage.input_tokens:
                    # The backend may have computed the prompt by the time that the client left.
                    self._take_usage(None, lambda: 0)
            self._finish_placement(retry_after_s)

    async def _attempt(self) -> Failure | None:
        relay = await self._send()
        exchange = self._exchange
        if not 200 <= relay.status < 300:
            return await self._error_answer(relay)
        await relay.first_data()
        exchange.first_byte_s = self._clock()
        # Not before: engines send the head of a stream at once, and hang after it.
        self._placement.first_byte(exchange.first_byte_s)
        for observer in self._run.stages.observers:
            observer.first_byte(exchange)
        content_type = dict(relay.headers).get(b"content-type", b"")
        if content_type.startswith(b"text/event-stream"):
            await self._stream(relay)
        else:
            await self._whole(relay)
        return None

    async def _send(self) -> Relay:
        """Send the request and wait for the head of the answer. A kept connection that the backend closed at the same
        moment costs nothing but a new one, if the request may be sent twice."""
        upstream = self._placement.upstream
        request = upstream_request(self._exchange, self._route, upstream)
        timeout_s = upstream.pool.limits.first_byte_timeout_s
        fresh = False
        while True:
            connection = await upstream.pool.acquire(fresh=fresh)
            self._relay = relay = Relay(connection, self._run.writer)
            connection.send(request, relay, first_byte_timeout_s=timeout_s)
            try:
                await relay.head()
            except UpstreamError as error:
                if fresh or not (error.is_stale and self._exchange.endpoint.replayable):
                    raise
                fresh = True
            else:
                return relay

    async def _stream(self, relay: Relay) -> None:
        run, exchange = self._run, self._exchange
        observer = SseObserver(strip_usage=adds_usage(exchange), max_event_bytes=self._settings.max_event_bytes)
        self._attempts.first_byte_sent = run.is_event_stream = True
        exchange.status = relay.status
        headers = client_headers(relay.headers, exchange.response_headers, exchange.request_id)
        try:
            await relay.stream(relay.status, headers, observer)
        finally:
            # Also of an answer that is cut off: what was generated was paid for.
            self._take_usage(observer.usage, observer.counted_tokens)
            exchange.finish_reason = observer.finish_reason
        self._succeed(AttemptResult.SERVER_ERROR if observer.has_failed else AttemptResult.OK)
        await run.settle()
        await relay.let_go()

    async def _whole(self, relay: Relay) -> None:
        run, exchange = self._run, self._exchange
        body = await relay.read_all(self._settings.max_held_body_bytes)
        headers = client_headers(relay.headers, exchange.response_headers, exchange.request_id)
        if body is None:
            await self._large(relay, headers)
            return
        document = _decoded(body)
        self._take_usage(find_usage(document), lambda: counted_tokens(document))
        exchange.finish_reason = _finish_reason(document)
        self._succeed(AttemptResult.OK)
        self._attempts.first_byte_sent = True
        exchange.status = relay.status
        await run.settle()
        run.writer.send(relay.status, headers, body)

    async def _large(self, relay: Relay, headers: list[tuple[bytes, bytes]]) -> None:
        observer = PassThrough()
        self._attempts.first_byte_sent = True
        self._exchange.status = relay.status
        try:
            await relay.stream(relay.status, headers, observer)
        finally:
            self._take_usage(observer.usage, lambda: 0)
        self._succeed(AttemptResult.OK)
        await self._run.settle()
        await relay.let_go()

    async def _error_answer(self, relay: Relay) -> Failure:
        """An answer that is not a good one: kept as it is, unless it speaks of the gateway's own credentials."""
        status, headers = relay.status, relay.headers
        body = await relay.read_all(_MAX_ERROR_BYTES)
        secret = self._placement.upstream.authorization.rpartition(b" ")[2]
        speaks_of_us = status in (401, 403, 407) or (secret and secret in (body or b""))
        if status < 400:
            result, message = AttemptResult.SERVER_ERROR, f"the backend answered with status {status}, which is no answer"
        elif status in (429, 529):
            result, message = AttemptResult.THROTTLED, "the backend asks for a pause"
        elif status >= 500:
            result, message = AttemptResult.SERVER_ERROR, f"the backend answered with status {status}"
        elif speaks_of_us:
            result, message = AttemptResult.CLIENT_ERROR, "the backend refuses the gateway's credentials; tell who runs it"
        else:
            result, message = AttemptResult.CLIENT_ERROR, f"the backend refused the request with status {status}"
        reply = None if body is None or speaks_of_us or status < 400 else (status, headers, body)
        too_long = status in (400, 413, 422) and body is not None and _TOO_LONG.search(body) is not None
        outcome = Outcome.DISPATCHED if result is AttemptResult.CLIENT_ERROR and reply else Outcome.FAILED_UPSTREAM
        return Failure(result, outcome, message, reply, _retry_after_s(headers), too_long)

    def _failed(self, error: UpstreamError) -> Failure:
        message = f"{shown_model(self._route.pool)}: {error}"
        return Failure(error.result, _OUTCOMES.get(error.result, Outcome.FAILED_UPSTREAM), message)

    def _succeed(self, result: AttemptResult) -> None:
        self._result = result
        self._exchange.outcome = Outcome.DISPATCHED if result is AttemptResult.OK else Outcome.FAILED_UPSTREAM
        self._finish_placement(None)

    def _finish_placement(self, retry_after_s: float | None) -> None:
        now_s = self._clock()
        self._placement.finish(self._result, now_s, latency_s=now_s - self._began_s, retry_after_s=retry_after_s)

    def _take_usage(self, reported: TokenUsage | None, count: Callable[[], int]) -> None:
        """What the backend reported, else the estimate of the prompt and a count of the answer."""
        exchange = self._exchange
        exchange.usage = reported or TokenUsage(exchange.prompt_tokens, 0, count(), False)


def counted_tokens(document: Any) -> int:
    """Output tokens of a whole answer that reports no usage: four bytes of text count as one."""
    choices = document.get("choices") if isinstance(document, dict) else None
    size = 0
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            message = choice.get("message")
            size += text_size(message) if isinstance(message, dict) else text_size(choice)
    return -(-size // 4)


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _finish_reason(document: dict[str, Any]) -> str:
    choices = document.get("choices")
    last = choices[-1] if isinstance(choices, list) and choices else None
    reason = last.get("finish_reason") if isinstance(last, dict) else None
    return reason if isinstance(reason, str) else ""


def _retry_after_s(headers: list[tuple[bytes, bytes]]) -> float | None:
    """From `retry-after-ms`, else `retry-after` in seconds; a date is not looked at."""
    values = dict(headers)
    for name, unit_s in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        value = values.get(name, b"").strip()
        if value and len(value) < 12 and value.replace(b".", b"", 1).isdigit():
            return float(value) * unit_s
    return None
