"""Sending a load: open loop (each request when it is due, whatever the others do) or closed loop (so many at once)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from argosy.bench.http_exchange import ConnectionCut, ConnectionPool
from argosy.bench.load import PlannedRequest
from argosy.bench.records import AnswerRecorder, RequestRecord

LAG_INTERVAL_S = 0.02
START_MARGIN_S = 0.05
"""Between starting the clock and the first due time, so that the first request is not late for our own preparation."""

OnRecord = Callable[[RequestRecord], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A planned request and the bytes that ask for it."""

    planned: PlannedRequest
    request: bytes


@dataclass(frozen=True, slots=True)
class Run:
    """What happened, in order of sending.

    Attributes:
        started_s: when the load began, on the generator's clock.
        lateness_s: of each request that had a due time, how long after it the generator got to send it.
        loop_lag_s: how much later than asked the generator's own timers fired: what it adds to every reading of the clock.
    """

    records: tuple[RequestRecord, ...]
    started_s: float
    lateness_s: tuple[float, ...]
    loop_lag_s: tuple[float, ...]


class Generator:
    """Sends prepared requests through a pool. For one event loop."""

    def __init__(
        self, pool: ConnectionPool, clock: Callable[[], float], *, timeout_s: float, on_record: OnRecord | None = None
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._timeout_s = timeout_s
        self._on_record = on_record

    async def open_loop(self, load: Sequence[Prepared]) -> Run:
        """Send each request at its `offset_s`; never waits for an answer before the next one."""
        started_s = self._clock() + START_MARGIN_S
        async with _LagMeter(self._clock) as lag, asyncio.TaskGroup() as group:
            tasks = []
            for prepared in load:
                assert prepared.planned.offset_s is not None
                due_s = started_s + prepared.planned.offset_s
                # A timer may fire up to a tick early.
                while (wait_s := due_s - self._clock()) > 0:
                    await asyncio.sleep(wait_s)
                tasks.append(group.create_task(self._send(prepared, due_s)))
        records = tuple(task.result() for task in tasks)
        lateness_s = tuple(record.sent_s - record.due_s for record in records)
        return Run(records, started_s, lateness_s, tuple(lag.values_s))

    async def closed_loop(self, load: Sequence[Prepared], concurrency: int, duration_s: float | None = None) -> Run:
        """Keep `concurrency` requests under way until all are sent, or for `duration_s`; those under way then finish."""
        started_s = self._clock()
        queue, records = iter(load), []

        async def work() -> None:
            for prepared in queue:
                if duration_s is not None and self._clock() - started_s >= duration_s:
                    return
                records.append(await self._send(prepared, None))

        async with _LagMeter(self._clock) as lag, asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(load))):
                group.create_task(work())
        records.sort(key=lambda record: record.planned.index)
        return Run(tuple(records), started_s, (), tuple(lag.values_s))

    async def _send(self, prepared: Prepared, due_s: float | None) -> RequestRecord:
        recorder, failure = AnswerRecorder(), ("", "")
        sent_s = self._clock()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._pool.exchange(prepared.request, recorder)
        except TimeoutError:
            failure = ("timeout", f"no complete answer within {self._timeout_s:g} s")
        except ConnectionCut as error:
            failure = ("cut", str(error))
        except OSError as error:
            failure = ("connect", error.strerror or str(error))
        record = recorder.record(prepared.planned, sent_s if due_s is None else due_s, sent_s, self._clock(), failure)
        if self._on_record is not None:
            self._on_record(record)
        return record


class _LagMeter:
    """Measures by a timer of its own how late this event loop runs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self.values_s: list[float] = []

    async def __aenter__(self) -> _LagMeter:
        self._task = asyncio.create_task(self._measure())
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _measure(self) -> None:
        while True:
            asked_s = self._clock() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self.values_s.append(max(0.0, self._clock() - asked_s))
