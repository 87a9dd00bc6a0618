"""Models that the gateway offers, and the backends that serve them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from argosy.cost.checks import at_least_one, not_negative
from argosy.errors import ConfigError
from argosy.fleet.gateway.backend_kinds import BackendKind, profile_of
from argosy.fleet.gateway.config_kv import KvEventSettings, TokenizerSettings
from argosy.fleet.routing_settings import RoutingSettings
from argosy.settings.schema import nearest

FALLBACK_REASONS = ("timeout", "overload", "error", "context_length")
SPLITS = ("request", "conversation")
MODEL_NAME = re.compile(r"[^\s\x00-\x1f\x7f]{1,200}")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_env_name(**names: str | None) -> None:
    """Raise `ConfigError` for the first of `names` that is no name of an environment variable."""
    for setting, name in names.items():
        if name is not None and ENV_NAME.fullmatch(name) is None:
            # The value is not shown: what stands here by mistake is likely the secret itself.
            raise ConfigError(f"{setting} takes the name of an environment variable, not the secret itself")


def check_one_of(setting: str, value: str, known: tuple[str, ...]) -> None:
    """Raise `ConfigError` naming the nearest of `known` if `value` is none of them."""
    if value not in known:
        raise ConfigError(f"{setting} {value!r} is unknown: {nearest(value, known)}", param=setting)


@dataclass(frozen=True, slots=True)
class PriceSettings:
    """US dollars per million tokens; a cached prompt token costs like any other unless its price is given."""

    input_usd_per_million: float = 0.0
    output_usd_per_million: float = 0.0
    cached_input_usd_per_million: float | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the price that is negative."""
        for name in ("input_usd_per_million", "output_usd_per_million", "cached_input_usd_per_million"):
            value = getattr(self, name)
            if value is not None:
                not_negative(**{name: value})


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """One engine, or one API that behaves like one.

    Attributes:
        url: its root, `http(s)://host[:port][/path]`; `/v1/…` is added to it, and a trailing `/v1` is dropped.
        kind: whose health and metrics endpoints it has; "openai" has none and is judged by its answers.
        name: unique in the file; "" is host and port of the URL.
        model: what the backend calls the model; None is the name that the gateway gives it.
        weight: capacity relative to the model's other backends; 0 means that it gets no request.
        api_key_env: environment variable with the key that is sent to it; clients' keys never are.
        region: where it stands, for routing by region.
        max_model_len: longest sequence in tokens; longer requests go elsewhere. None is unknown.
        max_in_flight: requests that it is sent at once; None is what `resilience.bulkhead` says.
        tenants: ids of the organisations it is set apart for; they use no other backends of the model. Empty: for the rest.
        kv_capacity_tokens: of its KV pool, where it does not tell itself.
        usd_per_hour: its price, for routing by cost.
        price: of its tokens; None is the model's.
        kv_events: where its KV events come from, for routing by prefix_precise; None is nowhere.
    """

    url: str
    kind: str = "openai"
    name: str = ""
    model: str | None = None
    weight: float = 1.0
    api_key_env: str | None = None
    region: str = ""
    max_model_len: int | None = None
    max_in_flight: int | None = None
    tenants: tuple[str, ...] = ()
    kv_capacity_tokens: int | None = None
    usd_per_hour: float = 0.0
    price: PriceSettings | None = None
    kv_events: KvEventSettings | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible; derive `name`, normalise `url`."""
        parts = _checked_url(self.url)
        path = parts.path.rstrip("/").removesuffix("/v1")
        object.__setattr__(self, "url", f"{parts.scheme}://{parts.netloc}{path}")
        if not self.name:
            object.__setattr__(self, "name", f"{parts.netloc}{path}")
        check_one_of("kind", self.kind, tuple(BackendKind))
        check_env_name(api_key_env=self.api_key_env)
        not_negative(weight=self.weight, usd_per_hour=self.usd_per_hour)
        if any(not tenant.strip() for tenant in self.tenants):
            raise ConfigError("tenants must not be blank")
        for name in ("max_model_len", "max_in_flight", "kv_capacity_tokens"):
            value = getattr(self, name)
            if value is not None:
                at_least_one(**{name: value})
        if self.kv_events is not None and not profile_of(self.kind).takes_cache_salt:
            raise ConfigError(f"kv_events are those of kind argosy or vllm, not of {self.kind}", param="kv_events")


def _checked_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port_is_sound = parts.port is None or 0 < parts.port < 65536
    except ValueError:
        port_is_sound = False
    if not port_is_sound or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("url must be http://HOST[:PORT] or https://HOST[:PORT], with a path where there is one")
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(
            "url must hold no credentials, query or fragment; name the key's environment variable in api_key_env"
        )
    return parts


@dataclass(frozen=True, slots=True)
class HeaderMatch:
    """A header of the request that must be there, with this value if one is given."""

    name: str
    value: str | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a name that no header has."""
        if re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", self.name) is None:
            raise ConfigError(f"name {self.name!r} is no name of a header")


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Sends a request to another model if all conditions that are given hold; the first rule that does decides.

    Attributes:
        model: name or alias of the model to use.
        min_prompt_tokens, max_prompt_tokens: length of the prompt as estimated, ends included.
        tiers: tiers of keys, as tenants have them.
        header: a header of the request.
        keywords: any of these in the last user message, ignoring case.
    """

    model: str
    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None
    tiers: tuple[str, ...] = ()
    header: HeaderMatch | None = None
    keywords: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a rule without conditions or with ones that nothing meets."""
        for name in ("min_prompt_tokens", "max_prompt_tokens"):
            value = getattr(self, name)
            if value is not None:
                not_negative(**{name: value})
        low, high = self.min_prompt_tokens, self.max_prompt_tokens
        if low is not None and high is not None and low > high:
            raise ConfigError(f"min_prompt_tokens ({low}) must not be above max_prompt_tokens ({high})")
        if any(not word.strip() for word in (*self.keywords, *self.tiers)):
            raise ConfigError("keywords and tiers must not be blank")
        if low is None and high is None and not (self.tiers or self.header or self.keywords):
            raise ConfigError("a rule needs a condition: min_prompt_tokens, max_prompt_tokens, tiers, header or keywords")


