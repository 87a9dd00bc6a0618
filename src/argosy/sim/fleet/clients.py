"""Clients: they send, wait, lose patience, and send again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from argosy.errors import ConfigError
from argosy.fleet.policies.retries import RetryBudget, RetryPolicy
from argosy.sim.event_loop import EventLoop
from argosy.sim.feeder import Feeder
from argosy.sim.outcome import Outcome, RequestOutcome
from argosy.sim.workload.trace_request import Source, TraceRequest


@dataclass(frozen=True, slots=True)
class ClientBehaviour:
    """What clients do on their own side of the gateway.

    Attributes:
        timeout_s: patience with each request, for those that the trace gives none; None waits for ever.
        retry: how they send again what failed or timed out. Without a budget this is what keeps an overloaded fleet down.
        budget_ratio: their retries per request, as in `RetryBudget`; None for no budget.
    """

    timeout_s: float | None = None
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(max_retries=0))
    budget_ratio: float | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if self.timeout_s is not None and not self.timeout_s > 0.0:
            raise ConfigError(f"timeout_s of clients must be above 0, got {self.timeout_s}")


@dataclass(slots=True)
class _Tries:
    """A request of the source, and how often it has failed."""

    original: TraceRequest
    num_failed: int = 0


class Clients:
    """Sends the requests of `source` by `submit` when their time has come.

    A request that is sent again is one of its own, with another id ("q7~1", "q7~2", …) and a time of arrival of its own. The
    source hears of the end of each of its requests once, after the last try. `on_outcome` must be told of every outcome.

    Attributes:
        num_sent: requests sent, those sent again included; num_sent_again: only those.
    """

    def __init__(
        self,
        loop: EventLoop,
        source: Source,
        submit: Callable[[TraceRequest], None],
        behaviour: ClientBehaviour | None = None,
        *,
        rng: Random,
    ) -> None:
        """Schedules the first arrival; `rng` draws the waits before retries."""
        self.num_sent = 0
        self.num_sent_again = 0
        self._loop = loop
        self._submit = submit
        self._behaviour = ClientBehaviour() if behaviour is None else behaviour
        self._rng = rng
        ratio = self._behaviour.budget_ratio
        self._budget = None if ratio is None else RetryBudget(ratio)
        self._tries: dict[str, _Tries] = {}
        self._feeder = Feeder(loop, source, lambda request: self._send(request, _Tries(request)))
        self._feeder.start()

    def on_outcome(self, outcome: RequestOutcome) -> None:
        """A request has ended: it is sent again, or the source hears of it and may go on."""
        tries = self._tries.pop(outcome.request.request_id)
        now_s = self._loop.now_s()
        if outcome.outcome is not Outcome.FINISHED:
            tries.num_failed += 1
            wait_s = self._behaviour.retry.wait_s(
                tries.num_failed,
                self._budget,
                self._rng,
                first_byte_sent=False,
            )
            if wait_s is not None:
                self.num_sent_again += 1
                again = dataclasses.replace(
                    tries.original,
                    request_id=f"{tries.original.request_id}~{tries.num_failed}",
                    arrival_s=now_s + wait_s,
                    output_segments=tries.original.answer,
                )
                self._loop.at(again.arrival_s, lambda: self._send(again, tries))
                return
        self._feeder.finished(tries.original)

    def _send(self, request: TraceRequest, tries: _Tries) -> None:
        if request.timeout_s is None and self._behaviour.timeout_s is not None:
            request = dataclasses.replace(request, timeout_s=self._behaviour.timeout_s)
        self.num_sent += 1
        if self._budget is not None and not tries.num_failed:
            self._budget.on_request()
        self._tries[request.request_id] = tries
        self._submit(request)
