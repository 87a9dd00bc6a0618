"""What the admin API takes: LiteLLM's field names, strict types, unknown fields refused.

Each body tells the columns that it sets. An update sets those that it names, null included, which lifts a limit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from argosy.errors import InvalidRequest
from argosy.fleet.gateway.budgets import parse_duration_s
from argosy.fleet.gateway.endpoints import ENDPOINTS
from argosy.server.protocol.base import ListOf, Only, RequestModel

MAX_COUNT = 2**53
Count = Annotated[int | None, Field(ge=0, le=MAX_COUNT)]
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:@/-]+$")]
Alias = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]
Model = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^\S+$")]
Duration = Annotated[str, Field(max_length=12)]

COLUMN_OF: Mapping[str, str] = MappingProxyType(
    {
        "rpm_limit": "rpm",
        "tpm_limit": "tpm",
        "max_parallel_requests": "max_parallel",
        "max_kv_tokens": "kv_tokens",
        "max_budget": "max_budget_usd",
        "budget_duration": "budget_period_s",
        "soft_limits": "soft",
        "key_alias": "alias",
        "team_alias": "alias",
        "organization_alias": "alias",
        "user_alias": "alias",
        "user_email": "email",
        "organization_id": "org_id",
    }
)
"""Columns that are not called as the field is."""
NOT_COLUMNS = frozenset({"key", "duration", "expires", "soft_budget"})


class Body(RequestModel):
    """A body whose fields become columns."""

    def columns(self, *names_not: str) -> dict[str, Any]:
        """The columns that the body sets, without those that identify the row."""
        columns: dict[str, Any] = {}
        for name in self.model_fields_set - NOT_COLUMNS - set(names_not):
            value = getattr(self, name)
            if name == "budget_duration" and value is not None:
                value = parse_duration_s(value, name)
            columns[COLUMN_OF.get(name, name)] = value
        return columns


class Limited(Body):
    """Limits of a key, team or organisation, or of a budget object that they share."""

    rpm_limit: Count = None
    tpm_limit: Count = None
    max_parallel_requests: Count = None
    max_kv_tokens: Count = None
    max_input_tokens: Count = None
    max_output_tokens: Count = None
    max_budget: Annotated[float | None, Field(ge=0, le=9_000_000.0)] = None
    budget_duration: Duration | None = None
    soft_budget: Annotated[Any, Only(None, advice="alerts watch max_budget by themselves; leave it out")] = None


class Tenant(Limited):
    """What keys, teams and organisations have in common."""

    models: ListOf[Model] | None = None
    aliases: dict[Model, Model] | None = None
    metadata: dict[str, Any] | None = None
    blocked: bool = False
    budget_id: Name | None = None
    priority: Literal["critical", "standard", "best_effort"] | None = None
    tier: Annotated[str, Field(max_length=64)] | None = None
    weight: Annotated[float, Field(gt=0, le=1e6)] | None = None
    soft_limits: bool | None = None


class KeyFields(Tenant):
    """Of a key. `duration` from now on or the moment `expires`, not both."""

    key_alias: Alias | None = None
    team_id: Name | None = None
    organization_id: Name | None = None
    user_id: Name | None = None
    allowed_routes: ListOf[str] | None = None
    duration: Duration | None = None
    expires: Annotated[str, Field(max_length=40)] | None = None

    def columns(self, *names_not: str) -> dict[str, Any]:
        """As `Body.columns`, with the expiry as Unix time."""
        columns = super().columns(*names_not)
        for route in self.allowed_routes or ():
            if route not in ENDPOINTS:
                raise InvalidRequest(f"allowed_routes must be of {', '.join(ENDPOINTS)}", param="allowed_routes")
        if self.duration is not None and self.expires is not None:
            raise InvalidRequest("duration and expires say the same; leave one out", param="expires")
        if {"duration", "expires"} & self.model_fields_set:
            columns["expires_at_s"] = _expiry_s(self.duration, self.expires)
        return columns


class KeyGenerate(KeyFields):
    """`/key/generate`. `key` gives the key a certain secret."""

    key: str | None = None


class KeyUpdate(KeyFields):
    """`/key/update`; `key` is the key itself or its id, as in all bodies below."""

    key: str


class KeyName(RequestModel):
    """`/key/block`, `/key/unblock`."""

    key: str


class KeyRegenerate(RequestModel):
    """`/key/regenerate`: another secret; those before stay valid for `grace_period`."""

    key: str
    new_key: str | None = None
    grace_period: Duration | None = None


class KeyDelete(RequestModel):
    """`/key/delete`."""

    keys: Annotated[ListOf[str], Field(min_length=1, max_length=1000)]


class TeamNew(Tenant):
    """`/team/new`."""

    team_id: Name | None = None
    team_alias: Alias | None = None
    organization_id: Name | None = None


class TeamUpdate(TeamNew):
    """`/team/update`."""

    team_id: Name


class TeamDelete(RequestModel):
    """`/team/delete`: with their keys."""

    team_ids: Annotated[ListOf[Name], Field(min_length=1, max_length=1000)]


class Member(RequestModel):
    """One member of a team."""

    user_id: Name
    role: Literal["admin", "user"] = "user"


class TeamMemberAdd(RequestModel):
    """`/team/member_add`."""

    team_id: Name
    member: Member


class OrganizationNew(Tenant):
    """`/organization/new`."""

    organization_id: Name | None = None
    organization_alias: Alias | None = None


class OrganizationUpdate(OrganizationNew):
    """`/organization/update`."""

    organization_id: Name


class OrganizationDelete(RequestModel):
    """`/organization/delete`."""

    organization_ids: Annotated[ListOf[Name], Field(min_length=1, max_length=1000)]


class UserNew(Body):
    """`/user/new`. Users own keys and are members of teams; limits belong to those."""

    user_id: Name | None = None
    user_email: Annotated[str, Field(max_length=320, pattern=r"^[^@\s]+@[^@\s]+$")] | None = None
    user_alias: Alias | None = None
    metadata: dict[str, Any] | None = None


class BudgetNew(Limited):
    """`/budget/new`: limits that several keys, teams or organisations refer to, each with spend of its own."""

    budget_id: Name | None = None


class BudgetUpdate(BudgetNew):
    """`/budget/update`."""

    budget_id: Name


class BudgetDelete(RequestModel):
    """`/budget/delete`."""

    id: Name


def _expiry_s(duration: str | None, expires: str | None) -> float | None:
    if duration is not None:
        return time.time() + parse_duration_s(duration, "duration")
    if expires is None:
        return None
    try:
        moment = datetime.fromisoformat(expires)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not 1970 <= moment.year < 9999:
        raise InvalidRequest("expires must be a time with its zone, such as 2026-01-31T12:00:00Z", param="expires")
    return moment.timestamp()
