"""Probes backends on their schedules and tells of every change of health."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from argosy.fleet.gateway.backend_kinds import KindProfile
from argosy.fleet.gateway.config_operations import HealthSettings, ProbeSettings
from argosy.fleet.gateway.deep_probe import deep_probe
from argosy.fleet.gateway.probe_client import ProbeClient, ProbeFailed
from argosy.fleet.policies.health import HealthCheck
from argosy.fleet.policies.health_state import HealthConfig, HealthPhase, HealthState, ProbeKind, ProbeResult
from argosy.observe.logs import log_event

_LOGGER = logging.getLogger("argosy.gateway")
_MAX_BYTES = 64 * 1024
_LONGEST_SLEEP_S = 1.0


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A backend to be probed.

    Attributes:
        model: that a deep probe asks for.
    """

    backend_id: str
    client: ProbeClient
    profile: KindProfile
    model: str


def health_config(settings: HealthSettings, profile: KindProfile) -> HealthConfig:
    """The probes of `settings` that a backend of this kind answers."""
    checks = {}
    if settings.live is not None and profile.live_path is not None:
        checks[ProbeKind.LIVE] = _check(settings.live)
    if settings.ready is not None and profile.ready_path is not None:
        checks[ProbeKind.READY] = _check(settings.ready)
    if settings.deep is not None and profile.generates:
        checks[ProbeKind.DEEP] = replace(_check(settings.deep), deep=True)
    return HealthConfig(checks)


class HealthProber:
    """Runs on one event loop, best one that serves no requests. At most one probe of each kind per backend at a time."""

    def __init__(
        self,
        settings: HealthSettings,
        on_phase: Callable[[str, HealthPhase], None],
        clock: Callable[[], float],
        rng: Random,
    ) -> None:
        """Nothing to probe yet.

        Args:
            on_phase: told of every change, from the prober's loop.
            clock: seconds, monotonic.
            rng: spreads the probes of several backends, and of several gateways, over time.
        """
        self._settings = settings
        self._on_phase = on_phase
        self._clock = clock
        self._rng = rng
        self._targets: dict[str, tuple[ProbeTarget, HealthState]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    def add(self, target: ProbeTarget) -> None:
        """Probe a backend from now on, at once for the first time."""
        state = HealthState(health_config(self._settings, target.profile))
        self._targets[target.backend_id] = (target, state)
        if state.phase is not HealthPhase.UNKNOWN:
            self._on_phase(target.backend_id, state.phase)
        self._wake.set()

    def remove(self, backend_id: str) -> None:
        """Probe it no more; what a probe in flight finds is not told. Idempotent."""
        self._targets.pop(backend_id, None)

    def suspect(self, backend_id: str) -> None:
        """A request got no connection to it: probe it at once."""
        if backend_id in self._targets:
            self._targets[backend_id][1].suspect()
            self._wake.set()

    @property
    def is_settled(self) -> bool:
        """Whether the health of every backend is known."""
        return all(state.phase is not HealthPhase.UNKNOWN for _, state in self._targets.values())

    async def run(self) -> None:
        """Probe until cancelled."""
        try:
            while True:
                now_s = self._clock()
                for target, state in list(self._targets.values()):
                    for kind in state.due(now_s):
                        self._start(target, state, kind)
                next_s = min((state.next_due_s() for _, state in self._targets.values()), default=now_s + _LONGEST_SLEEP_S)
                self._wake.clear()
                try:
                    async with asyncio.timeout(min(_LONGEST_SLEEP_S, max(0.01, next_s - self._clock()))):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, target: ProbeTarget, state: HealthState, kind: ProbeKind) -> None:
        task = asyncio.create_task(self._probe(target, state, kind))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _probe(self, target: ProbeTarget, state: HealthState, kind: ProbeKind) -> None:
        check = state.config.checks[kind]
        if state.was_ready:
            # Never the first probes: a backend that waits for them gets no requests.
            await asyncio.sleep(self._rng.uniform(0.0, 0.1 * check.interval_s))
        try:
            result, reason = await probe_once(target, state, kind, check.timeout_s)
        except ProbeFailed as error:
            result, reason = ProbeResult.FAILED, str(error)
        except Exception:
            log_event(_LOGGER, logging.ERROR, "a probe broke", backend=target.backend_id, probe=kind, exc_info=True)
            result, reason = ProbeResult.FAILED, "the probe broke; see the log"
        before = state.phase
        changed = state.on_probe(kind, result, self._clock())
        current = self._targets.get(target.backend_id)
        if changed and current is not None and current[1] is state:
            level = logging.INFO if state.phase in (HealthPhase.READY, HealthPhase.LOADING) else logging.WARNING
            log_event(
                _LOGGER,
                level,
                "backend health",
                backend=target.backend_id,
                phase=state.phase,
                was=before,
                probe=kind,
                reason=reason or None,
            )
            self._on_phase(target.backend_id, state.phase)


async def probe_once(target: ProbeTarget, state: HealthState, kind: ProbeKind, timeout_s: float) -> tuple[ProbeResult, str]:
    """Make one probe; what it found and why, in one line.

    Raises:
        ProbeFailed: no whole answer within `timeout_s`.
    """
    profile = target.profile
    if kind is ProbeKind.DEEP:
        return await deep_probe(target.client, profile, target.model, timeout_s)
    path = profile.live_path if kind is ProbeKind.LIVE else profile.ready_path
    assert path is not None, "only what the kind of backend answers is probed"
    answer = await target.client.fetch(path, timeout_s=timeout_s, max_bytes=_MAX_BYTES)
    if kind is ProbeKind.LIVE or answer.status == 200:
        return ProbeResult.OK, ""
    reason = f"status {answer.status}"
    if answer.status in profile.loading_statuses and not (profile.loads_once and state.was_ready):
        return ProbeResult.LOADING, reason
    return (ProbeResult.BUSY if answer.status == 429 else ProbeResult.FAILED), reason


def _check(settings: ProbeSettings) -> HealthCheck:
    return HealthCheck(settings.interval_s, settings.timeout_s, settings.failures)
