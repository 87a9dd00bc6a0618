"""One request on its way through the gateway, and what is known of it: the record that every stage reads and fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from argosy.fleet.policies.ledger import Lease
from argosy.fleet.policies.limits import Limits, Scope
from argosy.fleet.policies.outcomes import Outcome, RequestDropped

Headers = Mapping[bytes, bytes]
"""Request headers by lower-case name; the values of a name that came several times are joined with commas."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a path of the data API does.

    Attributes:
        route: the path template, a bounded label.
        kind: "chat", "completion", "embedding", "responses", "messages" or "passthrough" (rerank, score, tokenize, …).
        replayable: whether a request may be sent again when nothing of an answer came: it leaves no state behind.
        takes_include_usage: whether `stream_options.include_usage` is a field of its body.
    """

    route: str
    kind: str
    replayable: bool = True
    takes_include_usage: bool = False


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request, as authentication found out.

    Attributes:
        key_id: names the key without telling it, fit for logs and metrics' exemplars.
        tenant: id of the organisation; separates caches, queues, usage.
        scopes: the limits that apply, outermost last: key, team, organisation.
        models: names it may ask for; None for every one.
        aliases: names that stand for others, for this key only.
        routes: route templates it may call; None for every one.
        priority: name of its priority class, "" for the default.
        weight: its share in the fair queue.
        tier: for rules of model choice.
        cache_salt: separates its prefix cache from those of others on shared backends, "" for none.
        is_admin: whether it may call the admin API.
    """

    key_id: str
    tenant: str
    team: str = ""
    scopes: tuple[tuple[Scope, Limits], ...] = ()
    models: frozenset[str] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    routes: frozenset[str] | None = None
    priority: str = ""
    weight: float = 1.0
    tier: str = ""
    cache_salt: str = ""
    is_admin: bool = False


@dataclass(slots=True)
class TokenUsage:
    """Tokens of a request.

    Attributes:
        cached_tokens: those of `input_tokens` that the backend had in its prefix cache.
        is_reported: the backend said so; False means counted or estimated here.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    is_reported: bool = False


class AttemptResult(Enum):
    """How one call of a backend ended, for breakers, health and retries."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    THROTTLED = "throttled"
    SERVER_ERROR = "server_error"
    CONNECT_ERROR = "connect_error"
    BUSY = "busy"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    CUT = "cut"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and what became of it. Made when its head and body have arrived; belongs to the pipeline's task.

    Times are in seconds of the pipeline's clock. Stages may fill in what is theirs; observers only read.

    Attributes:
        endpoint, headers, body, document: what was asked; `document` is the decoded body, not to be changed.
        request_id: the client's or a new one; unique enough for logs, not to be trusted as a key of anything.
        exchange_id: unique in this process, made here: key of leases, tickets, usage records.
        model: as the client wrote it, unbounded; `pool` and `backend_id` are bounded.
        pool: name of the pool of backends that answers, after aliases, rules and fallbacks.
        prompt_tokens, expected_output_tokens, max_output_tokens: estimates made before admission; the last is None if the
            client set no bound.
        affinity_key: conversation, session or user, "" if none is known.
        deadline_s: on the pipeline's clock, None for none.
        traceparent, tracestate: to be sent upstream.
        lease: what the ledger granted; None before, and for good if it refused.
        status: of the answer; 499 if the client left before its end.
        first_byte_s, queued_s, dispatched_s, finished_s: 0.0 until it happened.
        attempts: calls of backends; `fallbacks`: pools that failed before the last one.
        usage: what the backend reported or what was counted, also of an answer that was cut off.
        response_headers: of the gateway's own, for the answer.
        token_blocks: by pool, hashes of the prompt's blocks of tokens; () if they cannot be known.
        tags: what stages want logged, bounded in number and size.
        end_early: ends the request with an error although it runs, from admission to its end; for displacement and drain.
        detail: one line on what went wrong, never with content of the prompt or a secret.
    """

    endpoint: Endpoint
    method: str
    target: str
    headers: Headers
    body: bytes
    request_id: str
    exchange_id: str
    received_s: float
    client_address: str = ""
    document: Any = None
    model: str = ""
    stream: bool = False
    principal: Principal | None = None
    pool: str = ""
    backend_id: str = ""
    prompt_tokens: int = 0
    expected_output_tokens: int = 0
    max_output_tokens: int | None = None
    affinity_key: str = ""
    deadline_s: float | None = None
    traceparent: str = ""
    tracestate: str = ""
    lease: Lease | None = None
    outcome: Outcome | None = None
    status: int = 0
    queued_s: float = 0.0
    dispatched_s: float = 0.0
    first_byte_s: float = 0.0
    finished_s: float = 0.0
    attempts: int = 0
    fallbacks: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    finish_reason: str = ""
    detail: str = ""
    response_headers: dict[str, str] = field(default_factory=dict)
    token_blocks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    end_early: Callable[[RequestDropped], None] | None = None

    @property
    def caller(self) -> Principal:
        """The principal, once authentication has passed."""
        assert self.principal is not None, "authentication comes first"
        return self.principal
