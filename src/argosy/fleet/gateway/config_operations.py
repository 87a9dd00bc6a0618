"""How the gateway runs: sockets, queue, resilience, stores, what it tells of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from argosy.cost.checks import at_least_one, fraction, not_negative, positive
from argosy.errors import ConfigError
from argosy.fleet.gateway.config_models import check_env_name, check_one_of
from argosy.fleet.policies.alerts import AlertConfig
from argosy.fleet.policies.breaker import BreakerConfig
from argosy.fleet.policies.health import HealthCheck
from argosy.fleet.policies.health_state import HealthConfig, ProbeKind
from argosy.fleet.policies.retries import RetryPolicy
from argosy.observe.logs import LEVELS

MIB = 2**20
STORE_LOSS = ("closed", "local_share", "open")
AUTH_MODES = ("keys", "open")


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """The socket, and what one client may take of it.

    Attributes:
        host, port: port 0 takes a free one.
        health_port: where the health paths are answered besides, from a thread that serves nothing else, so that probes are
            answered under any load; None: on `port` only.
        max_connections: clients connected at once; one more is closed at once.
        max_body_bytes, max_header_bytes: of one request.
        header_timeout_s, body_timeout_s: how long a client may take to send them.
        keep_alive_timeout_s: how long an idle connection is kept.
        write_timeout_s: how long a client may take to read what is ready for it.
    """

    host: str = "127.0.0.1"
    port: int = 4000
    health_port: int | None = None
    max_connections: int = 10_000
    max_body_bytes: int = 16 * MIB
    max_header_bytes: int = 64 * 1024
    header_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    keep_alive_timeout_s: float = 75.0
    write_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be within [0, 65535], got {self.port}")
        if self.health_port is not None and not 0 <= self.health_port <= 65535:
            raise ConfigError(f"health_port must be within [0, 65535], got {self.health_port}")
        if not self.host.strip():
            raise ConfigError("host must not be blank")
        at_least_one(
            max_connections=self.max_connections, max_body_bytes=self.max_body_bytes, max_header_bytes=self.max_header_bytes
        )
        positive(
            header_timeout_s=self.header_timeout_s,
            body_timeout_s=self.body_timeout_s,
            keep_alive_timeout_s=self.keep_alive_timeout_s,
            write_timeout_s=self.write_timeout_s,
        )


MIN_MASTER_KEY_CHARACTERS = 16
MIN_KEY_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Who may come in.

    Attributes:
        mode: "keys": a key of a tenant must come with every request to `/v1/*`; "open": none is asked for, and all
            requests are those of one tenant.
        master_key_env: environment variable with the key of the admin API; None closes that API.
        secret_file: holds the secret under which keys are hashed and cache salts are derived; made when it is not there.
        cache_entries: keys whose tenant is remembered; cache_ttl_s: for how long before the store is asked again.
    """

    mode: str = "keys"
    master_key_env: str | None = None
    secret_file: str = "argosy-gateway.secret"  # noqa: S105, a file name
    cache_entries: int = 100_000
    cache_ttl_s: float = 10.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        check_one_of("mode", self.mode, AUTH_MODES)
        check_env_name(master_key_env=self.master_key_env)
        if not self.secret_file.strip():
            raise ConfigError("secret_file must not be blank")
        at_least_one(cache_entries=self.cache_entries)
        not_negative(cache_ttl_s=self.cache_ttl_s)


