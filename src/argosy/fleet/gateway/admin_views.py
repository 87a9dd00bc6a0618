"""Rows of tenants as the admin API shows them, under LiteLLM's names. No row holds a key or its hash."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from argosy.fleet.gateway.budgets import format_duration
from argosy.fleet.gateway.tenancy_records import BUDGET, KEY, ORG, TEAM, USER, Kind, Page

_PREFIX = {KEY.name: "key", TEAM.name: "team", ORG.name: "organization", USER.name: "user"}
_LIMITS = {
    "rpm": "rpm_limit",
    "tpm": "tpm_limit",
    "max_parallel": "max_parallel_requests",
    "kv_tokens": "max_kv_tokens",
    "max_budget_usd": "max_budget",
    "soft": "soft_limits",
    "org_id": "organization_id",
    "email": "user_email",
    "spend_usd": "spend",
}
_TIMES = {"created_at_s": "created_at", "updated_at_s": "updated_at", "expires_at_s": "expires"}


def view(kind: Kind, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON: durations and times as texts, money in dollars."""
    prefix = _PREFIX.get(kind.name, kind.name)
    shown: dict[str, Any] = {f"{prefix}_id": row["id"]}
    for name, value in row.items():
        if name == "last_four":
            shown["key_name"] = f"sk-...{value}"
        elif name == "alias":
            shown[f"{prefix}_alias"] = value
        elif name == "budget_period_s":
            shown["budget_duration"] = None if value is None else format_duration(value)
        elif name == "old_secrets_until_s":
            shown["old_keys_valid_until"] = [_iso(until_s) for until_s in value]
        elif name in _TIMES:
            shown[_TIMES[name]] = None if value is None else _iso(value)
        elif name != "id":
            shown[_LIMITS.get(name, name)] = value
    return shown


def page_view(kind: Kind, page: Page, member: str) -> dict[str, Any]:
    """A page with its rows under `member`."""
    return {
        member: [view(kind, row) for row in page.rows],
        "total_count": page.total_count,
        "current_page": page.page,
        "total_pages": page.total_pages,
    }


def budget_view(row: Mapping[str, Any]) -> dict[str, Any]:
    """A budget object."""
    return view(BUDGET, row)


def _iso(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
