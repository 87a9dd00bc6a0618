"""The admin API as clients see it, and that no answer, log line or row tells a key."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from argosy.errors import ConfigError
from argosy.fleet.gateway.admin_api import MAX_BODY_BYTES, Admin, create_admin_app
from argosy.fleet.gateway.admin_routes import ROUTES
from argosy.fleet.gateway.key_hash import KeyHasher, new_key
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.store_calls import StoreCalls
from argosy.fleet.gateway.tenancy_groups import GroupRecords
from argosy.fleet.gateway.tenancy_keys import KeyRecords
from argosy.fleet.gateway.usage_commit import commit_usage

MASTER_KEY = "sk-CANARY-master-0123456789"
Call = Callable[..., Awaitable[Any]]


class Models:
    """One model."""

    def models(self) -> Sequence[Mapping[str, Any]]:
        return [{"model_name": "m"}]


@pytest.fixture
def store(open_store: Callable[..., Store], sqlite_url: str) -> Store:
    return open_store(sqlite_url)


@pytest.fixture
async def admin(store: Store, hasher: KeyHasher) -> AsyncIterator[Admin]:
    calls = StoreCalls(store)
    yield Admin(calls, KeyRecords(store, hasher), GroupRecords(store), hasher, MASTER_KEY)
    calls.close()


@pytest.fixture
async def client(admin: Admin) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_admin_app(admin))
    async with httpx.AsyncClient(base_url="http://admin", transport=transport) as made:
        yield made


@pytest.fixture
def call(client: httpx.AsyncClient) -> Call:
    """Call with the master key; the JSON of an answer with status 200."""

    async def make(
        method: str, path: str, body: Any = None, *, status: int = 200, key: str = MASTER_KEY, **query: Any
    ) -> Any:
        headers = {"authorization": f"Bearer {key}"}
        response = await client.request(method, path, json=body, params=query or None, headers=headers)
        assert response.status_code == status, response.text
        assert response.headers["cache-control"] == "private, no-store"
        return response.json()

    return make


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_every_call_needs_the_master_key(client: httpx.AsyncClient, route: Any) -> None:
    wrong = "sk-CANARY" + "x" * 40
    for headers in ({}, {"authorization": f"Bearer {wrong}"}, {"x-api-key": wrong}, {"authorization": "Basic x"}):
        response = await client.request(route.method, route.path, json={}, headers=headers)
        assert response.status_code == 401
        assert "CANARY" not in response.text
        assert response.json()["error"]["type"] == "authentication_error"


async def test_the_life_of_a_key(call: Call, admin: Admin) -> None:
    fields = {
        "key_alias": "ci",
        "models": ["m"],
        "aliases": {"gpt": "m"},
        "metadata": {"cost_center": 7},
        "max_budget": 1.5,
        "budget_duration": "30d",
        "rpm_limit": 60,
        "tpm_limit": 1000,
        "max_parallel_requests": 4,
        "max_kv_tokens": 5000,
        "max_input_tokens": 100,
        "max_output_tokens": 50,
        "priority": "critical",
        "tier": "gold",
        "soft_limits": True,
        "allowed_routes": ["/v1/chat/completions"],
        "weight": 2.0,
    }
    made = await call("POST", "/key/generate", {**fields, "duration": "1h"})
    assert {name: made[name] for name in fields} == fields
    assert made["key_name"] == f"sk-...{made['key'][-4:]}"
    key_id = made["key_id"]
    info = (await call("GET", f"/key/info?key={key_id}"))["info"]
    assert {name: info[name] for name in fields} == fields
    assert info["spend"] == 0.0
    assert "key" not in info

    changed = await call("POST", "/key/update", {"key": key_id, "rpm_limit": None, "tpm_limit": 5, "expires": None})
    assert (changed["rpm_limit"], changed["tpm_limit"], changed["expires"]) == (None, 5, None)
    assert changed["key_alias"] == "ci", "what is not named stays"

    rotated = await call("POST", "/key/regenerate", {"key": made["key"], "grace_period": "1h"})
    assert rotated["key_id"] == key_id
    assert rotated["key"] != made["key"]
    assert len((await call("GET", f"/key/info?key={key_id}"))["info"]["old_keys_valid_until"]) == 1

    assert (await call("POST", "/key/block", {"key": key_id}))["blocked"] is True
    assert (await call("POST", "/key/unblock", {"key": rotated["key"]}))["blocked"] is False
    assert await call("POST", "/key/delete", {"keys": [key_id]}) == {"deleted_keys": [key_id]}
    await call("GET", f"/key/info?key={key_id}", status=404)


async def test_a_key_may_ask_for_itself_and_nothing_else(call: Call) -> None:
    made, other = await call("POST", "/key/generate", {}), await call("POST", "/key/generate", {})
    assert (await call("GET", "/key/info", key=made["key"]))["info"]["key_id"] == made["key_id"]
    await call("GET", f"/key/info?key={other['key_id']}", key=made["key"], status=400)
    await call("POST", "/key/block", {"key": other["key"]})
    await call("GET", "/key/info", key=other["key"], status=401)
    await call("GET", "/key/list", key=made["key"], status=401)
    await call("POST", "/key/update", {"key": made["key"], "rpm_limit": None}, key=made["key"], status=401)


async def test_teams_organisations_users_and_budgets(call: Call) -> None:
    org = await call("POST", "/organization/new", {"organization_alias": "acme", "tpm_limit": 9})
    team = await call("POST", "/team/new", {"team_id": "blue", "organization_id": org["organization_id"], "models": ["m"]})
    assert team["team_id"] == "blue"
    user = await call("POST", "/user/new", {"user_email": "a@example.org"})
    added = await call("POST", "/team/member_add", {"team_id": "blue", "member": {"user_id": user["user_id"]}})
    assert added["members"] == [{"user_id": user["user_id"], "role": "user"}]
    budget = await call("POST", "/budget/new", {"max_budget": 5.0, "budget_duration": "1d"})
    key = await call("POST", "/key/generate", {"team_id": "blue", "budget_id": budget["budget_id"]})
    assert key["organization_id"] == org["organization_id"]
    assert (await call("GET", f"/budget/info?budget_id={budget['budget_id']}"))["budget_duration"] == "1d"
    await call("POST", "/budget/update", {"budget_id": budget["budget_id"], "max_budget": 6.0})
    assert (await call("GET", "/budget/list"))["budgets"][0]["max_budget"] == 6.0
    assert (await call("GET", f"/user/info?user_id={user['user_id']}"))["teams"] == ["blue"]
    assert (await call("POST", "/team/update", {"team_id": "blue", "blocked": True}))["blocked"] is True
    assert (await call("GET", "/team/info?team_id=blue"))["models"] == ["m"]
    assert (await call("GET", "/key/list?team_id=blue"))["total_count"] == 1
    refused = await call("POST", "/budget/delete", {"id": budget["budget_id"]}, status=400)
    assert "still has a key" in refused["error"]["message"]
    deleted = await call("POST", "/team/delete", {"team_ids": ["blue"]})
    assert deleted == {"deleted": ["blue"], "deleted_keys_count": 1}
    await call("POST", "/organization/delete", {"organization_ids": [org["organization_id"]]})
    await call("GET", f"/organization/info?organization_id={org['organization_id']}", status=404)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"rpm_limt": 5}, "rpm_limt"),
        ({"rpm_limit": "5"}, "rpm_limit"),
        ({"rpm_limit": -1}, "rpm_limit"),
        ({"rpm_limit": 1.5}, "rpm_limit"),
        ({"rpm_limit": 2**60}, "rpm_limit"),
        ({"max_budget": float("inf")}, None),
        ({"max_budget": -0.01}, "max_budget"),
        ({"max_budget": 1, "budget_duration": "1mo"}, "budget_duration"),
        ({"budget_duration": "1d"}, "budget_duration"),
        ({"soft_budget": 1.0}, "soft_budget"),
        ({"duration": "soon"}, "duration"),
        ({"duration": "1d", "expires": "2030-01-01T00:00:00Z"}, "expires"),
        ({"expires": "2030-01-01"}, "expires"),
        ({"models": "m"}, "models"),
        ({"allowed_routes": ["/admin"]}, "allowed_routes"),
        ({"priority": "urgent"}, "priority"),
        ({"team_id": "none"}, "team_id"),
        ({"key": "sk-weak"}, "key"),
        ({"key_alias": ""}, "key_alias"),
        ({"weight": 0}, "weight"),
        ([], None),
    ],
)
async def test_wrong_bodies_are_refused_by_name(client: httpx.AsyncClient, call: Call, body: Any, param: str | None) -> None:
    headers = {"authorization": f"Bearer {MASTER_KEY}", "content-type": "application/json"}
    response = await client.post("/key/generate", content=json.dumps(body), headers=headers)
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["param"] == param
    assert (await call("GET", "/key/list"))["total_count"] == 0


@pytest.mark.parametrize("content", [b"", b"{", b'{"models": ["m"], "models": []}', b"\xff"])
async def test_what_is_no_json_is_refused(client: httpx.AsyncClient, content: bytes) -> None:
    headers = {"authorization": f"Bearer {MASTER_KEY}"}
    response = await client.post("/key/generate", content=content, headers=headers)
    assert response.status_code == 400
    too_large = await client.post("/key/generate", content=b" " * (MAX_BODY_BYTES + 1), headers=headers)
    assert too_large.status_code == 413


async def test_unknown_parameters_paths_and_methods_are_told(call: Call, client: httpx.AsyncClient) -> None:
    await call("GET", "/key/list?pagesize=5", status=400)
    await call("GET", "/key/list?page=x", status=400)
    await call("GET", "/key/list?page=1&page=2", status=400)
    await call("GET", "/team/info", status=400)
    headers = {"authorization": f"Bearer {MASTER_KEY}"}
    nothing = (await client.get("/key/nothing", headers=headers)).json()["error"]
    assert (nothing["code"], nothing["message"]) == ("not_found", "there is no '/key/nothing' here")
    await call("GET", "/spend/logs?end_date=9999-12-31", status=400)
    assert (await client.get("/key/generate", headers=headers)).status_code == 405


@pytest.mark.parametrize(
    "fields",
    [
        {"duration": "99999999d"},
        {"expires": "9999-12-31T23:59:59-12:00"},
        {"expires": "0001-01-01T00:00:00+14:00"},
        {"budget_duration": "99999999999s", "max_budget": 1.0},
        {"metadata": functools.reduce(lambda inner, _: {"a": inner}, range(251), {})},
    ],
)
async def test_what_could_not_be_shown_again_is_refused(call: Call, fields: dict[str, Any]) -> None:
    await call("POST", "/key/generate", fields, status=400)
    assert (await call("GET", "/key/list"))["keys"] == []


async def test_metadata_may_be_deep(call: Call) -> None:
    metadata = functools.reduce(lambda inner, _: {"a": inner}, range(248), {})
    made = await call("POST", "/key/generate", {"metadata": metadata})
    await call("GET", f"/key/info?key={made['key_id']}")
    assert (await call("GET", "/key/list"))["keys"][0]["metadata"] == metadata


async def test_a_grace_without_end_is_refused(call: Call) -> None:
    made = await call("POST", "/key/generate", {})
    await call("POST", "/key/regenerate", {"key": made["key_id"], "grace_period": "99999999999w"}, status=400)


async def test_keys_are_listed_in_pages(call: Call) -> None:
    made = [(await call("POST", "/key/generate", {"key_alias": f"k{n}"}))["key_id"] for n in range(5)]
    found = [await call("GET", f"/key/list?page={page}&size=2") for page in (1, 2, 3)]
    assert sorted(key["key_id"] for page in found for key in page["keys"]) == sorted(made)
    assert {(page["total_count"], page["total_pages"]) for page in found} == {(5, 3)}
    assert [page["current_page"] for page in found] == [1, 2, 3]


async def test_spend_as_json_and_csv(call: Call, client: httpx.AsyncClient, store: Store, make_record: Any) -> None:
    made = await call("POST", "/key/generate", {})
    commit_usage(store, [make_record(key_id=made["key_id"], cost_nano_usd=250_000_000) for _ in range(2)])
    report = await call("GET", "/global/spend/report?group_by=api_key,model&start_date=2023-11-14&end_date=2023-11-14")
    assert [(row["key_id"], row["requests"], row["spend"]) for row in report] == [(made["key_id"], 2, 0.5)]
    assert await call("GET", "/spend?group_by=day") == await call("GET", "/global/spend/report")
    logs = await call("GET", f"/spend/logs?api_key={made['key_id']}&start_date=2023-11-14&size=1")
    assert [row["spend"] for row in logs] == [0.25]
    assert await call("GET", "/spend/logs?end_date=2023-11-13") == []
    assert (await call("GET", f"/key/info?key={made['key_id']}"))["info"]["spend"] == 0.5
    headers = {"authorization": f"Bearer {MASTER_KEY}"}
    as_csv = await client.get("/global/spend/report?format=csv&group_by=model", headers=headers)
    assert as_csv.headers["content-type"].startswith("text/csv")
    assert as_csv.text.splitlines()[0].startswith("model,requests,")
    await call("GET", "/global/spend/report?format=xml", status=400)
    await call("GET", f"/spend/logs?api_key={new_key()}", status=400)


async def test_models(call: Call, admin: Admin, hasher: KeyHasher) -> None:
    refused = await call("GET", "/model/info", status=400)
    assert "running gateway" in refused["error"]["message"]
    with_models = Admin(admin.calls, admin.keys, admin.groups, hasher, MASTER_KEY, Models())
    transport = httpx.ASGITransport(create_admin_app(with_models))
    headers = {"authorization": f"Bearer {MASTER_KEY}"}
    async with httpx.AsyncClient(base_url="http://admin", transport=transport, headers=headers) as client:
        assert (await client.get("/model/info")).json() == {"data": [{"model_name": "m"}]}
        for path, body in (("/model/new", {"model_name": "n", "litellm_params": {}}), ("/model/delete", {})):
            answer = await client.post(path, json=body)
            assert answer.status_code == 400
            assert "configuration file: change it there" in answer.json()["error"]["message"]


async def test_this_process_heeds_a_change_before_it_is_answered(admin: Admin, hasher: KeyHasher) -> None:
    heeded: list[int] = []

    async def on_change() -> None:
        heeded.append(1)

    app = create_admin_app(Admin(admin.calls, admin.keys, admin.groups, hasher, MASTER_KEY, None, on_change))
    headers = {"authorization": f"Bearer {MASTER_KEY}"}
    async with httpx.AsyncClient(base_url="http://a", transport=httpx.ASGITransport(app), headers=headers) as client:
        await client.post("/key/generate", json={})
        await client.get("/key/list")
    assert heeded == [1]


async def test_a_fault_of_ours_tells_an_id_only(
    admin: Admin, hasher: KeyHasher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: Any, **_fields: Any) -> None:
        raise RuntimeError("inside")

    monkeypatch.setattr(KeyRecords, "page", fail)
    headers = {"authorization": f"Bearer {MASTER_KEY}"}
    transport = httpx.ASGITransport(create_admin_app(admin))
    async with httpx.AsyncClient(base_url="http://a", transport=transport, headers=headers) as client:
        response = await client.get("/key/list")
    assert response.status_code == 500
    assert "inside" not in response.text
    assert "inside" in caplog.text


def test_a_master_key_that_can_be_guessed_is_refused(admin: Admin, hasher: KeyHasher) -> None:
    with pytest.raises(ConfigError, match="16 characters"):
        Admin(admin.calls, admin.keys, admin.groups, hasher, "sk-1234")
    assert "CANARY" not in repr(admin)


async def test_no_key_is_told_anywhere(
    call: Call, client: httpx.AsyncClient, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = "sk-CANARY" + new_key()[3:]
    headers = {"authorization": f"Bearer {MASTER_KEY}"}
    answers = [str(await call("POST", "/key/generate", {"key": key})).replace(key, "", 1)]
    mistyped = key[:-1] + "#"
    for method, path, body in (
        ("POST", "/key/generate", {"key": key}),
        ("POST", "/key/block", {"key": key}),
        ("POST", "/key/block", {"key": mistyped}),
        ("POST", "/key/update", {"key": mistyped, "rpm_limit": 1}),
        ("POST", "/key/generate", {"key": mistyped}),
        ("POST", "/key/generate", {key: 1}),
        ("POST", "/key/generate", {"team_id": mistyped}),
        ("POST", "/key/generate", {"tier": 5, "priority": "sk-CANARY-short"}),
        ("GET", f"/key/{key}", None),
        ("POST", "/key/delete", {"keys": [mistyped]}),
        ("GET", f"/key/info?key={key}", None),
        ("GET", f"/spend/logs?api_key={key}", None),
        ("GET", "/key/list", None),
    ):
        answers.append((await client.request(method, path, json=body, headers=headers)).text)
    bearers = [{"authorization": f"Bearer {given}"} for given in (key, mistyped)]
    answers += [(await client.get("/key/list", headers=bearer)).text for bearer in bearers]
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"CANARY" not in files
    assert "CANARY" not in "\n".join(line for line in caplog.messages if "HTTP Request" not in line)
    assert [answer for answer in answers if "CANARY" in answer] == []