@dataclass(frozen=True, slots=True)
class ClassQueueSettings:
    """The queue of one priority class; ttl_s is the longest wait in it, 0 waits never."""

    max_requests: int = 1000
    max_bytes: int = 256 * MIB
    ttl_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        at_least_one(max_requests=self.max_requests, max_bytes=self.max_bytes)
        not_negative(ttl_s=self.ttl_s)


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What waits when backends are saturated.

    Attributes:
        queue_threshold: requests waiting at a backend with which it counts as saturated.
        kv_threshold: part of its KV pool in use with which it does.
        max_in_flight: requests sent to one backend at once where the backend states no `max_in_flight`; None is no limit.
    """

    critical: ClassQueueSettings = field(default_factory=ClassQueueSettings)
    standard: ClassQueueSettings = field(default_factory=ClassQueueSettings)
    best_effort: ClassQueueSettings = field(default_factory=ClassQueueSettings)
    queue_threshold: int = 5
    kv_threshold: float = 0.9
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        at_least_one(queue_threshold=self.queue_threshold)
        if not 0.0 < self.kv_threshold <= 1.0:
            raise ConfigError(f"kv_threshold must be above 0 and at most 1, got {self.kv_threshold}")
        if self.max_in_flight is not None:
            at_least_one(max_in_flight=self.max_in_flight)


@dataclass(frozen=True, slots=True)
class TimeoutSettings:
    """Of one attempt at a backend, and of a request in all (`total_s`, None is no limit)."""

    connect_s: float = 2.0
    first_byte_s: float = 120.0
    idle_s: float = 60.0
    total_s: float | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the timeout that is not above 0."""
        positive(connect_s=self.connect_s, first_byte_s=self.first_byte_s, idle_s=self.idle_s)
        if self.total_s is not None:
            positive(total_s=self.total_s)


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """See `RetryPolicy` and `RetryBudget`: `budget_ratio` retries per request, `budget_credits` saved up at most."""

    max_retries: int = 2
    backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    budget_ratio: float = 0.1
    budget_credits: float = 10.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        self.policy()
        fraction(budget_ratio=self.budget_ratio)
        not_negative(budget_credits=self.budget_credits)

    def policy(self) -> RetryPolicy:
        """As the policy takes them."""
        return RetryPolicy(self.max_retries, self.backoff_s, self.max_backoff_s)


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """One kind of health probe: `failures` in a row take a backend out."""

    interval_s: float
    timeout_s: float
    failures: int

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        positive(interval_s=self.interval_s, timeout_s=self.timeout_s)
        if self.timeout_s > self.interval_s:
            raise ConfigError(f"timeout_s ({self.timeout_s:g}) must not be above interval_s ({self.interval_s:g})")
        at_least_one(failures=self.failures)


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """How backends are probed; null for a kind of probe that is not to be made. `deep` has them generate one token.

    Attributes:
        loading_timeout_s: how long a model may load before its backend counts as unready.
        metrics_interval_s: from one reading of a backend's load to the next.
    """

    live: ProbeSettings | None = ProbeSettings(10.0, 5.0, 3)
    ready: ProbeSettings | None = ProbeSettings(5.0, 3.0, 2)
    deep: ProbeSettings | None = ProbeSettings(30.0, 10.0, 1)
    loading_timeout_s: float = 1800.0
    metrics_interval_s: float = 1.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        positive(loading_timeout_s=self.loading_timeout_s, metrics_interval_s=self.metrics_interval_s)

    def config(self) -> HealthConfig:
        """As the policy takes them."""
        stated = {ProbeKind.LIVE: self.live, ProbeKind.READY: self.ready, ProbeKind.DEEP: self.deep}
        checks = {
            kind: HealthCheck(probe.interval_s, probe.timeout_s, probe.failures, deep=kind is ProbeKind.DEEP)
            for kind, probe in stated.items()
            if probe is not None
        }
        return HealthConfig(checks, self.loading_timeout_s)


