"""Probes backends on their schedules and tells of every change of health."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import orjson

from argosy.fleet.gateway.backend_kinds import KindProfile
from argosy.fleet.gateway.deep_probe import deep_probe
from argosy.fleet.gateway.probe_client import ProbeClient, ProbeFailed
from argosy.fleet.policies.health_state import HealthConfig, HealthPhase, HealthState, ProbeKind, ProbeResult
from argosy.observe.logs import log_event

_LOGGER = logging.getLogger("argosy.gateway")
_MAX_BYTES = 64 * 1024
_MAX_LIST_BYTES = 2**20
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


def answered_checks(config: HealthConfig, profile: KindProfile) -> HealthConfig:
    """The probes of `config` that a backend of this kind answers."""
    answered = {
        ProbeKind.LIVE: profile.live_path is not None,
        ProbeKind.READY: profile.ready_path is not None,
        ProbeKind.DEEP: profile.generates,
    }
    return replace(config, checks={kind: check for kind, check in config.checks.items() if answered[kind]})


class HealthProber:
    """Runs on one event loop, best one that serves no requests. At most one probe of each kind per backend at a time."""

    def __init__(
        self,
        config: HealthConfig,
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
        self._config = config
        self._on_phase = on_phase
        self._clock = clock
        self._rng = rng
        self._targets: dict[str, tuple[ProbeTarget, HealthState]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()

    def add(self, target: ProbeTarget) -> None:
        """Probe a backend from now on, at once for the first time."""
        state = HealthState(answered_checks(self._config, target.profile))
        self._targets[target.backend_id] = (target, state)
        if state.phase is not HealthPhase.UNKNOWN:
            self._on_phase(target.backend_id, state.phase)
        self._wake.set()

    def remove(self, backend_id: str) -> None:
        """Probe it no more; what a probe in flight finds is not told. Idempotent."""
        self._targets.pop(backend_id, None)
        load = self._loads.pop(backend_id, None)
        if load is not None:
            load.cancel()

    def suspect(self, backend_id: str) -> None:
        """A request got no connection to it: probe it at once."""
        if backend_id in self._targets:
            self._targets[backend_id][1].suspect()
            self._wake.set()

    def wake(self, backend_id: str) -> None:
        """Have a backend load its model, unless it does so already.

        The load is nobody's request: it survives every client that waits for it, and none of them begins it again.
        """
        if backend_id in self._targets and backend_id not in self._loads:
            target, state = self._targets[backend_id]
            self._tell(target, state, ProbeKind.READY, state.on_probe(ProbeKind.READY, ProbeResult.LOADING, self._clock()))
            task = self._loads[backend_id] = asyncio.get_running_loop().create_task(self._load(target, state))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

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
        if target.backend_id in self._loads and kind is ProbeKind.READY and result is ProbeResult.ASLEEP:
            result = ProbeResult.LOADING
        self._tell(target, state, kind, state.on_probe(kind, result, self._clock()), reason)

    async def _load(self, target: ProbeTarget, state: HealthState) -> None:
        try:
            result, reason = await load_model(target, state.config.loading_timeout_s)
        except ProbeFailed as error:
            result, reason = ProbeResult.FAILED, str(error)
        finally:
            self._loads.pop(target.backend_id, None)
        self._tell(target, state, ProbeKind.READY, state.on_probe(ProbeKind.READY, result, self._clock()), reason)

    def _tell(self, target: ProbeTarget, state: HealthState, kind: ProbeKind, changed: bool, reason: str = "") -> None:
        """Pass a change on, unless the backend has left or been replaced meanwhile."""
        current = self._targets.get(target.backend_id)
        if not changed or current is None or current[1] is not state:
            return
        fine = state.phase in (HealthPhase.READY, HealthPhase.LOADING, HealthPhase.ASLEEP)
        log_event(
            _LOGGER,
            logging.INFO if fine else logging.WARNING,
            "backend health",
            backend=target.backend_id,
            phase=state.phase,
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
    if kind is ProbeKind.LIVE:
        return ProbeResult.OK, ""
    if answer.status == 200:
        return await _in_memory(target, timeout_s)
    reason = f"status {answer.status}"
    if answer.status in profile.loading_statuses and not (profile.loads_once and state.was_ready):
        return ProbeResult.LOADING, reason
    return (ProbeResult.BUSY if answer.status == 429 else ProbeResult.FAILED), reason


async def _in_memory(target: ProbeTarget, timeout_s: float) -> tuple[ProbeResult, str]:
    """Whether the model of a server that keeps several on disk is one of those in memory."""
    path = target.profile.loaded_models_path
    if path is None:
        return ProbeResult.OK, ""
    answer = await target.client.fetch(path, timeout_s=timeout_s, max_bytes=_MAX_LIST_BYTES)
    try:
        names = {str(each[key]) for each in orjson.loads(answer.body)["models"] for key in ("name", "model") if key in each}
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ProbeResult.FAILED, "the list of loaded models cannot be read"
    wanted = target.model if ":" in target.model else f"{target.model}:latest"
    return (ProbeResult.OK, "") if wanted in names else (ProbeResult.ASLEEP, "the model is not in memory")


async def load_model(target: ProbeTarget, timeout_s: float) -> tuple[ProbeResult, str]:
    """Have the backend load its model, as Ollama does for a request without a prompt.

    Raises:
        ProbeFailed: no answer within `timeout_s`.
    """
    assert target.profile.load_path is not None, "only a backend that loads on demand sleeps"
    body = orjson.dumps({"model": target.model, "stream": False})
    answer = await target.client.fetch(target.profile.load_path, timeout_s=timeout_s, body=body, max_bytes=_MAX_BYTES)
    return (ProbeResult.OK, "") if answer.status == 200 else (ProbeResult.FAILED, f"loading: status {answer.status}")
