"""The calls of the admin API, under the names that LiteLLM made known."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from argosy.errors import InvalidRequest
from argosy.fleet.gateway import admin_bodies as bodies
from argosy.fleet.gateway.admin_api import Admin, AdminRoute, Handler, body_of, json_of, own_key_of, query_of
from argosy.fleet.gateway.admin_views import page_view, view
from argosy.fleet.gateway.budgets import parse_duration_s
from argosy.fleet.gateway.key_hash import KEY_PREFIX
from argosy.fleet.gateway.spend import as_csv, check_day, spend_logs, spend_report
from argosy.fleet.gateway.tenancy_records import BUDGET, KEY, ORG, TEAM, USER, Kind
from argosy.server.protocol.base import RequestModel


async def key_generate(admin: Admin, request: Request) -> Response:
    """A key, shown this once."""
    body = await body_of(request, bodies.KeyGenerate)
    columns = body.columns()
    issued = await admin.write(lambda: admin.keys.create(columns, body.key))
    return json_of({"key": issued.key, **view(KEY, issued.info)})


async def key_regenerate(admin: Admin, request: Request) -> Response:
    """Another secret for a key, shown this once."""
    body = await body_of(request, bodies.KeyRegenerate)
    grace_s = 0.0 if body.grace_period is None else parse_duration_s(body.grace_period, "grace_period")
    issued = await admin.write(lambda: admin.keys.rotate(body.key, grace_s, body.new_key))
    return json_of({"key": issued.key, **view(KEY, issued.info)})


async def key_update(admin: Admin, request: Request) -> Response:
    """Other limits, rights, belongings, expiry."""
    body = await body_of(request, bodies.KeyUpdate)
    columns = body.columns()
    return json_of(view(KEY, await admin.write(lambda: admin.keys.update(body.key, columns))))


def _key_blocker(blocked: bool) -> Handler:
    async def block(admin: Admin, request: Request) -> Response:
        body = await body_of(request, bodies.KeyName)
        return json_of(view(KEY, await admin.write(lambda: admin.keys.set_blocked(body.key, blocked))))

    return block


async def key_delete(admin: Admin, request: Request) -> Response:
    """All of them or none."""
    body = await body_of(request, bodies.KeyDelete)
    return json_of({"deleted_keys": await admin.write(lambda: admin.keys.delete(body.keys))})


async def key_info(admin: Admin, request: Request) -> Response:
    """A key, its spend, and old secrets that are still valid. A key may ask for itself."""
    own, asked = own_key_of(admin, request), query_of(request, "key").get("key")
    if asked is not None and asked.startswith(KEY_PREFIX):
        raise InvalidRequest("key takes the id of a key, not the key: addresses end up in logs", param="key")
    if own is not None and asked is not None:
        raise InvalidRequest("a key may ask for itself only; leave the parameter key out", param="key")
    if own is not None:
        return json_of({"info": view(KEY, await admin.read(lambda: admin.keys.own_info(own)))})
    if asked is None:
        raise InvalidRequest("key is required: the id of the key", param="key")
    return json_of({"info": view(KEY, await admin.read(lambda: admin.keys.info(asked)))})


async def key_list(admin: Admin, request: Request) -> Response:
    """One page of keys."""
    query = query_of(request, "page", "size", "team_id", "organization_id", "user_id", "key_alias")
    page, size = _page_of(query)
    where = {"team_id": query.get("team_id"), "org_id": query.get("organization_id"), "user_id": query.get("user_id")}
    found = await admin.read(lambda: admin.keys.page(page, size, **where, alias=query.get("key_alias")))
    return json_of(page_view(KEY, found, "keys"))


def _creator(kind: Kind, model: type[bodies.Body], id_field: str) -> Handler:
    async def create(admin: Admin, request: Request) -> Response:
        body = await body_of(request, model)
        columns = body.columns(id_field)
        record_id = getattr(body, id_field)
        return json_of(view(kind, await admin.write(lambda: admin.groups.create(kind, columns, record_id))))

    return create


def _updater(kind: Kind, model: type[bodies.Body], id_field: str) -> Handler:
    async def update(admin: Admin, request: Request) -> Response:
        body = await body_of(request, model)
        columns = body.columns(id_field)
        record_id = getattr(body, id_field)
        return json_of(view(kind, await admin.write(lambda: admin.groups.update(kind, record_id, columns))))

    return update


def _informer(kind: Kind, id_field: str) -> Handler:
    async def info(admin: Admin, request: Request) -> Response:
        record_id = query_of(request, id_field).get(id_field)
        if record_id is None:
            raise InvalidRequest(f"{id_field} is required", param=id_field)
        return json_of(view(kind, await admin.read(lambda: admin.groups.info(kind, record_id))))

    return info


def _lister(kind: Kind, member: str) -> Handler:
    async def list_all(admin: Admin, request: Request) -> Response:
        page, size = _page_of(query_of(request, "page", "size"))
        return json_of(page_view(kind, await admin.read(lambda: admin.groups.page(kind, page, size)), member))

    return list_all


def _deleter(kind: Kind, model: type[RequestModel], ids_field: str) -> Handler:
    async def delete(admin: Admin, request: Request) -> Response:
        ids = getattr(await body_of(request, model), ids_field)
        record_ids = [ids] if isinstance(ids, str) else ids
        num_keys = await admin.write(lambda: admin.groups.delete(kind, record_ids))
        return json_of({"deleted": record_ids, "deleted_keys_count": num_keys})

    return delete


async def team_member_add(admin: Admin, request: Request) -> Response:
    """A user in a team."""
    body = await body_of(request, bodies.TeamMemberAdd)
    member = body.member
    row = await admin.write(lambda: admin.groups.add_member(body.team_id, member.user_id, member.role))
    return json_of(view(TEAM, row))


async def spend_logs_call(admin: Admin, request: Request) -> Response:
    """Requests one by one, the latest first; `start_date` and `end_date` are UTC days, included."""
    query = query_of(request, "page", "size", "start_date", "end_date", *_FILTERS, "format")
    page, size = _page_of(query)
    start, end = check_day(query.get("start_date"), "start_date"), check_day(query.get("end_date"), "end_date")
    start_s = None if start is None else _midnight_s(start)
    end_s = None if end is None else _midnight_s(end, days=1)
    where = _filters(query)
    store = admin.calls.store
    rows = await admin.read(lambda: spend_logs(store, start_s=start_s, end_s=end_s, where=where, page=page, size=size))
    return _table(rows, query)


async def spend_report_call(admin: Admin, request: Request) -> Response:
    """Sums by `group_by`, a comma-separated list of day, model, api_key, team, organization; `day` unless given."""
    query = query_of(request, "start_date", "end_date", "group_by", *_FILTERS, "format")
    groups = [group for group in query.get("group_by", "day").split(",") if group]
    start, end = check_day(query.get("start_date"), "start_date"), check_day(query.get("end_date"), "end_date")
    store, where = admin.calls.store, _filters(query)
    rows = await admin.read(lambda: spend_report(store, groups, start_day=start, end_day=end, where=where))
    return _table(rows, query)


async def model_info(admin: Admin, request: Request) -> Response:
    """All models."""
    query_of(request)
    if admin.models is None:
        raise InvalidRequest("only a running gateway lists its models", code="not_supported")
    return json_of({"data": list(admin.models.models())})


async def model_change(admin: Admin, request: Request) -> Response:
    """Refused, whatever the body: a model that is not in the file would be gone after the next reload."""
    del admin, request
    remedy = "models stand in the configuration file: change it there, the gateway reads it again by itself"
    raise InvalidRequest(remedy, code="not_supported")


_FILTERS: Mapping[str, str] = {"api_key": "key_id", "team_id": "team_id", "organization_id": "org_id", "model": "model"}


def _filters(query: Mapping[str, str]) -> dict[str, str | None]:
    if query.get("api_key", "").startswith(KEY_PREFIX):
        raise InvalidRequest("api_key takes the id of a key, not the key: addresses end up in logs", param="api_key")
    return {column: query.get(name) for name, column in _FILTERS.items()}


def _page_of(query: Mapping[str, str]) -> tuple[int, int]:
    numbers = []
    for name, default in (("page", "1"), ("size", "100")):
        text = query.get(name, default)
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise InvalidRequest(f"{name} must be a whole number", param=name)
        numbers.append(int(text))
    return numbers[0], numbers[1]


def _table(rows: list[dict[str, Any]], query: Mapping[str, str]) -> Response:
    form = query.get("format", "json")
    if form not in ("json", "csv"):
        raise InvalidRequest("format must be json or csv", param="format")
    return json_of(rows) if form == "json" else Response(as_csv(rows), media_type="text/csv; charset=utf-8")


def _midnight_s(day: str, days: int = 0) -> float:
    return (datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(days=days)).timestamp()


ROUTES = (
    AdminRoute("POST", "/key/generate", key_generate),
    AdminRoute("POST", "/key/update", key_update),
    AdminRoute("POST", "/key/regenerate", key_regenerate),
    AdminRoute("POST", "/key/block", _key_blocker(True)),
    AdminRoute("POST", "/key/unblock", _key_blocker(False)),
    AdminRoute("POST", "/key/delete", key_delete),
    AdminRoute("GET", "/key/info", key_info, for_own_key=True),
    AdminRoute("GET", "/key/list", key_list),
    AdminRoute("POST", "/team/new", _creator(TEAM, bodies.TeamNew, "team_id")),
    AdminRoute("POST", "/team/update", _updater(TEAM, bodies.TeamUpdate, "team_id")),
    AdminRoute("GET", "/team/info", _informer(TEAM, "team_id")),
    AdminRoute("GET", "/team/list", _lister(TEAM, "teams")),
    AdminRoute("POST", "/team/delete", _deleter(TEAM, bodies.TeamDelete, "team_ids")),
    AdminRoute("POST", "/team/member_add", team_member_add),
    AdminRoute("POST", "/organization/new", _creator(ORG, bodies.OrganizationNew, "organization_id")),
    AdminRoute("POST", "/organization/update", _updater(ORG, bodies.OrganizationUpdate, "organization_id")),
    AdminRoute("GET", "/organization/info", _informer(ORG, "organization_id")),
    AdminRoute("GET", "/organization/list", _lister(ORG, "organizations")),
    AdminRoute("POST", "/organization/delete", _deleter(ORG, bodies.OrganizationDelete, "organization_ids")),
    AdminRoute("POST", "/user/new", _creator(USER, bodies.UserNew, "user_id")),
    AdminRoute("GET", "/user/info", _informer(USER, "user_id")),
    AdminRoute("GET", "/user/list", _lister(USER, "users")),
    AdminRoute("POST", "/budget/new", _creator(BUDGET, bodies.BudgetNew, "budget_id")),
    AdminRoute("POST", "/budget/update", _updater(BUDGET, bodies.BudgetUpdate, "budget_id")),
    AdminRoute("GET", "/budget/info", _informer(BUDGET, "budget_id")),
    AdminRoute("GET", "/budget/list", _lister(BUDGET, "budgets")),
    AdminRoute("POST", "/budget/delete", _deleter(BUDGET, bodies.BudgetDelete, "id")),
    AdminRoute("GET", "/spend/logs", spend_logs_call),
    AdminRoute("GET", "/spend", spend_report_call),
    AdminRoute("GET", "/global/spend/report", spend_report_call),
    AdminRoute("GET", "/model/info", model_info),
    AdminRoute("POST", "/model/new", model_change),
    AdminRoute("POST", "/model/delete", model_change),
)
