"""Short requests to backends for their health and metrics: whole answers, bounded in time and size."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from argosy.fleet.gateway.exchange import AttemptResult
from argosy.fleet.gateway.upstream import UpstreamConnection, UpstreamError, UpstreamLimits, UpstreamPool

MAX_ANSWER_BYTES = 4 * 2**20
# Every call has a bound of its own, and loading a model may take long; this only ends what that one forgot.
_BACKSTOP_S = 7200.0


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes


class ProbeFailed(Exception):
    """There was no whole answer; `str(error)` says why in one line, without the address.

    Attributes:
        is_stale: the backend closed a kept connection just as it was used again.
    """

    def __init__(self, message: str, *, is_stale: bool = False) -> None:
        super().__init__(message)
        self.is_stale = is_stale


class _Collector:
    """Gathers one answer."""

    def __init__(self, max_bytes: int) -> None:
        self.done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._max_bytes = max_bytes
        self._status = 0
        self._parts: list[bytes] = []
        self._size = 0

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:  # noqa: ARG002, a protocol's method
        self._status = status

    def on_data(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= self._max_bytes:
            self._parts.append(data)
        else:
            self._fail(ProbeFailed(f"the answer is above {self._max_bytes} bytes"))

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result(Answer(self._status, b"".join(self._parts)))

    def on_failure(self, error: UpstreamError) -> None:
        self._fail(ProbeFailed(str(error), is_stale=error.is_stale))

    def _fail(self, error: ProbeFailed) -> None:
        if not self.done.done():
            self.done.set_exception(error)


@dataclass(slots=True)
class ProbeClient:
    """Asks one backend, on connections that no request uses: a full pool must not look like a dead backend.

    Belongs to the event loop that calls it first. One that hangs holds up its own probes only.
    """

    url: str
    authorization: bytes = field(default=b"", repr=False)
    max_connections: int = 6
    _pool: UpstreamPool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        limits = UpstreamLimits(
            max_connections=self.max_connections,
            connect_timeout_s=_BACKSTOP_S,
            first_byte_timeout_s=_BACKSTOP_S,
            idle_timeout_s=_BACKSTOP_S,
        )
        self._pool = UpstreamPool(self.url, limits)

    async def fetch(
        self, path: str, *, timeout_s: float, body: bytes | None = None, max_bytes: int = MAX_ANSWER_BYTES
    ) -> Answer:
        """GET `path`, or POST a JSON `body` to it.

        Raises:
            ProbeFailed: no connection, no whole answer within `timeout_s`, or one above `max_bytes`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(self._request(path, body), max_bytes)
        except TimeoutError:
            raise ProbeFailed(f"no answer within {timeout_s:g} s") from None

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()

    async def _exchange(self, request: bytes, max_bytes: int) -> Answer:
        for fresh in (False, True):
            collector = _Collector(max_bytes)
            connection: UpstreamConnection | None = None
            try:
                connection = await self._pool.acquire(fresh=fresh)
                connection.send(request, collector, first_byte_timeout_s=_BACKSTOP_S)
                answer = await collector.done
                connection = None
                return answer
            except UpstreamError as error:
                reason = "too many probes at once" if error.result is AttemptResult.BUSY else str(error)
                raise ProbeFailed(reason) from None
            except ProbeFailed as error:
                if fresh or not error.is_stale:
                    raise
            finally:
                if connection is not None:
                    connection.abort()
        raise AssertionError("a fresh connection answers or raises")

    def _request(self, path: str, body: bytes | None) -> bytes:
        pool = self._pool
        method = b"GET" if body is None else b"POST"
        lines = [method + b" " + pool.path_prefix + path.encode() + b" HTTP/1.1", b"host: " + pool.host_header]
        lines.append(b"accept: */*")
        if self.authorization:
            lines.append(b"authorization: " + self.authorization)
        if body is not None:
            lines += [b"content-type: application/json", b"content-length: %d" % len(body)]
        return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")
