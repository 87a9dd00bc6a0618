"""What the configuration must say for a model that is routed by KV events."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from argosy.errors import ConfigError
from argosy.fleet.gateway.config_models import ModelSettings
from argosy.models.catalogue import CATALOGUE, find_known_model
from argosy.settings.schema import nearest


def check_precise(number: int, model: ModelSettings) -> None:
    """Raise `ConfigError` for a model of the file whose precise routing lacks something, or has it to no purpose."""
    is_precise = model.routing.policy == "prefix_precise"
    path = f"models[{number}]"
    for place, backend in enumerate(model.backends):
        if backend.kv_events is not None and not is_precise:
            where = f"{path}.backends[{place}].kv_events"
            raise ConfigError(f"{where} has no effect: only routing by prefix_precise follows KV events", param=where)
    if model.tokenizer is not None and not is_precise:
        raise ConfigError(
            f"{path}.tokenizer has no effect: only routing by prefix_precise needs it", param=f"{path}.tokenizer"
        )
    if not is_precise:
        return
    if model.tokenizer is None:
        raise ConfigError(
            f"{path}.routing: prefix_precise needs the prompt's tokens: name the model's tokenizer in {path}.tokenizer, "
            "or use prefix_aware",
            param=f"{path}.routing",
        )
    if all(backend.kv_events is None for backend in model.backends):
        raise ConfigError(
            f"{path}.routing: prefix_precise needs kv_events of at least one backend; without, use prefix_aware",
            param=f"{path}.routing",
        )
    _require("zmq", "msgspec", what=f"{path}.routing: prefix_precise")
    _require("tokenizers", "jinja2", "gguf", what=f"{path}.tokenizer")
    name = model.tokenizer.model
    if find_known_model(name) is None and not Path(name).expanduser().exists():
        near = nearest(name, [known.name for known in CATALOGUE])
        raise ConfigError(f"{path}.tokenizer: there is no file, folder or model {name!r}: {near}", param=f"{path}.tokenizer")


def _require(*modules: str, what: str) -> None:
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{what} needs {' and '.join(missing)}: pip install 'argosy[gateway]'")
