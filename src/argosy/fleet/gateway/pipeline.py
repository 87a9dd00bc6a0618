"""From a client's request to its answer: the stages in order, and everything given back on every way out."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from argosy.errors import ConfigError
from argosy.fleet.gateway.config_operations import DrainSettings
from argosy.fleet.gateway.drain import Drain
from argosy.fleet.gateway.endpoints import ENDPOINTS, open_exchange
from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.http_messages import HttpRequest, ResponseWriter
from argosy.fleet.gateway.request_run import RequestRun
from argosy.fleet.gateway.stages import (
    AdmissionLedger,
    Authenticator,
    Backends,
    Dispatcher,
    Estimator,
    ExchangeObserver,
    ModelChooser,
    UsageSink,
)
from argosy.fleet.policies.retries import RetryBudget, RetryPolicy
from argosy.observe.logs import log_event

_LOGGER = logging.getLogger("argosy.gateway")


@dataclass(frozen=True, slots=True)
class Stages:
    """Who does what, in the order in which it is done."""

    authenticator: Authenticator
    chooser: ModelChooser
    estimator: Estimator
    ledger: AdmissionLedger
    dispatcher: Dispatcher
    backends: Backends
    usage: UsageSink
    observers: Sequence[ExchangeObserver] = ()


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """What the pipeline itself decides.

    Attributes:
        retries: of one request, over all its backends and fallbacks.
        total_timeout_s: of one request, from its last byte to the answer's; None for no bound.
        max_held_body_bytes: an answer that is no stream is held until it is complete, for its usage, up to this size.
        max_event_bytes: of one event of a stream; a larger one is passed on without being looked at.
    """

    retries: RetryPolicy = field(default_factory=RetryPolicy)
    total_timeout_s: float | None = None
    max_held_body_bytes: int = 8 * 1024 * 1024
    max_event_bytes: int = 1024 * 1024

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if self.total_timeout_s is not None and not self.total_timeout_s > 0.0:
            raise ConfigError(f"total_timeout_s must be above 0, got {self.total_timeout_s}")
        for name in ("max_held_body_bytes", "max_event_bytes"):
            if getattr(self, name) < 1024:
                raise ConfigError(f"{name} must be at least 1024, got {getattr(self, name)}")


class Pipeline:
    """Answers the data API. Belongs to one event loop.

    Args:
        rng: jitters retries.
        clock: seconds from an arbitrary zero, for every stage.
        process_id: makes exchange ids unique among gateways.
        drain: counts requests in flight and ends them in order; by default one with default times.
    """

    def __init__(
        self,
        stages: Stages,
        settings: PipelineSettings,
        *,
        rng: Random,
        budget: RetryBudget | None = None,
        clock: Callable[[], float] = time.monotonic,
        process_id: str = "gw",
        drain: Drain | None = None,
    ) -> None:
        self.stages = stages
        self.settings = settings
        self.rng = rng
        self.budget = budget
        self.clock = clock
        self.drain = drain or Drain(DrainSettings())
        self._ids = itertools.count(1)
        self._process_id = process_id
        self._num_in_flight = 0
        self._background: set[asyncio.Task[None]] = set()

    @property
    def num_in_flight(self) -> int:
        """Requests that have arrived and whose answer has not ended."""
        return self._num_in_flight

    def serves(self, path: str) -> bool:
        """Whether `path` is of the data API."""
        return path in ENDPOINTS

    async def handle(self, request: HttpRequest, writer: ResponseWriter) -> None:
        """Answer one request, whatever happens."""
        exchange_id = f"{self._process_id}-{next(self._ids)}"
        exchange = open_exchange(ENDPOINTS[request.path], request, exchange_id, self.clock())
        run = RequestRun(self, exchange, request, writer)
        self._num_in_flight += 1
        try:
            await run.answer()
        finally:
            self._num_in_flight -= 1

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what must happen although the task that wants it is being cancelled, such as giving back a lease."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._on_background_done)

    async def settle_down(self) -> None:
        """Wait for what runs in the background."""
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    def report(self, exchange: Exchange) -> None:
        """Tell usage and observers that a request is over. What one of them raises is logged and hurts nobody else."""
        for tell in (self.stages.usage.record, *(observer.finished for observer in self.stages.observers)):
            try:
                tell(exchange)
            except Exception:
                log_event(_LOGGER, logging.ERROR, "an observer failed", exc_info=True, request_id=exchange.request_id)

    def _on_background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_event(_LOGGER, logging.ERROR, "background work failed", exc_info=(type(error), error, error.__traceback__))
