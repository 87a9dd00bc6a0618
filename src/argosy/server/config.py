"""Settings of the HTTP server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field

from argosy.errors import ConfigError
from argosy.observe.logs import LEVELS
from argosy.server.auth import digest_key

MIB = 2**20


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How one engine is put on the network.

    Attributes:
        host, port: where to listen; port 0 takes a free one.
        api_keys: if any, one of them must come with every request to `/v1/*`, `/tokenize` and `/detokenize`; health,
            metrics, version and the API document stay open. Only SHA-256 digests are kept, in `api_key_digests`.
        served_model_names: names that requests may use, the first one in answers to requests that name none; empty means
            the engine's own.
        max_body_bytes: largest request body.
        max_prompts: most prompts in one completion request; never more than may wait in the engine.
        max_concurrent_requests: HTTP requests answered at once, health and metrics not counted; one more gets 429. None
            is no limit beyond the engine's queue.
        body_timeout_s, header_timeout_s: how long a client may take to send them.
        keep_alive_timeout_s: how long an idle connection is kept.
        ping_interval_s: silence in an event stream after which a comment is sent; 0 sends none.
        drain_timeout_s: how long running requests may go on after SIGTERM.
        inference_check_timeout_s: how long `/health/inference` waits for its token.
        inference_check_ttl_s: how long its outcome is given out again.
        inference_entropy_band: entropy of the next token that counts as sane, as fractions of ln(logits width); outside
            are one-hot and uniform distributions, which broken weights produce.
        log_level, log_format: "debug", "info", "warning" or "error"; "text" or "json".
        log_prompts: whether prompts are written to the log.
        docs: whether `/docs` and `/openapi.json` are served.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: InitVar[Sequence[str]] = ()
    served_model_names: tuple[str, ...] = ()
    max_body_bytes: int = 16 * MIB
    max_prompts: int = 256
    max_concurrent_requests: int | None = None
    body_timeout_s: float = 60.0
    header_timeout_s: float = 30.0
    keep_alive_timeout_s: int = 75
    ping_interval_s: float = 15.0
    drain_timeout_s: float = 30.0
    inference_check_timeout_s: float = 10.0
    inference_check_ttl_s: float = 1.0
    inference_entropy_band: tuple[float, float] = (0.001, 0.9995)
    log_level: str = "info"
    log_format: str = "text"
    log_prompts: bool = False
    docs: bool = True
    api_key_digests: tuple[bytes, ...] = field(init=False, repr=False)

    def __post_init__(self, api_keys: Sequence[str]) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if isinstance(api_keys, str):
            raise ConfigError("api_keys takes a sequence of keys, got one string")
        if any(not key.strip() or key != key.strip() for key in api_keys):
            raise ConfigError("an API key must not be blank or begin or end with blanks")
        object.__setattr__(self, "api_key_digests", tuple(digest_key(key) for key in api_keys))
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be within [0, 65535], got {self.port}")
        if any(not name.strip() for name in self.served_model_names):
            raise ConfigError("a served model name must not be blank")
        for name in ("max_body_bytes", "max_prompts", "keep_alive_timeout_s"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_concurrent_requests is not None and self.max_concurrent_requests < 1:
            raise ConfigError(f"max_concurrent_requests must be at least 1, got {self.max_concurrent_requests}")
        for name in ("body_timeout_s", "header_timeout_s", "inference_check_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("ping_interval_s", "drain_timeout_s", "inference_check_ttl_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        low, high = self.inference_entropy_band
        if not 0.0 <= low < high <= 1.0:
            raise ConfigError(f"inference_entropy_band must be within [0, 1] and rising, got {low}, {high}")
        if self.log_level not in LEVELS or self.log_format not in ("text", "json"):
            raise ConfigError(f"log_level takes {', '.join(LEVELS)}; log_format takes text or json")
