"""Watches backends from a thread of its own, and answers for the gateway's own health there.

    data path's loop                           this thread's loop
    BackendPools --added, removed, suspect-->  HealthProber, MetricsScraper
                 <--set_phase, take_report---
    GatewayHealth (written) ---------------->  HealthServer (read)

A busy data path thus delays no probe, and parsing a long page of metrics delays no request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from argosy.errors import ConfigError
from argosy.fleet.gateway.backend_kinds import profile_of
from argosy.fleet.gateway.backends import BackendPools
from argosy.fleet.gateway.config_models import BackendSettings
from argosy.fleet.gateway.config_operations import HealthSettings
from argosy.fleet.gateway.engine_metrics import EngineReport
from argosy.fleet.gateway.health_endpoints import GatewayHealth
from argosy.fleet.gateway.health_probe import HealthProber, ProbeTarget
from argosy.fleet.gateway.health_server import HealthServer
from argosy.fleet.gateway.metrics_scrape import MetricsScraper, ScrapeTarget
from argosy.fleet.gateway.probe_client import ProbeClient
from argosy.fleet.gateway.side_loop import SideLoop
from argosy.fleet.gateway.stages import Upstream
from argosy.fleet.policies.breaker import BreakerState
from argosy.fleet.policies.health_state import HealthPhase

_BEAT_S = 0.5


class BackendWatch:
    """A `Watcher` of `BackendPools`. Made, started and stopped on the event loop of the data path.

    Args:
        clock: of the data path; reports carry its times.
        health: whose backend counts and heartbeat are kept up to date; made here if None.
    """

    def __init__(
        self,
        settings: HealthSettings,
        *,
        rng: Random,
        clock: Callable[[], float],
        health: GatewayHealth | None = None,
    ) -> None:
        self.health = health or GatewayHealth(clock)
        self._settings = settings
        self._rng = rng
        self._clock = clock
        self._side = SideLoop("argosy-watch")
        self._pools: BackendPools | None = None
        self._main: asyncio.AbstractEventLoop | None = None
        self._beating: asyncio.Task[None] | None = None
        self._phases: dict[str, HealthPhase] = {}
        self._will_count = False
        # What follows lives on the side loop.
        self._clients: dict[str, ProbeClient] = {}
        self._prober: HealthProber
        self._scraper: MetricsScraper
        self._server: HealthServer | None = None
        self._probing: asyncio.Task[None] | None = None

    async def start(self, pools: BackendPools) -> None:
        """Start to watch; backends are added to `pools` after this."""
        self._pools = pools
        self._main = asyncio.get_running_loop()
        self._side.start()
        await asyncio.wrap_future(self._side.run(self._start_side()))
        self.health.beat()
        self._beating = self._main.create_task(self._beat())

    async def serve_health(self, host: str, port: int) -> int:
        """Answer the health paths on a port of their own; returns it, a free one for 0.

        Raises:
            ConfigError: the address cannot be bound.
        """
        self._server = HealthServer(self.health)
        try:
            return await asyncio.wrap_future(self._side.run(self._server.start(host, port)))
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(
                f"cannot answer health probes on {host}:{port}: {reason}; choose another health_port"
            ) from None

    async def first_round(self, timeout_s: float) -> bool:
        """Wait until the health of every backend is known, at most `timeout_s`; from then on the gateway is ready."""
        deadline_s = self._clock() + timeout_s
        while not self.is_settled and self._clock() < deadline_s:
            await asyncio.sleep(0.01)
        self._count()
        self.health.is_started = True
        return self.is_settled

    @property
    def is_settled(self) -> bool:
        """Whether the health of every backend is known."""
        return all(phase is not HealthPhase.UNKNOWN for phase in self._phases.values())

    async def stop(self) -> None:
        """End the thread. Idempotent."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None
            await asyncio.wrap_future(self._side.run(self._stop_side()))
            self._side.stop()

    # --- called by BackendPools, on the data path's loop -----------------------------------------------------------------

    def added(self, settings: BackendSettings, upstream: Upstream, model: str) -> None:
        """Watch a backend, which knows its model as `model`."""
        self._phases[settings.name] = HealthPhase.UNKNOWN
        self._count_soon()
        self._side.call(self._add, settings, upstream.authorization, model)

    def removed(self, backend_id: str) -> None:
        """Watch it no more."""
        self._phases.pop(backend_id, None)
        self._count_soon()
        self._side.call(self._remove, backend_id)

    def suspect(self, backend_id: str) -> None:
        """Probe it at once."""
        self._side.call(self._prober.suspect, backend_id)

    def wake(self, backend_id: str) -> None:
        """Have it load its model."""
        self._side.call(self._prober.wake, backend_id)

    def _count_soon(self) -> None:
        """Count once, however many backends change within one turn of the loop."""
        if not self._will_count:
            self._will_count = True
            assert self._main is not None
            self._main.call_soon(self._count)

    def _count(self) -> None:
        assert self._pools is not None
        self._will_count = False
        statuses = list(self._pools.statuses(self._clock()))
        breakers = {each.backend_id: each.breaker.value for each in statuses if each.breaker is not BreakerState.CLOSED}
        good = [each for each in statuses if each.phase is HealthPhase.READY and each.backend_id not in breakers]
        health = self.health
        health.healthy_count = sum(each.is_probed for each in good)
        health.unprobed_count = len(good) - health.healthy_count
        health.unhealthy_count = len(statuses) - len(good)
        health.breakers = breakers

    def _set_phase(self, backend_id: str, phase: HealthPhase) -> None:
        assert self._pools is not None
        if backend_id in self._phases:
            self._phases[backend_id] = phase
            self._pools.set_phase(backend_id, phase)
            self._count_soon()

    def _take_report(self, backend_id: str, report: EngineReport | None, at_s: float) -> None:
        assert self._pools is not None
        self._pools.take_report(backend_id, report, at_s)

    async def _beat(self) -> None:
        while True:
            self.health.beat()
            self._count()  # breakers change with time and answers, which tell nobody
            await asyncio.sleep(_BEAT_S)

    # --- on the side loop ------------------------------------------------------------------------------------------------

    async def _start_side(self) -> None:
        self._prober = HealthProber(
            self._settings.config(), lambda *args: self._post(self._set_phase, *args), self._clock, self._rng
        )
        self._scraper = MetricsScraper(
            self._settings.metrics_interval_s, lambda *args: self._post(self._take_report, *args), self._clock
        )
        self._probing = asyncio.create_task(self._prober.run())

    async def _stop_side(self) -> None:
        assert self._probing is not None
        self._probing.cancel()
        await asyncio.gather(self._probing, return_exceptions=True)
        await self._scraper.close()
        if self._server is not None:
            await self._server.close()
        for client in self._clients.values():
            await client.close()

    def _add(self, settings: BackendSettings, authorization: bytes, model: str) -> None:
        profile = profile_of(settings.kind)
        self._remove(settings.name)
        client = self._clients[settings.name] = ProbeClient(settings.url, authorization)
        self._prober.add(ProbeTarget(settings.name, client, profile, model))
        if profile.metrics_path is not None:
            self._scraper.add(ScrapeTarget(settings.name, client, profile.metrics_path))

    def _remove(self, backend_id: str) -> None:
        self._prober.remove(backend_id)
        self._scraper.remove(backend_id)
        client = self._clients.pop(backend_id, None)
        if client is not None:
            self._closing = asyncio.ensure_future(client.close())

    def _post(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function` on the data path's loop, unless that has ended."""
        assert self._main is not None
        if not self._main.is_closed():
            self._main.call_soon_threadsafe(function, *args)
