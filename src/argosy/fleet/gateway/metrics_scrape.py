"""Reads the load of backends at an interval, and forgets what has become too old to route by."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from argosy.fleet.gateway.engine_metrics import EngineReport, parse_engine_metrics
from argosy.fleet.gateway.probe_client import ProbeClient, ProbeFailed
from argosy.observe.logs import log_event

_LOGGER = logging.getLogger("argosy.gateway")
# A backend that offers no metrics may have been started again with them.
_ABSENT_RETRY_S = 30.0


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """A backend to be read; `path` is that of its metrics."""

    backend_id: str
    client: ProbeClient
    path: str


class MetricsScraper:
    """Runs on one event loop, best one that serves no requests. One reading per backend at a time.

    Attributes:
        stale_after_s: age of a report at which it no longer counts: three intervals, and never below two seconds.
    """

    def __init__(
        self,
        interval_s: float,
        on_report: Callable[[str, EngineReport | None, float], None],
        clock: Callable[[], float],
    ) -> None:
        """Nothing to read yet.

        Args:
            on_report: takes backend id, report and the time it stands for, on `clock`; None: what was told before is stale.
        """
        self.stale_after_s = max(2.0, 3.0 * interval_s)
        self._interval_s = interval_s
        self._on_report = on_report
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, target: ScrapeTarget) -> None:
        """Read a backend from now on."""
        self.remove(target.backend_id)
        self._tasks[target.backend_id] = asyncio.get_running_loop().create_task(self._read(target))

    def remove(self, backend_id: str) -> None:
        """Read it no more. Idempotent."""
        task = self._tasks.pop(backend_id, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Read nothing more."""
        tasks = list(self._tasks.values())
        for backend_id in list(self._tasks):
            self.remove(backend_id)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, target: ScrapeTarget) -> None:
        last_s: float | None = None
        reads = True
        while True:
            began_s = self._clock()
            report, reason, offered = await self._read_once(target, began_s, last_s)
            if report is not None:
                last_s = began_s
                self._on_report(target.backend_id, report, began_s)
            elif last_s is not None and self._clock() - last_s >= self.stale_after_s:
                last_s = None
                self._on_report(target.backend_id, None, began_s)
            if reads != (report is not None):
                reads = report is not None
                level = logging.INFO if reads else logging.WARNING
                log_event(
                    _LOGGER, level, "backend metrics", backend=target.backend_id, readable=reads, reason=reason or None
                )
            wait_s = self._interval_s if offered or last_s is not None else max(self._interval_s, _ABSENT_RETRY_S)
            await asyncio.sleep(max(0.0, began_s + wait_s - self._clock()))

    async def _read_once(
        self, target: ScrapeTarget, now_s: float, last_s: float | None
    ) -> tuple[EngineReport | None, str, bool]:
        """The report, or None and why there is none; and whether the backend may offer one.

        Never waits beyond the moment at which the last report is stale.
        """
        timeout_s = max(1.0, self._interval_s)
        if last_s is not None:
            timeout_s = max(0.01, min(timeout_s, last_s + self.stale_after_s - now_s))
        try:
            answer = await target.client.fetch(target.path, timeout_s=timeout_s)
        except ProbeFailed as error:
            return None, str(error), True
        if answer.status != 200:
            return None, f"status {answer.status}", answer.status >= 500
        report = parse_engine_metrics(answer.body)
        return (report, "", True) if report.says_load else (None, "no metric of a known engine", False)
