"""The tables of the gateway's database.

Tenants: organisations > teams > keys, with users and reusable budgets beside them. A key's row is its identity, to which
spend and limits belong; its secrets are rows of their own, so that a rotation changes the secret and nothing else.
Usage: one row per request, and two sums over them that reports and budgets read without walking the requests.

Money is whole nano-dollars: sums are exact in any order. Times are Unix seconds. An empty text stands for "none" where a
column is part of a primary key.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, MetaData, String, Table, Text

METADATA = MetaData()
ID = String(128)
LIMIT_COLUMNS = (
    "rpm", "tpm", "max_parallel", "kv_tokens", "max_input_tokens", "max_output_tokens", "max_budget_usd",
    "budget_period_s",
)  # fmt: skip


def _limits() -> list[Column[Any]]:
    """What bounds a key, team or organisation; null is unlimited. Budgets hold the same."""
    return [Column(name, Double if name.startswith(("max_budget", "budget")) else BigInteger) for name in LIMIT_COLUMNS]


def _tenant() -> list[Column[Any]]:
    """What organisations, teams and keys have in common; `models`, `aliases` and `metadata` are JSON."""
    return [
        Column("alias", String(256)),
        Column("models", Text),
        Column("aliases", Text),
        Column("metadata", Text),
        Column("blocked", Boolean, nullable=False, default=False),
        Column("budget_id", ID),
        Column("priority", String(16)),
        Column("tier", String(64)),
        Column("weight", Double),
        Column("soft", Boolean),
        Column("created_at_s", Double, nullable=False),
        Column("updated_at_s", Double, nullable=False),
        *_limits(),
    ]


organisations = Table("organisations", METADATA, Column("id", ID, primary_key=True), *_tenant())

teams = Table("teams", METADATA, Column("id", ID, primary_key=True), Column("org_id", ID, index=True), *_tenant())

keys = Table(
    "keys",
    METADATA,
    Column("id", ID, primary_key=True),
    Column("team_id", ID, index=True),
    Column("org_id", ID, index=True),
    Column("user_id", ID, index=True),
    Column("allowed_routes", Text),
    Column("expires_at_s", Double),
    Column("last_four", String(4), nullable=False),
    *_tenant(),
)

key_secrets = Table(
    "key_secrets",
    METADATA,
    Column("digest", String(64), primary_key=True),
    Column("key_id", ID, nullable=False, index=True),
    Column("created_at_s", Double, nullable=False),
    Column("valid_until_s", Double),
)
"""The digests under which a key is known. `valid_until_s` is set on those that a rotation has replaced."""

users = Table(
    "users",
    METADATA,
    Column("id", ID, primary_key=True),
    Column("email", String(320)),
    Column("alias", String(256)),
    Column("metadata", Text),
    Column("created_at_s", Double, nullable=False),
)

team_members = Table(
    "team_members",
    METADATA,
    Column("team_id", ID, primary_key=True),
    Column("user_id", ID, primary_key=True),
    Column("role", String(16), nullable=False),
)

budgets = Table(
    "budgets", METADATA, Column("id", ID, primary_key=True), Column("created_at_s", Double, nullable=False), *_limits()
)

tenancy_version = Table(
    "tenancy_version", METADATA, Column("id", Integer, primary_key=True), Column("version", BigInteger, nullable=False)
)
"""One row. Every change of a tenant raises it in its own transaction: its row lock puts versions in commit order."""

tenancy_changes = Table(
    "tenancy_changes",
    METADATA,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(16), nullable=False),
    Column("id", ID, nullable=False),
)
"""What each version changed, for the caches of all processes; only the latest ones are kept."""

settings = Table("settings", METADATA, Column("name", String(64), primary_key=True), Column("value", Text, nullable=False))

usage_records = Table(
    "usage_records",
    METADATA,
    Column("request_id", String(128), primary_key=True),
    Column("key_id", ID, nullable=False),
    Column("team_id", ID, nullable=False),
    Column("org_id", ID, nullable=False),
    Column("model", String(256), nullable=False),
    Column("backend", String(256), nullable=False),
    Column("started_at_s", Double, nullable=False),
    Column("ended_at_s", Double, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost_nano_usd", BigInteger, nullable=False),
    Column("status", Integer, nullable=False),
    Column("outcome", String(64), nullable=False),
    Column("streamed", Boolean, nullable=False),
    Column("estimated", Boolean, nullable=False),
    Column("x_request_id", String(128), nullable=False, server_default=""),
    Index("usage_records_by_time", "ended_at_s"),
    Index("usage_records_by_key", "key_id", "ended_at_s"),
    Index("usage_records_by_team", "team_id", "ended_at_s"),
    Index("usage_records_by_org", "org_id", "ended_at_s"),
)

daily_spend = Table(
    "daily_spend",
    METADATA,
    Column("day", String(10), primary_key=True),
    Column("key_id", ID, primary_key=True),
    Column("team_id", ID, primary_key=True),
    Column("org_id", ID, primary_key=True),
    Column("model", String(256), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost_nano_usd", BigInteger, nullable=False),
)
"""Sums of `usage_records` per UTC day. A team and an organisation are those of the key at the time of the request."""

budget_spend = Table(
    "budget_spend",
    METADATA,
    Column("kind", String(8), primary_key=True),
    Column("id", ID, primary_key=True),
    Column("period_s", Double, primary_key=True),
    Column("period_start_s", Double, primary_key=True),
    Column("cost_nano_usd", BigInteger, nullable=False),
)
"""Spend of a scope within one period of its budget. The next period is another row: nothing is ever reset."""