@dataclass(frozen=True, slots=True)
class DegradationSettings:
    """What a model gives up, step by step, while the KV pools of its backends are full.

    A step begins when KV use rises above its own threshold and ends `hysteresis` below that.

    Attributes:
        shorter_context_above: KV use above which answers are cut to `max_output_tokens`; None never does.
        no_speculation_above: above which backends are asked not to speculate.
        smaller_model_above: above which requests go to `smaller_model`.
    """

    shorter_context_above: float | None = None
    max_output_tokens: int = 256
    no_speculation_above: float | None = None
    smaller_model_above: float | None = None
    smaller_model: str | None = None
    hysteresis: float = 0.05

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the threshold that is out of range or the model that is missing."""
        at_least_one(max_output_tokens=self.max_output_tokens)
        if not 0.0 <= self.hysteresis < 1.0:
            raise ConfigError(f"hysteresis must be within [0, 1), got {self.hysteresis}")
        for name in ("shorter_context_above", "no_speculation_above", "smaller_model_above"):
            value = getattr(self, name)
            if value is not None and not self.hysteresis < value <= 1.0:
                raise ConfigError(f"{name} must be above hysteresis and at most 1, got {value}")
        if (self.smaller_model_above is None) != (self.smaller_model is None):
            raise ConfigError("smaller_model_above and smaller_model are given together or not at all")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model by the name that clients use.

    Attributes:
        name: what `/v1/models` lists; aliases: other names for it.
        backends: that serve it, one or more.
        routing: among its backends.
        split: whether weights are shares of requests, or of conversations, which then stay where they are.
        fallbacks: models to try in turn when this one fails for one of the reasons in `fallback_on`.
        rules: that send requests for it elsewhere.
        degradation: what it gives up under pressure; None is nothing.
        price: of its tokens; None is free.
        tokenizer: of the model, for routing by prefix_precise.
    """

    name: str
    backends: tuple[BackendSettings, ...]
    aliases: tuple[str, ...] = ()
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    split: str = "request"
    fallbacks: tuple[str, ...] = ()
    fallback_on: tuple[str, ...] = FALLBACK_REASONS
    rules: tuple[RuleSettings, ...] = ()
    degradation: DegradationSettings | None = None
    price: PriceSettings | None = None
    tokenizer: TokenizerSettings | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible."""
        for name in (self.name, *self.aliases):
            if MODEL_NAME.fullmatch(name) is None:
                raise ConfigError(f"name {name[:80]!r} must be 1 to 200 characters without blanks")
        if not self.backends:
            raise ConfigError("backends must name at least one backend")
        check_one_of("split", self.split, SPLITS)
        for reason in self.fallback_on:
            check_one_of("fallback_on", reason, FALLBACK_REASONS)
