"""Which routing policy, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.named import POLICIES
from argosy.fleet.policies.routing.policy import RoutingPolicy
from argosy.settings.schema import from_function, nearest


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """A policy of `fleet.policies.routing.named` by name; its settings stand beside the name.

    Attributes:
        path: what messages call it.
    """

    policy: str = "least_load"
    settings: Mapping[str, Any] = field(default_factory=dict)
    path: str = "routing"

    @classmethod
    def from_settings(cls, value: object, path: str) -> RoutingSettings:
        """From `{policy: NAME, setting: value, …}`, or the name alone.

        Raises:
            ConfigError: the name or a setting is unknown, or a value is out of range.
        """
        stated = {"policy": value} if isinstance(value, str) else value
        if not isinstance(stated, Mapping) or "policy" not in stated:
            raise ConfigError(f"{path} must be the name of a policy, or a mapping with the key policy", param=path)
        name = stated["policy"]
        if not isinstance(name, str) or name not in POLICIES:
            what = f"{path}: routing policy {name!r} is unknown: {nearest(str(name), POLICIES)}"
            raise ConfigError(what, param=path if stated is not value else f"{path}.policy")
        settings = cls(name, {key: item for key, item in stated.items() if key != "policy"}, path)
        # Its faults are to be told when the file is read; the block size is not known yet.
        settings.make(block_tokens=1)
        return settings

    def make(self, *, block_tokens: int) -> RoutingPolicy:
        """The policy, with tables of its own.

        Args:
            block_tokens: of the replicas' KV blocks, for a policy that asks for them and was given none.

        Raises:
            ConfigError: as `from_settings`.
        """
        settings = dict(self.settings)
        if self.policy == "prefix_precise":
            settings.setdefault("block_tokens", block_tokens)
        return from_function(POLICIES[self.policy], settings, self.path)
