"""Where KV events of a backend come from, and which tokenizer a model has: for routing by prefix_precise."""

from __future__ import annotations

import re
from dataclasses import dataclass

from argosy.cost.checks import at_least_one, positive
from argosy.errors import ConfigError
from argosy.settings.schema import from_mapping

_ENDPOINT = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})|ipc://(?P<path>/.{1,100})")
_HUB_PREFIX = "hf:"


def check_endpoint(setting: str, value: str) -> None:
    """Raise `ConfigError` unless `value` is an address that can be connected to."""
    found = _ENDPOINT.fullmatch(value)
    if found is None or (found["port"] is not None and not 0 < int(found["port"]) < 65536):
        raise ConfigError(f"{setting} must be tcp://HOST:PORT or ipc:///PATH, got {value[:200]!r}", param=setting)


@dataclass(frozen=True, slots=True)
class KvEventSettings:
    """The KV event stream of a backend, as vLLM and `argosy serve --kv-events-endpoint` publish it.

    Attributes:
        endpoint: of its events, `tcp://HOST:PORT` or `ipc:///PATH`.
        replay_endpoint: where to ask for events again; None: after a gap what is known of the backend is dropped.
        topic: with which the topics of its messages begin.
        max_blocks: remembered of it at once; further ones are left out until it removes some.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    max_blocks: int = 500_000

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible."""
        check_endpoint("endpoint", self.endpoint)
        if self.replay_endpoint is not None:
            check_endpoint("replay_endpoint", self.replay_endpoint)
            if self.replay_endpoint == self.endpoint:
                raise ConfigError("replay_endpoint must be another address than endpoint")
        if len(self.topic) > 256:
            raise ConfigError("topic must be at most 256 characters")
        at_least_one(max_blocks=self.max_blocks)


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """Turns prompts into tokens as the backends do.

    Attributes:
        model: a name of the model catalogue, a GGUF file, or a folder with `tokenizer.json` and `tokenizer_config.json`.
        timeout_s: for one prompt; one that takes longer is matched approximately.
        max_pending: prompts that may wait for their turn; further ones are matched approximately.
        max_characters: of a prompt that are encoded; what comes later is not matched.
    """

    model: str
    timeout_s: float = 0.05
    max_pending: int = 64
    max_characters: int = 200_000

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible."""
        if not self.model.strip():
            raise ConfigError("model must name a tokenizer")
        if self.model.startswith(_HUB_PREFIX):
            raise ConfigError(
                "model must not be of the hub, of which a gateway would fetch the weights too: put tokenizer.json and "
                "tokenizer_config.json into a folder and give that"
            )
        positive(timeout_s=self.timeout_s)
        at_least_one(max_pending=self.max_pending, max_characters=self.max_characters)

    @classmethod
    def from_settings(cls, value: object, path: str) -> TokenizerSettings:
        """From a mapping, or the model alone."""
        return from_mapping(cls, {"model": value} if isinstance(value, str) else value, path)
