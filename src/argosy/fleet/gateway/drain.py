"""Leaving without cutting anyone short: what happens between SIGTERM and the end of the process.

    serving --begin--> announced --propagation_s--> closed --timeout_s or nothing in flight--> cut --flush_s--> done
    ready: 200         503, still accepting         503, refusing                        error events to the rest

Load balancers learn from the ready probe, a probe interval later; whoever stops accepting at once refuses what they still
send. So requests go on being taken for the propagation delay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from argosy.fleet.gateway.config_operations import DrainSettings
from argosy.fleet.policies.outcomes import Outcome, RequestDropped
from argosy.observe.logs import log_event

_LOGGER = logging.getLogger("argosy.gateway")

Cut = Callable[[RequestDropped], None]
"""Ends a request with an error: as a status if nothing has been sent, as an event of its stream otherwise."""


class DrainPhase(StrEnum):
    """Where the drain stands; see the drawing above."""

    SERVING = "serving"
    ANNOUNCED = "announced"
    CLOSED = "closed"
    CUT = "cut"
    DONE = "done"


class Drain:
    """Counts what is in flight, and ends it in order. Belongs to the event loop of the data path.

    Attributes:
        phase: where it stands.
        num_cut: requests that were ended before they were complete.
        flush_s: how long the error events may take to leave.
        retry_after_s: told to who is refused or cut. Other gateways serve already: it need not be long.
    """

    def __init__(
        self,
        settings: DrainSettings,
        *,
        flush_s: float = 5.0,
        retry_after_s: float = 1.0,
        sleep: Callable[[float], asyncio.Future[None]] | None = None,
    ) -> None:
        """`sleep` waits for seconds, for tests; the event loop's by default."""
        self.settings = settings
        self.flush_s = flush_s
        self.retry_after_s = retry_after_s
        self.phase = DrainPhase.SERVING
        self.num_cut = 0
        self._sleep = sleep or (lambda delay_s: asyncio.ensure_future(asyncio.sleep(delay_s)))
        self._in_flight: dict[int, Cut] = {}
        self._next = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._task: asyncio.Task[bool] | None = None
        self._on_closed: Callable[[], None] | None = None

    @property
    def in_flight(self) -> int:
        """Requests that have entered and not left."""
        return len(self._in_flight)

    @property
    def ready(self) -> bool:
        """Whether the ready probe may say yes: until the drain begins."""
        return self.phase is DrainPhase.SERVING

    @property
    def accepting(self) -> bool:
        """Whether requests are taken: until the propagation delay is over."""
        return self.phase in (DrainPhase.SERVING, DrainPhase.ANNOUNCED)

    @contextmanager
    def entered(self, cut: Cut) -> Iterator[None]:
        """Count a request for as long as the context lasts, whatever ends it.

        Args:
            cut: called at most once, if the drain times out; must not block.

        Raises:
            RequestDropped: no request is taken any more (503).
        """
        if not self.accepting:
            raise self._dropped("the gateway is shutting down and takes no requests")
        self._next += 1
        number = self._next
        self._in_flight[number] = cut
        self._empty.clear()
        try:
            yield
        finally:
            del self._in_flight[number]
            if not self._in_flight:
                self._empty.set()

    def begin(self, on_closed: Callable[[], None] | None = None) -> asyncio.Task[bool]:
        """Start to drain; the task's result says whether every request was completed. Further calls return the same task.

        Args:
            on_closed: called when requests are no longer taken, to close the listening socket.
        """
        if self._task is None:
            self.phase = DrainPhase.ANNOUNCED
            self._on_closed = on_closed
            log_event(_LOGGER, logging.INFO, "draining", in_flight=self.in_flight)
            self._task = asyncio.ensure_future(self._run())
        return self._task

    async def _run(self) -> bool:
        await self._sleep(self.settings.propagation_s)
        self.phase = DrainPhase.CLOSED
        if self._on_closed is not None:
            self._on_closed()
        await self._until_empty(self.settings.timeout_s)
        self.phase = DrainPhase.CUT
        for cut in list(self._in_flight.values()):
            self.num_cut += 1
            try:
                cut(self._dropped("the gateway is shutting down; send the request again"))
            except Exception:
                log_event(_LOGGER, logging.ERROR, "a request could not be cut", exc_info=True)
        await self._until_empty(self.flush_s)
        self.phase = DrainPhase.DONE
        log_event(_LOGGER, logging.INFO, "drained", cut=self.num_cut, left=self.in_flight)
        return self.num_cut == 0

    async def _until_empty(self, limit_s: float) -> None:
        """Return when nothing is in flight, or after `limit_s`."""
        if not self._in_flight:
            return
        empty = asyncio.ensure_future(self._empty.wait())
        timer = asyncio.ensure_future(self._sleep(limit_s))
        try:
            await asyncio.wait((empty, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            empty.cancel()
            timer.cancel()

    def _dropped(self, message: str) -> RequestDropped:
        return RequestDropped(Outcome.REJECTED_SHUTTING_DOWN, message, retry_after_s=self.retry_after_s)
