"""The kinds of backends, and where each answers about its health, its load and its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from argosy.errors import ConfigError


class BackendKind(StrEnum):
    """Engines that the gateway knows; `OPENAI` is any other server with OpenAI's API."""

    ARGOSY = "argosy"
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMA_CPP = "llama_cpp"
    TGI = "tgi"
    OLLAMA = "ollama"
    OPENAI = "openai"


@dataclass(frozen=True, slots=True)
class KindProfile:
    """What a kind of backend answers where.

    Attributes:
        live_path: any HTTP answer to GET means that the server lives; None: not probed.
        ready_path: 200 means that a request would be taken; None: judged by its answers only.
        loading_statuses: of `ready_path`, that announce a model still loading.
        loads_once: whether those statuses mean something else once the backend has been ready.
        inference_path: the backend's own deep check, asked instead of having it generate; None: it has none.
        generates: whether a deep probe may have it generate a token. False for foreign APIs, where that costs money.
        metrics_path: Prometheus text, or None.
        loaded_models_path: lists the models in memory where they come and go (Ollama); None elsewhere.
        load_path: has a model loaded there; None elsewhere.
        takes_cache_salt: whether `cache_salt` in a request's body separates its prefix cache.
    """

    live_path: str | None = None
    ready_path: str | None = None
    loading_statuses: tuple[int, ...] = ()
    loads_once: bool = False
    inference_path: str | None = None
    generates: bool = True
    metrics_path: str | None = None
    loaded_models_path: str | None = None
    load_path: str | None = None
    takes_cache_salt: bool = False


# vLLM's /health answers 503 once its engine is dead, and its port opens only when the model is there. llama.cpp answers 503
# whenever it loads; SGLang while it starts, and later when its scheduler hangs.
PROFILES: Mapping[BackendKind, KindProfile] = MappingProxyType(
    {
        BackendKind.ARGOSY: KindProfile(
            "/health/live",
            "/health/ready",
            inference_path="/health/inference",
            metrics_path="/metrics",
            takes_cache_salt=True,
        ),
        BackendKind.VLLM: KindProfile("/health", "/health", metrics_path="/metrics", takes_cache_salt=True),
        BackendKind.SGLANG: KindProfile("/health", "/health", (503,), loads_once=True, metrics_path="/metrics"),
        BackendKind.LLAMA_CPP: KindProfile("/health", "/health", (503,), metrics_path="/metrics"),
        BackendKind.TGI: KindProfile("/health", "/health", metrics_path="/metrics"),
        BackendKind.OLLAMA: KindProfile(
            "/api/version", "/api/tags", loaded_models_path="/api/ps", load_path="/api/generate"
        ),
        BackendKind.OPENAI: KindProfile(generates=False),
    }
)


def profile_of(kind: str) -> KindProfile:
    """The profile of the kind called `kind`.

    Raises:
        ConfigError: there is no such kind.
    """
    try:
        return PROFILES[BackendKind(kind)]
    except ValueError:
        raise ConfigError(f"backend kind {kind!r} is unknown: it is one of {', '.join(BackendKind)}") from None
