"""From the configuration of a LiteLLM proxy to one of ours.

What has no equivalent is not dropped in silence: it is noted, and the notes stand as comments in the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from argosy.errors import ConfigFileError
from argosy.fleet.gateway.config import parse_config
from argosy.fleet.gateway.litellm_models import Notes, imported_models, secret_variable
from argosy.settings.yaml_file import YamlFile, parse_yaml, read_yaml

_STRATEGIES: Mapping[str, Any] = MappingProxyType(
    {
        "simple-shuffle": "weighted_random",
        "least-busy": "least_load",
        "usage-based-routing": {"policy": "least_load", "load": "tokens"},
        "usage-based-routing-v2": {"policy": "least_load", "load": "tokens"},
        "latency-based-routing": "least_latency",
        "cost-based-routing": "cost_aware",
    }
)
# Always so here: retrying within limits, checking lengths beforehand, probing in the background, counting for Prometheus.
_ALWAYS = ("enable_pre_call_checks", "background_health_checks", "set_verbose", "json_logs")
_SECTIONS = ("model_list", "router_settings", "litellm_settings", "general_settings")


@dataclass(frozen=True, slots=True)
class ImportedConfig:
    """A configuration of ours, as text, and what did not come over, one line each."""

    text: str
    notes: tuple[str, ...]


def import_litellm(path: Path) -> ImportedConfig:
    """The LiteLLM configuration at `path` as one of ours, which is valid.

    Raises:
        ConfigFileError: it cannot be read, or nothing in it can be served.
    """
    return imported(read_yaml(path))


def imported(file: YamlFile) -> ImportedConfig:
    """As `import_litellm`, of a file that is read."""
    if not isinstance(file.values, Mapping) or "model_list" not in file.values:
        raise ConfigFileError(f"{file.name}:1: is no configuration of LiteLLM's proxy: it has no model_list")
    notes = Notes()
    sections = {name: _section(file.values, name, notes) for name in _SECTIONS[1:]}
    models = imported_models(file.values["model_list"], notes)
    if not models:
        reason = f": {notes.lines[0]}" if notes.lines else ""
        raise ConfigFileError(f"{file.name}:1: no model of it can be served{reason}")
    result: dict[str, Any] = {"models": list(models.values())}
    _routing(sections["router_settings"], models, notes)
    _fallbacks(sections, models, notes)
    _resilience(sections, result, notes)
    _stores(sections["router_settings"], sections["general_settings"], result, notes)
    for name, section in sections.items():
        for setting in _ALWAYS:
            section.pop(setting, None)
        notes.rest(section, name)
    for name in file.values:
        if name not in _SECTIONS:
            notes.add(str(name), "has no equivalent here and was left out")
    text = _written(result, file.name, notes)
    parse_config(parse_yaml(text, f"{file.name} (imported)"))
    return ImportedConfig(text, tuple(notes.lines))


def _section(values: Mapping[str, Any], name: str, notes: Notes) -> dict[str, Any]:
    section = values.get(name)
    if section is None or isinstance(section, Mapping):
        return dict(section or {})
    notes.add(name, "is no mapping and was left out")
    return {}


def _routing(router: dict[str, Any], models: dict[str, dict[str, Any]], notes: Notes) -> None:
    strategy = router.pop("routing_strategy", "simple-shuffle")
    if strategy not in _STRATEGIES:
        notes.add("router_settings.routing_strategy", f"{strategy!r} is unknown; weighted_random takes its place")
        strategy = "simple-shuffle"
    for model in models.values():
        model["routing"] = _STRATEGIES[strategy]
    for alias, target in (router.pop("model_group_alias", None) or {}).items():
        name = target.get("model") if isinstance(target, Mapping) else target
        if name in models:
            models[name].setdefault("aliases", []).append(str(alias))
        else:
            notes.add(f"router_settings.model_group_alias.{alias}", f"there is no model {name!r}")


def _fallbacks(sections: Mapping[str, dict[str, Any]], models: dict[str, dict[str, Any]], notes: Notes) -> None:
    """LiteLLM has a list per reason; ours is one list with reasons, so lists that differ become one, in order."""
    kinds = (("fallbacks", ("timeout", "overload")), ("context_window_fallbacks", ("context_length",)))
    reasons: dict[str, list[str]] = {}
    for name in ("router_settings", "litellm_settings"):
        section = sections[name]
        for setting, why in kinds:
            for source, targets in _pairs(section.pop(setting, None)):
                path = f"{name}.{setting}.{source}"
                if source not in models:
                    notes.add(path, f"there is no model {source!r}")
                    continue
                known = _extend(models[source], targets, models, path, notes)
                if known:
                    found = reasons.setdefault(source, [])
                    if found and not set(why) <= set(found):
                        notes.add(path, "joined with the model's other fallbacks: one list serves every reason")
                    found += [reason for reason in why if reason not in found]
        default = section.pop("default_fallbacks", None) or []
        for source, model in models.items() if default else ():
            if _extend(model, default, models, f"{name}.default_fallbacks", notes):
                reasons.setdefault(source, []).extend(
                    reason for reason in kinds[0][1] if reason not in reasons.get(source, [])
                )
    for source, found in reasons.items():
        models[source]["fallback_on"] = found


def _pairs(value: object) -> list[tuple[str, list[str]]]:
    entries = value if isinstance(value, list) else []
    return [
        (str(name), [str(one) for one in targets] if isinstance(targets, list) else [str(targets)])
        for entry in entries
        if isinstance(entry, Mapping)
        for name, targets in entry.items()
    ]


def _extend(model: dict[str, Any], targets: list[str], models: Mapping[str, object], path: str, notes: Notes) -> bool:
    chain = model.get("fallbacks", [])
    for target in targets:
        if target not in models:
            notes.add(path, f"there is no model {target!r}")
        elif target != model["name"] and target not in chain:
            chain.append(target)
    if chain:
        model["fallbacks"] = chain
    return bool(chain)


def _resilience(sections: Mapping[str, dict[str, Any]], result: dict[str, Any], notes: Notes) -> None:
    router, litellm, general = (sections[name] for name in _SECTIONS[1:])
    resilience: dict[str, Any] = {}
    retries = _first(router, litellm, "num_retries")
    if retries is not None:
        resilience["retries"] = {"max_retries": retries}
    timeout_s = _first(router, litellm, "timeout", "request_timeout")
    if timeout_s is not None:
        resilience["timeouts"] = {"total_s": timeout_s}
    cooldown_s = router.pop("cooldown_time", None)
    if cooldown_s is not None:
        resilience["breaker"] = {"open_s": cooldown_s}
    if router.pop("allowed_fails", None) is not None:
        notes.add(
            "router_settings.allowed_fails", "a breaker opens by the part of answers that fail; see resilience.breaker"
        )
    interval_s = general.pop("health_check_interval", None)
    if interval_s is not None:
        resilience["health"] = {"ready": {"interval_s": interval_s, "timeout_s": min(3, interval_s), "failures": 2}}
    if resilience:
        result["resilience"] = resilience


def _first(router: dict[str, Any], litellm: dict[str, Any], *names: str) -> Any:
    """The first of these settings that is given; the router's own come first, as in LiteLLM."""
    given = [section.pop(name) for section in (router, litellm) for name in names if section.get(name) is not None]
    return given[0] if given else None


