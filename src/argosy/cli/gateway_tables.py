"""What `argosy gateway --check` shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from argosy.cli.terminal import printable
from argosy.fleet.routing_settings import RoutingSettings

if TYPE_CHECKING:
    from argosy.fleet.gateway.config import GatewayConfig
    from argosy.fleet.policies.limits import Limits


def summary_of(config: GatewayConfig) -> dict[str, Any]:
    """Every setting as it is in force, defaults included, and the environment variables that are not set."""
    return {**_plain(config), "missing_variables": missing_variables(config)}


def _plain(value: Any) -> Any:
    """`value` as JSON has it: what can be set, without what follows from it."""
    if isinstance(value, RoutingSettings):
        return {"policy": value.policy, **_plain(value.settings)}
    if is_dataclass(value):
        return {member.name: _plain(getattr(value, member.name)) for member in fields(value) if member.init}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def missing_variables(config: GatewayConfig) -> list[str]:
    """Environment variables that the configuration names and that are not set."""
    names = dict.fromkeys(name for _, name in config.secret_names())
    return [name for name in names if not os.environ.get(name, "").strip()]


def show_config(config: GatewayConfig) -> None:
    """Print models with their backends, then tenants with their limits, then the rest in a line each."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    models = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("MODEL", "ROUTING", "BACKEND", "KIND", "URL", "WEIGHT"):
        models.add_column(column, justify="right" if column == "WEIGHT" else "left", overflow="fold")
    for model in config.models:
        more = [f"  alias {alias}" for alias in model.aliases] + [f"  fallback {name}" for name in model.fallbacks]
        names = "\n".join((model.name, *more))
        for number, backend in enumerate(model.backends):
            first = (printable(names), model.routing.policy) if number == 0 else ("", "")
            models.add_row(*first, printable(backend.name), backend.kind, printable(backend.url), f"{backend.weight:g}")
    console.print(models)
    if config.tenants:
        console.print()
        console.print(_tenants(config))
    console.print()
    for name, value in _lines(config):
        console.print(f"{name:<14}{printable(value)}")


def _tenants(config: GatewayConfig) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("TENANT", "TEAM", "KEY", "MODELS", "PRIORITY", "LIMITS"):
        table.add_column(column, overflow="fold")
    for organisation in config.tenants:
        table.add_row(organisation.id, "", "", "", "", limits_text(organisation.limits))
        for team in organisation.teams:
            table.add_row("", team.id, "", "", "", limits_text(team.limits))
            for key in team.keys:
                models = printable(", ".join(key.models)) or "all"
                table.add_row("", "", key.id, models, key.priority, limits_text(key.limits))
    return table


def limits_text(limits: Limits) -> str:
    """The limits that are set, as one line."""
    names = ("rpm", "tpm", "max_parallel", "kv_tokens", "max_input_tokens", "max_output_tokens")
    parts = [f"{name} {getattr(limits, name)}" for name in names if getattr(limits, name) is not None]
    if limits.max_budget_usd is not None:
        period = "" if limits.budget_period_s is None else f" per {limits.budget_period_s / 86400:g} d"
        parts.append(f"${limits.max_budget_usd:g}{period}")
    return ", ".join(parts) or "none"


def _lines(config: GatewayConfig) -> list[tuple[str, str]]:
    host = f"[{config.listen.host}]" if ":" in config.listen.host else config.listen.host
    store, redis, observability = config.store, config.redis, config.observability
    lines = [
        ("listens on", f"{host}:{config.listen.port}"),
        ("lets in", "everybody" if config.auth.mode == "open" else "keys of tenants"),
        ("admin API", f"key in {config.auth.master_key_env}" if config.auth.master_key_env else "closed"),
        ("store", "none" if store is None else f"URL in {store.url_env}" if store.url_env else store.url),
        ("limits", "in this process" if redis is None else f"shared through Redis; on its loss: {redis.on_loss}"),
        ("access log", observability.access_log or "none"),
        ("traces", observability.tracing.endpoint if observability.tracing else "none"),
    ]
    if missing := missing_variables(config):
        lines.append(("not set", ", ".join(missing)))
    return lines
