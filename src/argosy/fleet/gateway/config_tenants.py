"""Tenants that stand in the configuration file: organisations, their teams, their keys.

Others live in the store and are managed with `argosy keys` or over the admin API; both kinds are valid at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from argosy.errors import ConfigError
from argosy.fleet.gateway.config_models import MODEL_NAME, check_env_name, check_one_of
from argosy.fleet.policies.limits import Limits

PRIORITIES = ("critical", "standard", "best_effort")
_ID = re.compile(r"[A-Za-z0-9_.@-]{1,64}")


def _check_id(name: str) -> None:
    if _ID.fullmatch(name) is None:
        raise ConfigError(f"id must be letters, digits, '_', '-', '.' and '@', at most 64, got {name[:80]!r}")


@dataclass(frozen=True, slots=True)
class KeySettings:
    """One API key. The key itself stands in an environment variable, never in the file.

    Attributes:
        id: how logs, metrics and spend name it.
        key_env: environment variable that holds it.
        models: names it may use; empty is all.
        priority: class of its requests; tier: for rules that choose models.
        limits: of this key, beside those of its team and organisation.
    """

    id: str
    key_env: str
    models: tuple[str, ...] = ()
    priority: str = "standard"
    tier: str = ""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible."""
        _check_id(self.id)
        check_env_name(key_env=self.key_env)
        check_one_of("priority", self.priority, PRIORITIES)
        if any(MODEL_NAME.fullmatch(name) is None for name in self.models):
            raise ConfigError("models must hold names of models")


@dataclass(frozen=True, slots=True)
class TeamSettings:
    """Keys with limits in common."""

    id: str
    keys: tuple[KeySettings, ...] = ()
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an id that cannot be one."""
        _check_id(self.id)


@dataclass(frozen=True, slots=True)
class OrganisationSettings:
    """One tenant: what isolation, fairness and caches tell apart.

    Attributes:
        weight: its share of a backend that is full, relative to other tenants.
        limits: of all its teams together.
    """

    id: str
    teams: tuple[TeamSettings, ...] = ()
    weight: float = 1.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible."""
        _check_id(self.id)
        if not 0.0 < self.weight <= 1e6:
            raise ConfigError(f"weight must be above 0 and at most 1e6, got {self.weight}")
