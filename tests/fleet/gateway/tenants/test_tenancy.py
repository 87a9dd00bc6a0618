"""Keys, teams, organisations and budgets, as authentication finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from argosy.errors import InvalidRequest, Unauthorized, UnknownRecord
from argosy.fleet.gateway.exchange import Principal
from argosy.fleet.gateway.key_hash import KeyHasher, new_key
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.tenancy import Identity, find_identity
from argosy.fleet.gateway.tenancy_changes import KEPT_CHANGES, note_change, read_changes
from argosy.fleet.gateway.tenancy_groups import GroupRecords
from argosy.fleet.gateway.tenancy_keys import KeyRecords
from argosy.fleet.gateway.tenancy_records import BUDGET, ORG, TEAM, USER
from argosy.fleet.policies.limits import Limits, Scope

Find = Callable[[str], Identity | None]
Check = Callable[[str], Principal]


@pytest.fixture
def find(store: Store, hasher: KeyHasher, wall_clock: Any) -> Find:
    return lambda key: store.read(lambda connection: find_identity(connection, hasher, key, wall_clock()))


@pytest.fixture
def check(find: Find, wall_clock: Any) -> Check:
    def check_key(key: str) -> Principal:
        identity = find(key)
        assert identity is not None
        return identity.check("k", wall_clock())

    return check_key


def test_a_key_is_known_by_its_secret_and_kept_without_it(keys: KeyRecords, check: Check, find: Find, store: Store) -> None:
    issued = keys.create({"alias": "ci", "rpm": 5})
    principal = check(issued.key)
    assert principal.key_id == issued.info["id"] == principal.tenant
    assert principal.scopes == ((Scope("key", issued.info["id"]), Limits(rpm=5)),)
    assert principal.models is None
    assert principal.routes is None
    assert find(new_key()) is None
    assert find(issued.key[:-1]) is None
    tables = ("keys", "key_secrets", "settings", "tenancy_changes")
    dump = str([store.read(lambda c, t=table: c.execute(text(f"SELECT * FROM {t}")).all()) for table in tables])
    assert issued.key not in dump
    assert issued.key[3:20] not in dump
    assert issued.info["last_four"] == issued.key[-4:]
    assert issued.key not in repr(issued)


def test_a_rotation_leaves_the_old_secret_its_grace(keys: KeyRecords, check: Check, find: Find, wall_clock: Any) -> None:
    first = keys.create({"rpm": 5})
    second = keys.rotate(first.info["id"], grace_s=60.0)
    assert second.key != first.key
    assert check(first.key) == check(second.key), "id, limits and tenant are those of the key, not of its secret"
    assert keys.info(first.info["id"])["old_secrets_until_s"] == [wall_clock.now_s + 60.0]
    wall_clock.now_s += 59.9
    check(first.key)
    wall_clock.now_s += 0.1
    with pytest.raises(Unauthorized, match="expired"):
        check(first.key)
    check(second.key)
    third = keys.rotate(second.key, grace_s=0.0)
    assert find(first.key) is None, "a grace that is over is cleared away"
    with pytest.raises(Unauthorized, match="expired"):
        check(second.key)
    check(third.key)


def test_a_second_rotation_does_not_lengthen_a_grace(keys: KeyRecords, check: Check, wall_clock: Any) -> None:
    first = keys.create({})
    keys.rotate(first.info["id"], grace_s=10.0)
    keys.rotate(first.info["id"], grace_s=1000.0)
    wall_clock.now_s += 11.0
    with pytest.raises(Unauthorized):
        check(first.key)


def test_blocked_expired_and_deleted_keys_are_refused(keys: KeyRecords, check: Check, find: Find, wall_clock: Any) -> None:
    issued = keys.create({"expires_at_s": wall_clock.now_s + 100.0})
    keys.set_blocked(issued.key, True)
    with pytest.raises(Unauthorized, match="blocked") as caught:
        check(issued.key)
    assert caught.value.code == "key_blocked"
    keys.set_blocked(issued.info["id"], False)
    check(issued.key)
    keys.expire(issued.key)
    with pytest.raises(Unauthorized, match="expired") as caught:
        check(issued.key)
    assert caught.value.code == "key_expired"
    assert keys.delete([issued.key]) == [issued.info["id"]]
    assert find(issued.key) is None
    with pytest.raises(UnknownRecord):
        keys.info(issued.info["id"])


def test_deleting_is_all_or_nothing(keys: KeyRecords, check: Check) -> None:
    issued = keys.create({})
    with pytest.raises(UnknownRecord):
        keys.delete([issued.info["id"], "key_none"])
    check(issued.key)


def test_a_chosen_secret_is_taken_once(keys: KeyRecords, check: Check) -> None:
    key = new_key()
    keys.create({}, key)
    check(key)
    with pytest.raises(InvalidRequest, match="in use") as caught:
        keys.create({}, key)
    assert key not in caught.value.message
    with pytest.raises(InvalidRequest, match="begin with sk-"):
        keys.create({}, "sk-weak")


def test_limits_of_all_levels_apply_key_first(keys: KeyRecords, groups: GroupRecords, check: Check) -> None:
    org = groups.create(ORG, {"tpm": 1000, "weight": 3.0, "priority": "critical"})
    team = groups.create(TEAM, {"org_id": org["id"], "max_parallel": 4, "priority": "standard", "soft": True})
    issued = keys.create({"team_id": team["id"], "rpm": 7, "tier": "gold"})
    principal = check(issued.key)
    assert principal.scopes == (
        (Scope("key", issued.info["id"]), Limits(rpm=7)),
        (Scope("team", team["id"]), Limits(max_parallel=4, soft=True)),
        (Scope("org", org["id"]), Limits(tpm=1000)),
    )
    assert (principal.tenant, principal.team) == (org["id"], team["id"])
    assert (principal.priority, principal.tier, principal.weight) == ("standard", "gold", 3.0)


def test_models_are_those_that_every_level_allows(keys: KeyRecords, groups: GroupRecords, check: Check) -> None:
    org = groups.create(ORG, {"models": ["a", "b", "c"], "aliases": {"x": "a", "y": "a"}})
    team = groups.create(TEAM, {"org_id": org["id"]})
    issued = keys.create(
        {"team_id": team["id"], "models": ["b", "d"], "aliases": {"x": "b"}, "allowed_routes": ["/v1/score"]}
    )
    principal = check(issued.key)
    assert principal.models == {"b"}
    assert principal.aliases == {"x": "b", "y": "a"}
    assert principal.routes == {"/v1/score"}


def test_cache_salts_differ_per_tenant_and_not_per_key(keys: KeyRecords, groups: GroupRecords, check: Check) -> None:
    one, other = groups.create(ORG, {}, "org_1"), groups.create(ORG, {}, "org_12")
    salts = [check(keys.create({"org_id": org["id"]}).key).cache_salt for org in (one, one, other)]
    assert salts[0] == salts[1]
    assert salts[0] != salts[2]
    assert all(salts)


def test_what_a_blocked_team_or_organisation_holds_is_refused(keys: KeyRecords, groups: GroupRecords, check: Check) -> None:
    org = groups.create(ORG, {})
    team = groups.create(TEAM, {"org_id": org["id"]})
    issued = keys.create({"team_id": team["id"]})
    for kind, row in ((TEAM, team), (ORG, org)):
        groups.update(kind, row["id"], {"blocked": True})
        with pytest.raises(Unauthorized, match=f"{kind.word} that is blocked"):
            check(issued.key)
        groups.update(kind, row["id"], {"blocked": False})
    check(issued.key)


def test_a_key_without_the_rows_that_bound_it_is_refused(
    keys: KeyRecords, groups: GroupRecords, check: Check, store: Store
) -> None:
    team = groups.create(TEAM, {"rpm": 1})
    issued = keys.create({"team_id": team["id"]})
    store.write(lambda c: c.execute(text("DELETE FROM teams")))
    with pytest.raises(Unauthorized, match="does not exist"):
        check(issued.key)


def test_a_budget_object_bounds_whoever_refers_to_it(keys: KeyRecords, groups: GroupRecords, check: Check) -> None:
    budget = groups.create(BUDGET, {"max_budget_usd": 0.01, "budget_period_s": 86_400.0, "rpm": 5})
    alone = check(keys.create({"budget_id": budget["id"]}).key)
    assert alone.scopes[0][1] == Limits(rpm=5, max_budget_usd=0.01, budget_period_s=86_400.0)
    own = check(keys.create({"budget_id": budget["id"], "max_budget_usd": 2.0}).key)
    assert own.scopes[0][1] == Limits(rpm=5, max_budget_usd=2.0), "an amount without a period is not given another's"
    groups.update(BUDGET, budget["id"], {"max_budget_usd": 0.05})
    with pytest.raises(InvalidRequest, match="still has a key"):
        groups.delete(BUDGET, [budget["id"]])


def test_a_team_takes_its_keys_with_it(keys: KeyRecords, groups: GroupRecords, find: Find, check: Check) -> None:
    org, other = groups.create(ORG, {}), groups.create(ORG, {})
    team = groups.create(TEAM, {"org_id": org["id"]})
    issued = keys.create({"team_id": team["id"]})
    groups.update(TEAM, team["id"], {"org_id": other["id"]})
    assert check(issued.key).tenant == other["id"]
    with pytest.raises(InvalidRequest, match="still has a"):
        groups.delete(ORG, [other["id"]])
    assert groups.delete(TEAM, [team["id"]]) == 1
    assert find(issued.key) is None
    assert groups.delete(ORG, [org["id"], other["id"]]) == 0


def test_a_key_moves_between_teams(keys: KeyRecords, groups: GroupRecords, check: Check) -> None:
    org = groups.create(ORG, {})
    team, other = groups.create(TEAM, {"org_id": org["id"]}), groups.create(TEAM, {})
    issued = keys.create({"team_id": team["id"]})
    keys.update(issued.key, {"team_id": other["id"]})
    assert (check(issued.key).team, check(issued.key).tenant) == (other["id"], other["id"])
    with pytest.raises(InvalidRequest, match="not that of the team"):
        keys.update(issued.key, {"org_id": org["id"]})
    keys.update(issued.key, {"team_id": None, "org_id": org["id"]})
    assert (check(issued.key).team, check(issued.key).tenant) == ("", org["id"])


def test_users_own_keys_and_are_members(keys: KeyRecords, groups: GroupRecords) -> None:
    user = groups.create(USER, {"email": "a@example.org"})
    team = groups.create(TEAM, {})
    assert groups.add_member(team["id"], user["id"], "user")["members"] == [{"user_id": user["id"], "role": "user"}]
    assert groups.add_member(team["id"], user["id"], "admin")["members"] == [{"user_id": user["id"], "role": "admin"}]
    assert groups.info(USER, user["id"])["teams"] == [team["id"]]
    keys.create({"user_id": user["id"]})
    assert keys.page(user_id=user["id"]).total_count == 1
    with pytest.raises(UnknownRecord):
        groups.add_member(team["id"], "user_none", "user")


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"team_id": "team_none"}, UnknownRecord),
        ({"org_id": "org_none"}, UnknownRecord),
        ({"user_id": "user_none"}, UnknownRecord),
        ({"budget_id": "budget_none"}, UnknownRecord),
        ({"rpm": -1}, InvalidRequest),
        ({"budget_period_s": 60.0}, InvalidRequest),
    ],
)
def test_impossible_keys_are_not_made(keys: KeyRecords, values: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        keys.create(values)
    assert keys.page().total_count == 0


def test_ids_are_taken_once(groups: GroupRecords) -> None:
    groups.create(TEAM, {}, "blue")
    with pytest.raises(InvalidRequest, match="exists already"):
        groups.create(TEAM, {}, "blue")


def test_pages_hold_every_key_once(keys: KeyRecords, wall_clock: Any) -> None:
    made = []
    for number in range(5):
        wall_clock.now_s += number % 2
        made.append(keys.create({"alias": f"k{number}"}).info["id"])
    pages = [keys.page(page, 2) for page in (1, 2, 3, 4)]
    assert sorted(row["id"] for page in pages for row in page.rows) == sorted(made)
    assert [len(page.rows) for page in pages] == [2, 2, 1, 0]
    assert pages[0].total_count == 5
    assert pages[0].total_pages == 3
    assert [row["alias"] for row in keys.page(alias="k3").rows] == ["k3"]
    for page, size in ((0, 1), (1, 0), (1, 1001)):
        with pytest.raises(InvalidRequest):
            keys.page(page, size)


def test_every_change_is_noted_for_other_processes(keys: KeyRecords, groups: GroupRecords, store: Store) -> None:
    def changes(since: int) -> Any:
        return store.read(lambda c: read_changes(c, since))

    seen = store.read(lambda c: read_changes(c, None)).version
    issued = keys.create({})
    key = ("key", issued.info["id"])
    for act in (
        lambda: keys.update(issued.key, {"rpm": 1}),
        lambda: keys.rotate(issued.key, 60.0),
        lambda: keys.set_blocked(issued.info["id"], True),
        lambda: keys.expire(issued.info["id"]),
        lambda: keys.delete([issued.info["id"]]),
    ):
        seen = changes(seen).version
        act()
        found = changes(seen)
        assert key in found.records
        assert found.is_complete
    team = groups.create(TEAM, {})
    seen = changes(seen).version
    groups.update(TEAM, team["id"], {"rpm": 1})
    assert changes(seen).records == {("team", team["id"])}


def test_too_many_changes_are_told_as_such(store: Store) -> None:
    store.write(lambda c: note_change(c, [("key", f"k{number}") for number in range(KEPT_CHANGES + 1)]))
    assert not store.read(lambda c: read_changes(c, 0)).is_complete
    assert store.read(lambda c: read_changes(c, 1)).is_complete
    assert store.read(lambda c: c.scalar(text("SELECT count(*) FROM tenancy_changes"))) == KEPT_CHANGES
