"""The admin API as an ASGI application: who may call it, how its bodies are read and its errors told.

It shares the database with the data path and nothing else: calls have threads of their own, and an administrator's slow
report neither delays a request nor makes the database count as lost.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import orjson
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from argosy.errors import ArgosyError, ConfigError, InvalidRequest, PayloadTooLarge, StoreUnavailable, Unauthorized
from argosy.fleet.gateway.config_operations import MIN_MASTER_KEY_CHARACTERS
from argosy.fleet.gateway.endpoints import no_such_path
from argosy.fleet.gateway.key_hash import KeyHasher, redacted
from argosy.fleet.gateway.replies import error_body
from argosy.fleet.gateway.store_calls import StoreCalls
from argosy.fleet.gateway.tenancy_groups import GroupRecords
from argosy.fleet.gateway.tenancy_keys import KeyRecords
from argosy.server.auth import presented_key
from argosy.server.body import parse_json
from argosy.server.errors import error_response, http_exception_response, internal_error_bytes, json_response
from argosy.server.protocol.errors import validate

Result = TypeVar("Result")
Model = TypeVar("Model", bound=BaseModel)
logger = logging.getLogger("argosy.gateway.admin")
MAX_BODY_BYTES = 2**20


class ModelAdmin(Protocol):
    """The models of a gateway, as an administrator sees them."""

    def models(self) -> Sequence[Mapping[str, Any]]:
        """Each with its name, backends and prices, and no secret."""
        ...


async def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Admin:
    """What the handlers work with.

    Attributes:
        calls: those of the admin API alone.
        master_key: sent with every call as a bearer token; 16 characters or more.
        models: None where they are not to be seen here.
        on_change: awaited after each change, so that this process heeds it at once; others do within their poll.
    """

    calls: StoreCalls
    keys: KeyRecords
    groups: GroupRecords
    hasher: KeyHasher
    master_key: str = field(repr=False)
    models: ModelAdmin | None = None
    on_change: Callable[[], Awaitable[None]] = _nothing

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a master key that could be guessed."""
        if len(self.master_key) < MIN_MASTER_KEY_CHARACTERS:
            raise ConfigError(f"the master key must have at least {MIN_MASTER_KEY_CHARACTERS} characters")

    async def read(self, work: Callable[[], Result]) -> Result:
        """The result of a call of the database."""
        return await self.calls.run(work)

    async def write(self, work: Callable[[], Result]) -> Result:
        """The result of a call that changes tenants; this process knows of it on return."""
        result = await self.calls.run(work)
        with contextlib.suppress(StoreUnavailable):
            await self.on_change()
        return result


Handler = Callable[[Admin, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """One call. With `for_own_key`, a key may make it for itself, without the master key."""

    method: str
    path: str
    handler: Handler
    for_own_key: bool = False


def create_admin_app(admin: Admin, routes: Sequence[AdminRoute] | None = None) -> Starlette:
    """The application; its routes are those of `admin_routes` unless given."""
    if routes is None:
        from argosy.fleet.gateway.admin_routes import ROUTES

        routes = ROUTES
    endpoints = [Route(route.path, _endpoint(admin, route), methods=[route.method]) for route in routes]
    app = Starlette(routes=endpoints, exception_handlers={HTTPException: _on_http_exception})
    app.router.redirect_slashes = False
    return app


def json_of(document: Any, status: int = 200) -> Response:
    """A JSON response."""
    return json_response(orjson.dumps(document), status)


async def body_of(request: Request, model: type[Model]) -> Model:
    """The request's body as a `model`. Raises `InvalidRequest` or `PayloadTooLarge`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise PayloadTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes, the limit of the admin API")
    document = parse_json(bytes(body))
    try:
        orjson.dumps([[[[document]]]])  # as deep as the lists that will show it
    except TypeError:
        raise InvalidRequest("the body is nested too deeply") from None
    return validate(model, document)


def query_of(request: Request, *known: str) -> dict[str, str]:
    """The query's parameters. Raises `InvalidRequest` for an unknown or repeated one."""
    parameters: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise InvalidRequest(f"{name[:80]} is not a parameter here; there are {', '.join(known) or 'none'}")
        if name in parameters:
            raise InvalidRequest(f"{name} is given twice", param=name)
        parameters[name] = value
    return parameters


def own_key_of(admin: Admin, request: Request) -> str | None:
    """The key that makes the call, or None if that is the master key."""
    key = presented_key(request.headers)
    return None if key is None or _is_master(admin, key) else key


def _endpoint(admin: Admin, route: AdminRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            _authorise(admin, route, presented_key(request.headers))
            response = await route.handler(admin, request)
        except ArgosyError as error:
            error.message, error.param = redacted(error.message), None if error.param is None else redacted(error.param)
            response = error_response(error)
        except Exception:
            request_id = f"req-{secrets.token_hex(8)}"
            logger.exception("admin call failed", extra={"fields": {"request": request_id, "route": route.path}})
            response = json_response(internal_error_bytes(request_id), 500)
        response.headers["cache-control"] = "private, no-store"
        response.headers["vary"] = "Authorization"
        return response

    return endpoint


def _authorise(admin: Admin, route: AdminRoute, key: str | None) -> None:
    if key is None:
        raise Unauthorized("the admin API needs the master key: send it as Authorization: Bearer …")
    if not _is_master(admin, key) and not route.for_own_key:
        raise Unauthorized(f"the key {admin.hasher.describe(key)} is not the master key")


def _is_master(admin: Admin, key: str) -> bool:
    return admin.hasher.matches(key, admin.hasher.digest(admin.master_key))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = redacted(request.url.path)
    if error.status_code == 404:
        return json_response(error_body(no_such_path(path), "not_found_error", None, "not_found"), 404)
    return http_exception_response(error, request.method, path)
