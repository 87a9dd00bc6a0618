"""What the gateway answers about its own health. Nothing here waits for a store, a backend or a lock.

Live says whether a restart would help, ready whether requests should be sent here. Neither follows the store by itself: a
database that blinks must not restart every gateway, nor take all of them out of service while they could go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import orjson

LIVE_PATHS = frozenset(
    {"/health", "/live", "/livez", "/healthz", "/ping", "/health/live", "/health/liveliness", "/health/liveness"}
)
READY_PATHS = frozenset({"/ready", "/readyz", "/health/ready", "/health/readiness"})
HEALTH_PATHS = LIVE_PATHS | READY_PATHS


@dataclass(slots=True)
class GatewayHealth:
    """Answers the health paths. Its fields are written by the data path and read from any thread.

    Attributes:
        loop_stall_limit_s: silence of the data path's event loop beyond which live answers 503.
        serve_on_store_loss: whether ready holds while the store is away.
        is_draining: whether the process is on its way out.
        is_started: whether the first round of probes is over.
        store_is_up: whether the last thing asked of the store was answered.
        healthy_count: backends that probes find ready; unhealthy_count: those not, or with a breaker not closed;
            unprobed_count: those of a kind that is not probed, of which only their breaker speaks, and it is closed.
        breakers: by backend, state of those that are not closed. Replaced as a whole.
        beat_at_s: when the data path's event loop was last seen, on `clock`.
    """

    clock: Callable[[], float]
    serve_on_store_loss: bool = True
    loop_stall_limit_s: float = 60.0
    is_draining: bool = False
    is_started: bool = False
    store_is_up: bool = True
    healthy_count: int = 0
    unhealthy_count: int = 0
    unprobed_count: int = 0
    breakers: Mapping[str, str] = field(default_factory=dict)
    beat_at_s: float | None = None

    def beat(self) -> None:
        """The data path's event loop is alive."""
        self.beat_at_s = self.clock()

    def answer(self, path: str) -> tuple[int, bytes] | None:
        """Status and JSON body for a health path, None for any other."""
        if path in READY_PATHS:
            reason = self._not_ready()
        elif path in LIVE_PATHS:
            reason = self._not_live()
        else:
            return None
        body: dict[str, object] = {"status": reason or "ok"}
        if path == "/health":
            body |= {
                "healthy_count": self.healthy_count,
                "unhealthy_count": self.unhealthy_count,
                "unprobed_count": self.unprobed_count,
                "breakers": dict(self.breakers),
            }
        return 200 if reason is None else 503, orjson.dumps(body)

    def _not_live(self) -> str | None:
        beat_at_s = self.beat_at_s
        silent_s = 0.0 if beat_at_s is None else self.clock() - beat_at_s
        return None if silent_s <= self.loop_stall_limit_s else f"the event loop has been silent for {silent_s:.0f} s"

    def _not_ready(self) -> str | None:
        if self.is_draining:
            return "draining"
        if not self.is_started:
            return "starting"
        if not self.store_is_up and not self.serve_on_store_loss:
            return "the store is away"
        return self._not_live()
