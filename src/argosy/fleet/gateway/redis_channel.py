"""Runs scripts on a Redis server: many at a time in one exchange, and never longer than a bound."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from argosy.errors import ConfigError, StoreUnavailable
from argosy.fleet.gateway.redis_scripts import Script
from argosy.observe.logs import log_event

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger("argosy.gateway.redis")

Reply = list[int]
_TURN_TIMEOUTS = 4.0
_STEPS_PER_TIMEOUT = 20


@dataclass(slots=True, eq=False)
class _Call:
    script: Script
    keys: Sequence[str]
    arguments: bytes
    queued_s: float  # on the channel's attentive clock
    reply: asyncio.Future[Reply]


class RedisChannel:
    """Scripts over a few connections; what arrives while they are busy goes out together.

    A call waits at most `timeout_s` for the server, and four times as long for its turn while a slow one answers others.
    One that fails takes those behind it along: they would wait for the same silence. Belongs to one event loop.

    What is waited for is the server. Time in which this process is too busy to look at an answer does not count but for a
    twentieth of `timeout_s` per round of the event loop: a thousand clients at once would make a server seem silent.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        timeout_s: after which a server that is silent is lost.
        max_batch: scripts per exchange; max_exchanges: at a time, each on a connection of its own.

    Raises:
        ConfigError: the client library is not installed, or the URL is not one.
    """

    def __init__(self, url: str, *, timeout_s: float = 0.25, max_batch: int = 64, max_exchanges: int = 4) -> None:
        self.timeout_s = timeout_s
        self._max_batch = max_batch
        self._max_exchanges = max_exchanges
        self._queue: deque[_Call] = deque()
        self._exchanges: set[asyncio.Task[None]] = set()
        self._client = _make_client(url)
        self._evalsha_refused = False
        self._ticker: asyncio.TimerHandle | None = None
        self._next_tick_s = self._late_s = 0.0

    @property
    def longest_wait_s(self) -> float:
        """No call is waited for longer, unless this process is late: its turn, the server's time, as much again."""
        return (_TURN_TIMEOUTS + 2.0) * self.timeout_s

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[str | int | float]) -> Reply:
        """The script's answer.

        Raises:
            StoreUnavailable: no answer in time, no connection, or the server refuses. The script may have run.
        """
        loop = asyncio.get_running_loop()
        if self._ticker is None:
            self._start_tick(loop)
        call = _Call(script, keys, orjson.dumps(arguments), self._attentive_s(), loop.create_future())
        self._queue.append(call)
        if len(self._exchanges) < self._max_exchanges:
            exchange = loop.create_task(self._drain_queue())
            self._exchanges.add(exchange)
            exchange.add_done_callback(self._exchanges.discard)
        return await call.reply

    async def aclose(self) -> None:
        """Fail what waits and close the connections."""
        self._fail(list(self._queue), StoreUnavailable("the shared ledger is closed"))
        self._queue.clear()
        for exchange in tuple(self._exchanges):
            exchange.cancel()
        await asyncio.gather(*self._exchanges, return_exceptions=True)
        await self._client.aclose()

    async def _drain_queue(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(self._max_batch, len(self._queue)))]
            try:
                if self._attentive_s() - batch[0].queued_s > _TURN_TIMEOUTS * self.timeout_s:
                    raise TimeoutError
                replies = await self._in_time(self._exchange(batch))
            except Exception as error:
                self._fail([*batch, *self._queue], _as_unavailable(error, self.timeout_s))
                self._queue.clear()
            except BaseException:
                self._fail(batch, StoreUnavailable("the shared ledger is closed"))
                raise
            else:
                for call, reply in zip(batch, replies, strict=True):
                    if isinstance(reply, Exception):
                        self._fail([call], _as_unavailable(reply, self.timeout_s))
                    elif not call.reply.done():
                        call.reply.set_result([int(value) for value in reply.split(b",")])

    async def _in_time(self, exchange: Coroutine[Any, Any, list[Any]]) -> list[Any]:
        """Await `exchange` for `timeout_s` of the attentive clock.

        Raises:
            TimeoutError: the server is silent.
        """
        task = asyncio.get_running_loop().create_task(exchange)
        until_s = self._attentive_s() + self.timeout_s
        try:
            while not task.done():
                left_s = until_s - self._attentive_s()
                if left_s <= 0.0:
                    raise TimeoutError
                await asyncio.wait({task}, timeout=left_s)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=self.timeout_s)

    def _attentive_s(self) -> float:
        """The loop's time, less what this process was late."""
        return asyncio.get_running_loop().time() - self._late_s

    def _start_tick(self, loop: asyncio.AbstractEventLoop) -> None:
        step_s = self.timeout_s / _STEPS_PER_TIMEOUT
        self._next_tick_s = loop.time() + step_s
        self._ticker = loop.call_later(step_s, self._tick)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._late_s += max(0.0, loop.time() - self._next_tick_s)
        self._ticker = None
        if self._queue or self._exchanges:
            self._start_tick(loop)

    async def _exchange(self, batch: list[_Call]) -> list[Any]:
        from redis.exceptions import ConnectionError as Disconnected
        from redis.exceptions import TimeoutError as NoAnswer

        try:
            return await self._send(batch)
        except NoAnswer:
            raise
        except (Disconnected, OSError):
            return await self._send(batch)  # an idle connection that the server has closed; scripts may run twice

    async def _send(self, batch: list[_Call]) -> list[Any]:
        if self._evalsha_refused:
            return await self._evaluate(batch)
        pipeline = self._client.pipeline(transaction=False)
        for call in batch:
            pipeline.evalsha(call.script.digest, len(call.keys), *call.keys, call.arguments)
        replies = await pipeline.execute(raise_on_error=False)
        again = [i for i, reply in enumerate(replies) if isinstance(reply, Exception) and self._needs_text(reply)]
        if again:
            for i, reply in zip(again, await self._evaluate([batch[i] for i in again]), strict=True):
                replies[i] = reply
        return replies

    async def _evaluate(self, batch: list[_Call]) -> list[Any]:
        """Send scripts whole, but each text once: by its digest after that, unless the server refuses digests."""
        pipeline = self._client.pipeline(transaction=False)
        sent: set[str] = set()
        for call in batch:
            if call.script.digest in sent and not self._evalsha_refused:
                pipeline.evalsha(call.script.digest, len(call.keys), *call.keys, call.arguments)
            else:
                pipeline.eval(call.script.text, len(call.keys), *call.keys, call.arguments)
                sent.add(call.script.digest)
        return await pipeline.execute(raise_on_error=False)

    def _needs_text(self, error: Exception) -> bool:
        """Whether the server does not know the script by its digest: after a restart, or ever, as behind some proxies."""
        from redis.exceptions import NoScriptError

        if isinstance(error, NoScriptError):
            return True
        text = str(error).lower()
        if "evalsha" in text and ("unknown command" in text or "no permissions" in text or "unsupported" in text):
            if not self._evalsha_refused:
                self._evalsha_refused = True
                log_event(logger, logging.INFO, "redis refuses EVALSHA, scripts are sent whole")
            return True
        return False

    @staticmethod
    def _fail(calls: Sequence[_Call], error: StoreUnavailable) -> None:
        for call in calls:
            if not call.reply.done():
                call.reply.set_exception(error)


def _as_unavailable(error: Exception, timeout_s: float) -> StoreUnavailable:
    from redis.exceptions import TimeoutError as NoAnswer

    if isinstance(error, StoreUnavailable):
        return error
    if isinstance(error, TimeoutError | NoAnswer):
        return StoreUnavailable(f"redis did not answer within {timeout_s:g} s")
    words = str(error).split()
    reason = words[0] if words and words[0].isupper() else type(error).__name__  # never the URL or a key of it
    return StoreUnavailable(f"redis refuses or cannot be reached ({reason})")


def _make_client(url: str) -> Redis:
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise ConfigError("sharing limits over redis needs its client library: pip install 'argosy[gateway]'") from None
    try:
        return Redis.from_url(
            url,
            protocol=2,
            socket_timeout=None,
            socket_connect_timeout=None,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
        )
    except ValueError as error:
        raise ConfigError(f"url of redis is not one: {error}") from None
