"""The stages of the pipeline, as small protocols. Whoever implements one knows nothing of sockets.

Order for one request:

    authenticate -> choose -> estimate -> acquire -> enter the queue -> pick -> call -> settle -> leave -> record

A stage refuses by raising an `ArgosyError`: `Unauthorized`, `PermissionDenied`, `UnknownModel`, `RequestDropped`. Whatever a
stage has granted is given back by the pipeline on every way out, the client's leaving included.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from argosy.fleet.gateway.exchange import AttemptResult, Exchange, Principal
from argosy.fleet.gateway.upstream import UpstreamPool
from argosy.fleet.policies.ledger import Denial, Lease
from argosy.fleet.policies.limits import Demand, Limits, Scope


class Authenticator(Protocol):
    """Finds out who sends a request."""

    async def authenticate(self, key: str | None, exchange: Exchange) -> Principal:
        """The principal that `key` belongs to; None if the request carries none.

        Raises:
            Unauthorized: there is no such key, or it is blocked or expired. Never repeats the key.
            RequestDropped: the store that knows it does not answer (`FAILED_STORE`).
        """
        ...


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request is to be answered.

    Attributes:
        pool: name of a pool of backends.
        edits: members of the request body to be set, JSON text by name (a degradation such as a lower `max_tokens`).
    """

    pool: str
    edits: Mapping[str, bytes] = field(default_factory=dict)


class ModelChooser(Protocol):
    """Turns the model a client asked for into a pool of backends."""

    def choose(self, exchange: Exchange) -> Route:
        """The route of a request whose `model`, `document` and `principal` are known.

        Raises:
            UnknownModel: nobody serves the model, or this caller may not know of it.
        """
        ...

    def fallback(self, exchange: Exchange, failed: Route, result: AttemptResult, *, context_too_long: bool) -> Route | None:
        """Where to go when `failed` gave no answer and will not be tried again; None if that is final."""
        ...

    def visible_models(self, principal: Principal) -> Sequence[str]:
        """Names that `principal` may ask for, in the order of the configuration."""
        ...


class Estimator(Protocol):
    """Guesses before admission what a request will take, and learns from what it took."""

    def estimate(self, exchange: Exchange, route: Route) -> Demand:
        """The demand to be reserved. Fills in `prompt_tokens` and `expected_output_tokens`."""
        ...

    def actual(self, exchange: Exchange, route: Route) -> Demand:
        """What it took in the end, from `exchange.usage`; learns from it."""
        ...


class AdmissionLedger(Protocol):
    """Grants all dimensions of all scopes or nothing (the asynchronous face of `policies.ledger.Ledger`)."""

    async def acquire(self, scopes: Sequence[tuple[Scope, Limits]], demand: Demand, *, now_s: float) -> Lease | Denial:
        """A lease, or why there is none."""
        ...

    async def settle(self, lease: Lease, actual: Demand, *, now_s: float) -> None:
        """Replace the estimate by what was used, and release."""
        ...

    async def release(self, lease: Lease, *, now_s: float) -> None:
        """Give back what was not used. Idempotent."""
        ...


class Ticket(Protocol):
    """A place among the requests in flight."""

    def leave(self, served_tokens: int) -> None:
        """Give the place back. Idempotent; wakes who waits for it."""
        ...


class Dispatcher(Protocol):
    """Holds requests back until their pool has capacity for them, fairly."""

    async def enter(self, exchange: Exchange, route: Route) -> Ticket:
        """Wait for a place. Cancellation takes the request out of the queue.

        Raises:
            RequestDropped: the queue is full, the request waited too long, or was displaced.
        """
        ...


@dataclass(frozen=True, slots=True)
class Upstream:
    """A backend as the data path sees it.

    Attributes:
        backend_id: unique over all pools; a bounded label.
        model: name that the backend knows the model by; "" to send what the client wrote.
        authorization: value of its Authorization header, b"" for none.
        path_prefix: comes before the request's path, such as b"/openai".
        takes_cache_salt: whether `cache_salt` may be put into a body.
    """

    backend_id: str
    pool: UpstreamPool
    model: str = ""
    authorization: bytes = b""
    path_prefix: bytes = b""
    takes_cache_salt: bool = False


class Placement(Protocol):
    """One call of one backend, booked on it until it ends."""

    @property
    def upstream(self) -> Upstream:
        """The backend."""
        ...

    def first_byte(self, now_s: float) -> None:
        """The answer has begun."""
        ...

    def keep_alive(self, now_s: float) -> None:
        """A sign of life."""
        ...

    def finish(self, result: AttemptResult, now_s: float, *, latency_s: float, retry_after_s: float | None) -> None:
        """The call is over; tells breaker, health and routing. Idempotent."""
        ...


class Backends(Protocol):
    """Picks backends: routing, health and breakers behind one face."""

    def prepare(self, exchange: Exchange, route: Route) -> Awaitable[None] | None:
        """To be awaited before `pick`; None if there is nothing to wait for. Takes a bounded time and raises nothing."""
        ...

    def pick(self, exchange: Exchange, route: Route, tried: frozenset[str], now_s: float) -> Placement:
        """Choose a backend of the route's pool and book the request on it.

        Raises:
            RequestDropped: none may take it (`REJECTED_NO_BACKEND`).
        """
        ...

    def state(self, pool: str, now_s: float) -> str:
        """ "serving" if a backend of the pool would take a request at this moment, else why none would."""
        ...


class UsageSink(Protocol):
    """Takes the record of a finished request."""

    def record(self, exchange: Exchange) -> None:
        """Take it over. Returns at once: what is slow happens elsewhere."""
        ...


class ExchangeObserver(Protocol):
    """Sees requests begin and end: metrics, traces, access log. Its methods return at once and raise nothing."""

    def started(self, exchange: Exchange) -> None:
        """Head and body have arrived."""
        ...

    def first_byte(self, exchange: Exchange) -> None:
        """The first byte of the answer came from the backend."""
        ...

    def finished(self, exchange: Exchange) -> None:
        """The last byte was sent, or the client left."""
        ...
