"""The `model_list` of a LiteLLM proxy's configuration as models and backends of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

# (kind, root of its API) by LiteLLM's prefix of a model. Only those that speak OpenAI's protocol.
_PROVIDERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "openai": ("openai", "https://api.openai.com"),
        "text-completion-openai": ("openai", "https://api.openai.com"),
        "openai_like": ("openai", ""),
        "custom_openai": ("openai", ""),
        "hosted_vllm": ("vllm", ""),
        "llamafile": ("llama_cpp", "http://127.0.0.1:8080"),
        "ollama": ("ollama", "http://127.0.0.1:11434"),
        "ollama_chat": ("ollama", "http://127.0.0.1:11434"),
        "huggingface": ("tgi", ""),
        "lm_studio": ("openai", "http://127.0.0.1:1234"),
        "groq": ("openai", "https://api.groq.com/openai"),
        "mistral": ("openai", "https://api.mistral.ai"),
        "deepseek": ("openai", "https://api.deepseek.com"),
        "together_ai": ("openai", "https://api.together.xyz"),
        "openrouter": ("openai", "https://openrouter.ai/api"),
        "fireworks_ai": ("openai", "https://api.fireworks.ai/inference"),
        "xai": ("openai", "https://api.x.ai"),
    }
)
_ENVIRONMENT = "os.environ/"


@dataclass(slots=True)
class Notes:
    """What did not come over as it was, one line each, by its path in LiteLLM's file."""

    lines: list[str] = field(default_factory=list)

    def add(self, path: str, what: str) -> None:
        """Note `what` of the setting at `path`."""
        self.lines.append(f"{path}: {what}")

    def rest(self, settings: Mapping[str, Any], path: str) -> None:
        """Note every setting that is left: nobody asked for it."""
        for name in settings:
            self.add(f"{path}.{name}", "has no equivalent here and was left out")


def secret_variable(value: object, path: str, fallback: str, notes: Notes) -> str | None:
    """The environment variable that holds a secret. One written out is not copied: the name to put it under is noted."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.startswith(_ENVIRONMENT):
        return value.removeprefix(_ENVIRONMENT)
    name = re.sub(r"[^A-Z0-9]+", "_", fallback.upper()).strip("_")
    name = name if name[:1].isalpha() else f"KEY_{name}"
    notes.add(path, f"stands in the file; it was not copied: put it into the environment variable {name}")
    return name


def imported_models(entries: object, notes: Notes) -> dict[str, dict[str, Any]]:
    """Our settings of a model by its name, from LiteLLM's list; entries of one name become backends of one model."""
    models: dict[str, dict[str, Any]] = {}
    for path, name, entry in _named(entries, notes):
        backend, price = _backend(entry, path, name, notes)
        if backend is None:
            continue
        model = models.setdefault(name, {"name": name, "backends": []})
        backend["name"] = f"{name}-{len(model['backends']) + 1}"
        if price:
            backend["price"] = price
        model["backends"].append(backend)
    return models


def _named(entries: object, notes: Notes) -> Iterator[tuple[str, str, dict[str, Any]]]:
    if not isinstance(entries, list):
        notes.add("model_list", "is no list and was left out")
        return
    for number, entry in enumerate(entries):
        path = f"model_list[{number}]"
        name = entry.get("model_name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not isinstance(entry.get("litellm_params"), Mapping):
            notes.add(path, "needs model_name and litellm_params; it was left out")
        elif "*" in name:
            notes.add(path, f"{name!r} stands for many models; name each one")
        else:
            yield path, name, dict(entry)


def _backend(entry: dict[str, Any], path: str, name: str, notes: Notes) -> tuple[dict[str, Any] | None, dict[str, float]]:
    """(our backend or None if it cannot be one, prices of its tokens)."""
    params = dict(entry.pop("litellm_params"))
    info = dict(entry.pop("model_info", None) or {})
    entry.pop("model_name")
    where = f"{path}.litellm_params"
    asked = str(params.pop("model", ""))
    prefix, slash, model = asked.partition("/")
    provider = params.pop("custom_llm_provider", None) or (prefix if slash else "openai")
    if provider not in _PROVIDERS:
        notes.add(where, f"provider {provider!r} does not speak OpenAI's protocol; put a server that does in front of it")
        return None, {}
    kind, root = _PROVIDERS[provider]
    url = params.pop("api_base", None) or params.pop("base_url", None) or root
    if not isinstance(url, str) or not url:
        notes.add(where, f"provider {provider!r} needs api_base; the backend was left out")
        return None, {}
    if url.startswith(_ENVIRONMENT):
        notes.add(f"{where}.api_base", "an address is written into the file here; the backend was left out")
        return None, {}
    backend: dict[str, Any] = {"url": url, "kind": kind, "model": model if slash and provider == prefix else asked}
    key = secret_variable(params.pop("api_key", None), f"{where}.api_key", f"{name}_api_key", notes)
    if key is not None and key not in ("none", "None"):
        backend["api_key_env"] = key
    for theirs, ours in (("weight", "weight"), ("max_parallel_requests", "max_in_flight"), ("region_name", "region")):
        if params.get(theirs) is not None:
            backend[ours] = params.pop(theirs)
    price = _price(params, info)
    info.pop("id", None)
    notes.rest(params, where)
    notes.rest(info, f"{path}.model_info")
    notes.rest(entry, path)
    return backend, price


def _price(params: dict[str, Any], info: dict[str, Any]) -> dict[str, float]:
    """LiteLLM's dollars per token as ours per million; both of its places for them are read, its params first."""
    names = (
        ("input_cost_per_token", "input_usd_per_million"),
        ("output_cost_per_token", "output_usd_per_million"),
        ("cache_read_input_token_cost", "cached_input_usd_per_million"),
    )
    price: dict[str, float] = {}
    for theirs, ours in names:
        given = [one.pop(theirs) for one in (params, info) if one.get(theirs) is not None]
        if given:
            price[ours] = round(float(given[0]) * 1e6, 9)
    return price