def _stores(router: dict[str, Any], general: dict[str, Any], result: dict[str, Any], notes: Notes) -> None:
    master = secret_variable(general.pop("master_key", None), "general_settings.master_key", "argosy_master_key", notes)
    if master is not None:
        result["auth"] = {"mode": "keys", "master_key_env": master}
    else:
        result["auth"] = {"mode": "open"}
        notes.add("general_settings.master_key", 'is not set, so LiteLLM lets everybody in; auth.mode is "open" likewise')
    store: dict[str, Any] = {}
    if general.pop("database_url", None):
        # Not its variable either: the process's environment still holds it, and the gateway would make tables in there.
        remedy = "the gateway keeps the default store, a file of its own; another database goes into store.url_env"
        notes.add("general_settings.database_url", f"its tables are LiteLLM's, so it was left out: {remedy}")
    loss = general.pop("allow_requests_on_db_unavailable", None)
    if loss is not None:
        store["serve_on_store_loss"] = loss
    if store:
        result["store"] = store
    host, port = router.pop("redis_host", None), router.pop("redis_port", 6379)
    password = secret_variable(router.pop("redis_password", None), "router_settings.redis_password", "redis_password", notes)
    if isinstance(host, str) and not host.startswith("os.environ/") and password is None:
        result["redis"] = {"url": f"redis://{host}:{port}/0"}
    elif host is not None:
        result["redis"] = {"url_env": "REDIS_URL"}
        notes.add("router_settings.redis_host", "put redis://:PASSWORD@HOST:PORT/0 into the environment variable REDIS_URL")


def _written(result: dict[str, Any], name: str, notes: Notes) -> str:
    head = [f"# From {Path(name).name}, a configuration of LiteLLM's proxy."]
    head += (
        ["# Not carried over as it was:", *(f"#   {' '.join(line.split())}" for line in notes.lines)] if notes.lines else []
    )
    return "\n".join(head) + "\n" + yaml.safe_dump(result, sort_keys=False, allow_unicode=True)
