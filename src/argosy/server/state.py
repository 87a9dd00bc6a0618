"""What the handlers of one server share, and what is known of one request."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from argosy.engine.client import EngineClient
from argosy.errors import EngineUnavailable, UnknownModel
from argosy.observe.metrics import EngineMetrics, HttpMetrics
from argosy.observe.traceparent import TraceParent
from argosy.server.config import ServerConfig
from argosy.server.generation import Generation
from argosy.server.side_work import SideWork


@dataclass(slots=True, eq=False)
class ServerState:
    """Lives as long as the application. Mutated on the event loop only.

    Attributes:
        clock: seconds, monotonic.
        created_s: Unix time of the start, shown as the models' creation time.
        draining: set once the server has been told to stop.
        side_work: the threads for what would hold up the event loop.
    """

    engine: EngineClient
    config: ServerConfig
    engine_metrics: EngineMetrics
    http_metrics: HttpMetrics
    clock: Callable[[], float]
    created_s: int
    draining: bool = False
    in_flight: int = 0
    side_work: SideWork = field(default_factory=SideWork)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names that requests may use."""
        return self.config.served_model_names or (self.engine.info.model_name,)

    def resolve_model(self, name: str | None) -> str:
        """The name an answer carries.

        Raises:
            UnknownModel: `name` is not served here.
        """
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            near = difflib.get_close_matches(name[:200], self.model_names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"this server has {', '.join(self.model_names)}"
            shown = name if len(name) <= 100 else name[:99] + "…"
            raise UnknownModel(f"the model {shown!r} does not exist; {hint}", param="model")
        return name

    def check_open(self) -> None:
        """Raise `EngineUnavailable` if no request can be taken at this moment."""
        if self.draining:
            raise EngineUnavailable("the server is shutting down and takes no requests")
        if not self.engine.is_alive:
            raise EngineUnavailable("the engine has died; the server must be restarted")


@dataclass(slots=True, eq=False)
class RequestRecord:
    """What the log will say of one HTTP request; handlers fill it in. Times are of `ServerState.clock`.

    Attributes:
        trace: the caller's place in a distributed trace, from `traceparent`.
    """

    request_id: str
    started_s: float
    trace: TraceParent | None = None
    body_bytes: int = 0
    completion_id: str | None = None
    model: str | None = None
    user: str | None = None
    tags: dict[str, Any] = field(default_factory=dict)
    stream: bool | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    first_token_s: float | None = None
    error: str | None = None
    client_gone: bool = False

    def take(self, generation: Generation) -> None:
        """Copy the token counts."""
        self.prompt_tokens = generation.num_prompt_tokens
        self.cached_tokens = generation.num_cached_tokens
        self.output_tokens = generation.num_output_tokens
        self.first_token_s = generation.first_token_s


def state_of(request: Request) -> ServerState:
    """The server's state."""
    state: ServerState = request.app.state.server
    return state


def record_of(request: Request) -> RequestRecord:
    """The record of this request, placed by the middleware."""
    record: RequestRecord = request.scope["argosy.record"]
    return record
