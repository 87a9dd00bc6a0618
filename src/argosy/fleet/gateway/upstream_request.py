"""What is sent to a backend for a client's request: the client's bytes with as little changed as must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from argosy.fleet.gateway.body_edit import (
    Member,
    edit_members,
    insert_members,
    is_sole_member,
    top_level_members,
)
from argosy.fleet.gateway.endpoints import client_asks_for_usage
from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.stages import Route, Upstream

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Of the client's: what belongs to this connection or is a secret, what the gateway writes itself, and what would let a
# client choose the backend or the address from which a backend fetches KV blocks.
_NOT_SENT_ON = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"accept-encoding",
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"cookie",
    b"x-request-id",
    b"traceparent",
    b"tracestate",
    b"x-gateway-destination-endpoint",
    b"x-gateway-destination-endpoint-subset",
    b"x-gateway-model-name-rewrite",
    b"x-prefiller-host-port",
    b"x-encoder-hosts-ports",
    b"x-kv-cache-source-host-port",
    b"x-data-parallel-host-port",
}
# Of the backend's: what belongs to its connection, what the gateway writes itself, and limits that are not the client's.
_NOT_SENT_BACK = HOP_BY_HOP | {b"content-length", b"date", b"x-request-id", b"set-cookie", b"alt-svc"}
_RATE_LIMIT = b"x-ratelimit-"


def upstream_request(exchange: Exchange, route: Route, upstream: Upstream) -> bytes:
    """Head and body of the request to `upstream`."""
    body = upstream_body(exchange, route, upstream)
    pool = upstream.pool
    named = _named_in_connection(exchange.headers)
    lines = [
        b"%b %b%b HTTP/1.1\r\nhost: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n"
        % (
            exchange.method.encode(),
            upstream.path_prefix,
            exchange.target.encode("latin-1"),
            pool.host_header,
            len(body),
            exchange.request_id.encode(),
        )
    ]
    for name, value in exchange.headers.items():
        if name not in _NOT_SENT_ON and name not in named:
            lines.append(b"%b: %b\r\n" % (name, value))
    if upstream.authorization:
        lines.append(b"authorization: %b\r\n" % upstream.authorization)
    if exchange.traceparent:
        lines.append(b"traceparent: %b\r\n" % exchange.traceparent.encode())
        if exchange.tracestate:
            lines.append(b"tracestate: %b\r\n" % exchange.tracestate.encode("latin-1"))
    lines += (b"\r\n", body)
    return b"".join(lines)


def upstream_body(exchange: Exchange, route: Route, upstream: Upstream) -> bytes:
    """The client's body with the model's name for this backend, a cache salt that is the tenant's and not the client's, the
    usage that accounting needs, and the route's edits."""
    body, document = exchange.body, exchange.document
    changes: dict[str, bytes] = {}
    model = upstream.model or exchange.model
    if model != exchange.model or not is_sole_member(body, "model"):
        changes["model"] = orjson.dumps(model)
    if adds_usage(exchange):
        changes["stream_options"] = b'{"include_usage":true}'
    changes.update(route.edits)
    salt = exchange.caller.cache_salt if upstream.takes_cache_salt else ""
    if salt:
        changes["cache_salt"] = orjson.dumps(salt)
    removals = ("cache_salt",) if "cache_salt" in document and not salt else ()
    if not changes and not removals:
        return body
    if not removals and document.keys().isdisjoint(changes):
        return insert_members(body, changes)
    members = top_level_members(body)
    if "stream_options" in changes and "stream_options" not in route.edits:
        changes["stream_options"] = _with_usage(body, members, document.get("stream_options"))
    return edit_members(body, members, changes, removals)


def adds_usage(exchange: Exchange) -> bool:
    """Whether the backend is asked for usage that the client did not ask for, and is not to be shown."""
    return exchange.stream and exchange.endpoint.takes_include_usage and not client_asks_for_usage(exchange.document)


def _with_usage(body: bytes, members: list[Member], options: Any) -> bytes:
    if not isinstance(options, dict):
        return b'{"include_usage":true}'
    last = [member for member in members if member.name == "stream_options"][-1]
    text = body[last.value_begin : last.value_end]
    return edit_members(text, top_level_members(text), {"include_usage": b"true"})


def client_headers(
    headers: list[tuple[bytes, bytes]], added: Mapping[str, str], request_id: str
) -> list[tuple[bytes, bytes]]:
    """Headers of the client's answer, from those of the backend's and the gateway's own, which win.

    Answers to a key belong to nobody else: no cache may keep them.
    """
    own = {name.encode(): value.encode("latin-1") for name, value in added.items()}
    own[b"x-request-id"] = request_id.encode()
    own[b"cache-control"] = b"private, no-store"
    own[b"vary"] = b"Authorization"
    named = _named_in_connection(dict(headers))
    kept = [
        pair
        for pair in headers
        if pair[0] not in _NOT_SENT_BACK
        and pair[0] not in own
        and pair[0] not in named
        and not pair[0].startswith(_RATE_LIMIT)
    ]
    return [*kept, *own.items()]


def _named_in_connection(headers: Mapping[bytes, bytes]) -> frozenset[bytes]:
    """Headers that a Connection header declares to be for this hop alone (RFC 9110, section 7.6.1)."""
    value = headers.get(b"connection")
    if value is None or value in (b"keep-alive", b"close", b"Keep-Alive"):
        return frozenset()
    return frozenset(name.strip().lower() for name in value.split(b","))
