"""One backend as the data path sees it: what it is, whether it may be called, and what is in flight to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from argosy.fleet.gateway.backend_kinds import KindProfile, profile_of
from argosy.fleet.gateway.bulkhead import Bulkhead
from argosy.fleet.gateway.config_models import BackendSettings
from argosy.fleet.gateway.exchange import AttemptResult
from argosy.fleet.gateway.stages import Upstream
from argosy.fleet.policies.breaker import Breaker, BreakerConfig, BreakerState, Permit, Verdict
from argosy.fleet.policies.health_state import HealthPhase
from argosy.fleet.policies.routing.replica_state import LoadReport, ReplicaInfo, ReplicaState
from argosy.fleet.policies.routing.router import Decision, Router
from argosy.observe.logs import log_event

_LOGGER = logging.getLogger("argosy.gateway")
_VERDICTS = {
    AttemptResult.OK: Verdict.SUCCESS,
    AttemptResult.CLIENT_ERROR: Verdict.NEUTRAL,
    AttemptResult.THROTTLED: Verdict.THROTTLED,
    AttemptResult.SERVER_ERROR: Verdict.FAILURE,
    AttemptResult.CONNECT_ERROR: Verdict.FAILURE,
    AttemptResult.BUSY: Verdict.NEUTRAL,
    AttemptResult.FIRST_BYTE_TIMEOUT: Verdict.FAILURE,
    AttemptResult.IDLE_TIMEOUT: Verdict.FAILURE,
    AttemptResult.CUT: Verdict.FAILURE,
    AttemptResult.ABORTED: Verdict.NEUTRAL,
}


def verdict_of(result: AttemptResult, phase: HealthPhase) -> Verdict:
    """What the end of a call says of its backend. One that is loading its model fails calls without being at fault."""
    if result is AttemptResult.SERVER_ERROR and phase is HealthPhase.LOADING:
        return Verdict.NEUTRAL
    return _VERDICTS[result]


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """One backend for metrics and the admin API: bounded values, no addresses, no secrets.

    Attributes:
        is_probed: whether its phase is that of probes; else it is judged by its answers alone, which is the breaker.
        report_age_s: of the last load report, None if there is none that counts.
    """

    backend_id: str
    pool: str
    kind: str
    weight: float
    phase: HealthPhase
    breaker: BreakerState
    draining: bool
    in_flight: int
    times_opened: int
    report: LoadReport | None
    report_age_s: float | None
    is_probed: bool = True


class Backend:
    """Lives from its addition to the end of its last call. Mutated on the event loop of the data path only.

    Attributes:
        replica: what the router picks among; its flags follow health, breaker and drain.
        on_idle: told once the last call has ended, of a backend that was removed.
        on_suspect: told when a call got no connection.
    """

    def __init__(
        self,
        pool: str,
        settings: BackendSettings,
        upstream: Upstream,
        *,
        breaker: BreakerConfig,
        max_in_flight: int,
        tenant_share: float,
    ) -> None:
        self.pool = pool
        self.settings = settings
        self.upstream = upstream
        self.profile: KindProfile = profile_of(settings.kind)
        self.breaker = Breaker(settings.name, breaker)
        self.bulkhead = Bulkhead(settings.max_in_flight or max_in_flight, tenant_share)
        self.replica = ReplicaState(replica_info(settings))
        self.on_idle: Callable[[Backend], None] | None = None
        self.on_suspect: Callable[[str], None] | None = None
        self._logged_breaker = BreakerState.CLOSED
        self.phase = HealthPhase.READY
        self.set_phase(HealthPhase.READY if self.profile.ready_path is None else HealthPhase.UNKNOWN)

    @property
    def backend_id(self) -> str:
        """Its name in the configuration, unique over all pools."""
        return self.settings.name

    def set_phase(self, phase: HealthPhase) -> None:
        """Take over what the probes say."""
        self.phase = phase
        self.replica.healthy = phase is HealthPhase.READY

    def refresh(self, now_s: float) -> None:
        """Let the router see what time and answers have done to the breaker, and log it where its state changed."""
        self.replica.breaker_open = not self.breaker.allow(now_s)
        state = self.breaker.state(now_s)
        if state is not self._logged_breaker:
            self._logged_breaker = state
            level = logging.WARNING if state is BreakerState.OPEN else logging.INFO
            opened = self.breaker.num_opened
            log_event(
                _LOGGER, level, "breaker", backend=self.backend_id, model=self.pool, state=state.value, times_opened=opened
            )

    def status(self, now_s: float) -> BackendStatus:
        """As it is at `now_s`."""
        report = self.replica.report
        return BackendStatus(
            self.backend_id,
            self.pool,
            self.settings.kind,
            self.replica.weight,
            self.phase,
            self.breaker.state(now_s),
            self.replica.draining,
            self.bulkhead.in_flight,
            self.breaker.num_opened,
            report,
            None if report is None else max(0.0, now_s - report.at_s),
            self.profile.ready_path is not None,
        )


def replica_info(settings: BackendSettings) -> ReplicaInfo:
    """What routing may know of a backend."""
    return ReplicaInfo(
        settings.name,
        weight=settings.weight,
        region=settings.region,
        max_model_len=settings.max_model_len,
        kv_capacity_tokens=settings.kv_capacity_tokens,
        usd_per_hour=settings.usd_per_hour,
        max_in_flight=settings.max_in_flight,
    )


class BackendPlacement:
    """One call of one backend, booked on router, breaker and bulkhead until `finish`; a `Placement` of the pipeline."""

    __slots__ = ("_backend", "_began_s", "_decision", "_finished", "_permit", "_router", "_succeeded", "_tenant")

    def __init__(
        self, backend: Backend, router: Router, decision: Decision, permit: Permit, tenant: str, began_s: float
    ) -> None:
        """Takes over bookings that exist already."""
        self._backend = backend
        self._router = router
        self._decision = decision
        self._permit = permit
        self._tenant = tenant
        self._began_s = began_s
        self._succeeded = False
        self._finished = False

    @property
    def upstream(self) -> Upstream:
        """The backend."""
        return self._backend.upstream

    @property
    def cached_tokens(self) -> int:
        """Leading prompt tokens that the backend probably holds."""
        return self._decision.cached_tokens

    def first_byte(self, now_s: float) -> None:
        """A good answer has begun: the prompt is computed, and the backend has shown that it works. Idempotent."""
        if not self._succeeded and not self._finished:
            self._succeeded = True
            self._router.first_token(self._decision, now_s)
            self._report(Verdict.SUCCESS, now_s, latency_s=now_s - self._began_s)

    def keep_alive(self, now_s: float) -> None:
        """A sign of life."""
        self._router.keep_alive(self._decision, now_s)

    def finish(self, result: AttemptResult, now_s: float, *, latency_s: float, retry_after_s: float | None) -> None:
        """The call is over, however it ended. Idempotent.

        Args:
            latency_s: of the whole call, for the router's memory; counts for a good answer only.
            retry_after_s: what a 429 asked for.
        """
        if self._finished:
            return
        self._finished = True
        verdict = verdict_of(result, self._backend.phase)
        if not (self._succeeded and verdict is Verdict.SUCCESS):
            first_byte_s = latency_s if verdict is Verdict.SUCCESS else None
            self._report(verdict, now_s, latency_s=first_byte_s, retry_after_s=retry_after_s)
        good = verdict is Verdict.SUCCESS
        self._router.finish(self._decision, now_s, latency_s=latency_s if good else None)
        backend = self._backend
        backend.bulkhead.leave(self._tenant)
        if result is AttemptResult.CONNECT_ERROR and backend.on_suspect is not None:
            backend.on_suspect(backend.backend_id)
        if backend.on_idle is not None and not backend.bulkhead.in_flight:
            backend.on_idle(backend)

    def _report(
        self, verdict: Verdict, now_s: float, *, latency_s: float | None, retry_after_s: float | None = None
    ) -> None:
        backend = self._backend
        backend.breaker.on_result(self._permit, verdict, now_s, latency_s=latency_s, retry_after_s=retry_after_s)
        backend.refresh(now_s)
