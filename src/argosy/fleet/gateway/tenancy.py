"""From the rows of a key, its team and its organisation to who sends a request and what may pass."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, bindparam, select
from sqlalchemy.sql.selectable import LABEL_STYLE_TABLENAME_PLUS_COL

from argosy.errors import Unauthorized
from argosy.fleet.gateway import store_schema as schema
from argosy.fleet.gateway.budgets import BudgetState, read_budget_states
from argosy.fleet.gateway.exchange import Principal
from argosy.fleet.gateway.key_hash import KeyHasher
from argosy.fleet.policies.limits import Limits, Scope, ScopeKind

LEVELS: tuple[tuple[ScopeKind, str, str], ...] = (
    ("key", "keys", "key_budget"),
    ("team", "teams", "team_budget"),
    ("org", "organisations", "org_budget"),
)
"""Scope kind, table and alias of the budget object, innermost first."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A key as authentication caches it.

    Attributes:
        principal: who it is.
        expires_at_s: Unix time after which the secret that was presented is not valid any more, None for never. The earlier
            of the key's expiry and the end of a rotation's grace.
        refusal: why the key may not be used at all, None if it may.
        budgets: what has been spent in each scope that has a budget.
        record_ids: (kind, id) of every row it was made from; a change of one of them makes it stale.
    """

    principal: Principal
    expires_at_s: float | None
    refusal: str | None
    budgets: tuple[BudgetState, ...]
    record_ids: tuple[tuple[str, str], ...]

    def check(self, described: str, now_s: float) -> Principal:
        """The principal if the key may be used at Unix time `now_s`; `described` names the key without telling it.

        Raises:
            Unauthorized: the key or what it belongs to is blocked, or it has expired.
        """
        if self.refusal is not None:
            raise Unauthorized(f"the API key {described} {self.refusal}", code="key_blocked")
        if self.expires_at_s is not None and now_s >= self.expires_at_s:
            raise Unauthorized(f"the API key {described} has expired; ask for another one", code="key_expired")
        return self.principal


def find_identity(connection: Connection, hasher: KeyHasher, key: str, now_s: float) -> Identity | None:
    """What the database knows of `key`, in one query, and a second one for the spend of its budgets; None if nothing."""
    digest = hasher.digest(key)
    row = connection.execute(_IDENTITY_QUERY, {"digest": digest}).mappings().first()
    if row is None or not hasher.matches(key, row["key_secrets_digest"]):
        return None
    scopes = tuple(_scopes(row))
    return Identity(
        principal=_principal(row, scopes, hasher),
        expires_at_s=_earliest(row["key_secrets_valid_until_s"], row["keys_expires_at_s"]),
        refusal=_refusal(row),
        budgets=read_budget_states(connection, scopes, now_s),
        record_ids=_record_ids(row),
    )


def _identity_query() -> Select[Any]:
    keys, teams, organisations = schema.keys, schema.teams, schema.organisations
    key_budget, team_budget, org_budget = (schema.budgets.alias(alias) for _, _, alias in LEVELS)
    tables = (
        schema.key_secrets.join(keys, keys.c.id == schema.key_secrets.c.key_id)
        .outerjoin(teams, teams.c.id == keys.c.team_id)
        .outerjoin(organisations, organisations.c.id == keys.c.org_id)
        .outerjoin(key_budget, key_budget.c.id == keys.c.budget_id)
        .outerjoin(team_budget, team_budget.c.id == teams.c.budget_id)
        .outerjoin(org_budget, org_budget.c.id == organisations.c.budget_id)
    )
    columns = (schema.key_secrets, keys, teams, organisations, key_budget, team_budget, org_budget)
    query = select(*columns).select_from(tables).where(schema.key_secrets.c.digest == bindparam("digest"))
    return query.set_label_style(LABEL_STYLE_TABLENAME_PLUS_COL)


_IDENTITY_QUERY = _identity_query()  # to build it takes longer than to run it


def _scopes(row: RowMapping) -> list[tuple[Scope, Limits]]:
    """The scopes that bound anything. A field of a key, team or organisation wins over its budget object's."""
    scopes = []
    for kind, table, budget in LEVELS:
        record_id = row[f"{table}_id"]
        if record_id is not None:
            fields = {name: _own_or(row, table, budget, name) for name in schema.LIMIT_COLUMNS}
            scopes.append((Scope(kind, record_id), Limits(**fields, soft=bool(row[f"{table}_soft"]))))
    return scopes


def _own_or(row: RowMapping, table: str, budget: str, name: str) -> Any:
    # A period belongs to the amount it was given with.
    decider = "max_budget_usd" if name == "budget_period_s" else name
    return row[f"{table}_{name}"] if row[f"{table}_{decider}"] is not None else row[f"{budget}_{name}"]


def _principal(row: RowMapping, scopes: tuple[tuple[Scope, Limits], ...], hasher: KeyHasher) -> Principal:
    team, org = row["teams_id"] or "", row["organisations_id"] or ""
    key_id = row["keys_id"]
    tenant = org or team or key_id
    routes = _json(row["keys_allowed_routes"])
    return Principal(
        key_id=key_id,
        tenant=tenant,
        team=team,
        scopes=scopes,
        models=_allowed_models(row),
        aliases={**(_json(row["organisations_aliases"]) or {}), **(_json(row["teams_aliases"]) or {}),
                 **(_json(row["keys_aliases"]) or {})},
        routes=frozenset(routes) if routes else None,
        priority=_innermost(row, "priority") or "",
        weight=next((w for _, table, _ in reversed(LEVELS) if (w := row[f"{table}_weight"]) is not None), 1.0),
        tier=_innermost(row, "tier") or "",
        cache_salt=hasher.derive("cache_salt", tenant),
    )  # fmt: skip


def _allowed_models(row: RowMapping) -> frozenset[str] | None:
    """Models that every level allows; a level without a list allows all."""
    lists = [frozenset(models) for _, table, _ in LEVELS if (models := _json(row[f"{table}_models"]))]
    return frozenset.intersection(*lists) if lists else None


def _innermost(row: RowMapping, name: str) -> Any:
    return next((value for _, table, _ in LEVELS if (value := row[f"{table}_{name}"]) is not None), None)


def _refusal(row: RowMapping) -> str | None:
    if row["keys_blocked"]:
        return "is blocked; ask an administrator"
    if row["teams_blocked"] or row["organisations_blocked"]:
        return f"belongs to {'a team' if row['teams_blocked'] else 'an organisation'} that is blocked"
    # Without the row that bounds it, the key would be without those limits.
    if row["keys_team_id"] is not None and row["teams_id"] is None:
        return "belongs to a team that does not exist"
    if row["keys_org_id"] is not None and row["organisations_id"] is None:
        return "belongs to an organisation that does not exist"
    return None


def _record_ids(row: RowMapping) -> tuple[tuple[str, str], ...]:
    ids: list[tuple[str, Any]] = [(kind, row[f"{table}_id"]) for kind, table, _ in LEVELS]
    ids += [("budget", row[f"{table}_budget_id"]) for _, table, _ in LEVELS]
    return tuple((kind, record_id) for kind, record_id in ids if record_id is not None)


def _earliest(*times_s: float | None) -> float | None:
    return min((time_s for time_s in times_s if time_s is not None), default=None)


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