@dataclass(frozen=True, slots=True)
class DrainSettings:
    """After SIGTERM: new requests are taken for `propagation_s` more, running ones may go on for `timeout_s`."""

    propagation_s: float = 5.0
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the time that is negative."""
        not_negative(propagation_s=self.propagation_s, timeout_s=self.timeout_s)


@dataclass(frozen=True, slots=True)
class BulkheadSettings:
    """Connections to one backend, and the part of them that one tenant may hold."""

    connections_per_backend: int = 512
    tenant_share: float = 1.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        at_least_one(connections_per_backend=self.connections_per_backend)
        if not 0.0 < self.tenant_share <= 1.0:
            raise ConfigError(f"tenant_share must be above 0 and at most 1, got {self.tenant_share}")


@dataclass(frozen=True, slots=True)
class ResilienceSettings:
    """What happens when backends are slow, fail, or come and go."""

    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    retries: RetrySettings = field(default_factory=RetrySettings)
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    health: HealthSettings = field(default_factory=HealthSettings)
    drain: DrainSettings = field(default_factory=DrainSettings)
    bulkhead: BulkheadSettings = field(default_factory=BulkheadSettings)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where tenants, keys and usage are kept.

    Attributes:
        url: as SQLAlchemy writes it, without a password; url_env: environment variable that holds it, password and all.
        timeout_s: how long anything waits for the store.
        serve_on_store_loss: whether keys that are remembered go on working while the store is away, for `grace_s`.
        journal: folder on a local disk where usage records are kept until the store has them.
    """

    url: str = "sqlite:///argosy-gateway.db"
    url_env: str | None = None
    timeout_s: float = 2.0
    serve_on_store_loss: bool = True
    grace_s: float = 3600.0
    journal: str = "argosy-gateway-usage"

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        check_env_name(url_env=self.url_env)
        _check_store_url(self.url, ("sqlite", "postgresql"))
        positive(timeout_s=self.timeout_s)
        not_negative(grace_s=self.grace_s)
        if not self.journal.strip():
            raise ConfigError("journal must not be blank")


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Limits that several gateway processes share.

    Attributes:
        url: without a password; url_env: environment variable that holds it, password and all.
        timeout_s: the most that a request waits for Redis.
        on_loss: while it is away: "closed" refuses, "local_share" grants each process 1/`replicas` of every limit,
            "open" lets everything pass.
        prefix: of all keys in it.
    """

    url: str = "redis://127.0.0.1:6379/0"
    url_env: str | None = None
    timeout_s: float = 0.25
    on_loss: str = "local_share"
    replicas: int = 1
    prefix: str = "argosy"

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        check_env_name(url_env=self.url_env)
        _check_store_url(self.url, ("redis", "rediss", "unix"))
        positive(timeout_s=self.timeout_s)
        check_one_of("on_loss", self.on_loss, STORE_LOSS)
        at_least_one(replicas=self.replicas)
        if not self.prefix.strip():
            raise ConfigError("prefix must not be blank")


def _check_store_url(url: str, schemes: tuple[str, ...]) -> None:
    scheme = url.partition("://")[0].partition("+")[0]
    if "://" not in url or scheme not in schemes:
        raise ConfigError(f"url must begin with {' or '.join(f'{name}://' for name in schemes)}")
    try:
        password = urlsplit(url).password
    except ValueError:
        raise ConfigError("url is not one") from None
    if password is not None:
        raise ConfigError("url must hold no password; put the URL into an environment variable and name it in url_env")


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """OpenTelemetry spans, sent over OTLP/HTTP.

    Attributes:
        endpoint: of the collector, e.g. `http://127.0.0.1:4318/v1/traces`.
        sample_ratio: of the traces that begin here; one that a client began is kept as the client decided.
        headers_env: environment variable with `name=value,…` for the collector.
    """

    endpoint: str
    service_name: str = "argosy-gateway"
    sample_ratio: float = 1.0
    headers_env: str | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if urlsplit(self.endpoint).scheme not in ("http", "https"):
            raise ConfigError("endpoint must begin with http:// or https://")
        fraction(sample_ratio=self.sample_ratio)
        check_env_name(headers_env=self.headers_env)
        if not self.service_name.strip():
            raise ConfigError("service_name must not be blank")


@dataclass(frozen=True, slots=True)
class ObservabilitySettings:
    """What the gateway tells of itself.

    Attributes:
        log_level, log_format: of its own events: "debug", "info", "warning" or "error"; "text" or "json".
        access_log: file that takes one JSON object per request, "-" for standard output, None for no such log.
        access_log_lines: that wait for a slow reader; more are dropped, and counted.
        max_label_values: different values of one metric label; further ones become "other".
        tracing: None sends no spans.
    """

    log_level: str = "info"
    log_format: str = "text"
    access_log: str | None = "-"
    access_log_lines: int = 10_000
    max_label_values: int = 1000
    tracing: TracingSettings | None = None
    alerts: AlertConfig = field(default_factory=AlertConfig)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        check_one_of("log_level", self.log_level, LEVELS)
        check_one_of("log_format", self.log_format, ("text", "json"))
        if self.access_log is not None and not self.access_log.strip():
            raise ConfigError("access_log must not be blank; leave it out, or write null for no access log")
        at_least_one(access_log_lines=self.access_log_lines, max_label_values=self.max_label_values)
