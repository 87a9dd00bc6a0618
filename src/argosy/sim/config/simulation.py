"""A whole simulation as settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from argosy.cost.checks import fraction, not_negative, positive
from argosy.errors import ConfigError
from argosy.fleet.policies.health import HealthCheck
from argosy.fleet.policies.retries import RetryPolicy
from argosy.fleet.routing_settings import RoutingSettings
from argosy.settings.schema import from_mapping, nearest
from argosy.settings.yaml_file import YamlFile, read_yaml
from argosy.sim.config.replicas import ReplicaGroup
from argosy.sim.config.scaling import AutoscalerSettings
from argosy.sim.fleet.clients import ClientBehaviour
from argosy.sim.fleet.faults import Corruption, Crash, Hang, Partition, Slowdown
from argosy.sim.fleet.single import AttemptTimeouts
from argosy.sim.results import Slo
from argosy.sim.workload.config import WorkloadConfig

RECORD_FORMS = ("ndjson", "parquet", "none")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What stands between clients and replicas, beside the router.

    Attributes:
        retry: of attempts that failed; retry_budget_ratio: retries per request.
        health: how replicas are probed; None knows of every failure at once.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    retry_budget_ratio: float = 0.1
    timeouts: AttemptTimeouts = field(default_factory=AttemptTimeouts)
    health: HealthCheck | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a ratio outside 0 to 1."""
        fraction(retry_budget_ratio=self.retry_budget_ratio)


@dataclass(frozen=True, slots=True)
class KvTransferSettings:
    """The link by which a prefill replica sends KV; None takes the scale-out links of its devices together."""

    bytes_per_s: float | None = None
    latency_s: float | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a link that moves nothing."""
        if self.bytes_per_s is not None:
            positive(bytes_per_s=self.bytes_per_s)
        if self.latency_s is not None:
            not_negative(latency_s=self.latency_s)


@dataclass(frozen=True, slots=True)
class RandomCrashes:
    """Crashes of every replica that is there from the beginning, as a Poisson process of its own until `until_s`."""

    mean_between_s: float
    until_s: float
    restart_after_s: float | None = None
    cold_start_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the time that is impossible."""
        positive(mean_between_s=self.mean_between_s, until_s=self.until_s)
        not_negative(cold_start_s=self.cold_start_s)
        if self.restart_after_s is not None:
            not_negative(restart_after_s=self.restart_after_s)


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """What `argosy simulate -o` writes beside summary and report.

    Attributes:
        records: "ndjson" or "parquet" with a record of every request, or "none"; steps: of every step as well.
        trace_events: most events of the trace for Perfetto; 0 writes none.
    """

    records: str = "ndjson"
    steps: bool = False
    trace_events: int = 200_000

    def __post_init__(self) -> None:
        """Raise `ConfigError` for another form of records, or less than no events."""
        if self.records not in RECORD_FORMS:
            raise ConfigError(f"records {self.records!r} is unknown: {nearest(self.records, RECORD_FORMS)}")
        if self.trace_events < 0:
            raise ConfigError(f"trace_events must not be negative, got {self.trace_events}")


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """What a configuration file says.

    Attributes:
        model: of all replicas.
        replicas: all of role "serve", or some of "prefill" and some of "decode".
        routing: among the replicas that serve, or that prefill; decode_routing: among those that decode.
        warm_up_s: requests that arrive earlier are served, but not counted.
        measure_until_s: those that arrive then or later likewise; None counts all.
        stop_at_s: the run ends then, whatever is in flight; None lets every request end.
    """

    model: str
    replicas: tuple[ReplicaGroup, ...]
    workload: WorkloadConfig
    seed: int = 0
    warm_up_s: float = 0.0
    measure_until_s: float | None = None
    stop_at_s: float | None = None
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    decode_routing: RoutingSettings | None = None
    kv_transfer: KvTransferSettings | None = None
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    clients: ClientBehaviour = field(default_factory=ClientBehaviour)
    autoscaler: AutoscalerSettings | None = None
    faults: tuple[Crash | Hang | Slowdown | Corruption | Partition, ...] = ()
    random_crashes: RandomCrashes | None = None
    slo: Slo | None = None
    outputs: OutputSettings = field(default_factory=OutputSettings)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is impossible, alone or beside another one."""
        not_negative(warm_up_s=self.warm_up_s)
        if self.stop_at_s is not None:
            positive(stop_at_s=self.stop_at_s)
        ends_s = [end for end in (self.measure_until_s, self.stop_at_s, self.workload.duration_s) if end is not None]
        if ends_s and self.warm_up_s >= min(ends_s):
            raise ConfigError(
                f"warm_up_s ({self.warm_up_s:g}) must be below the {min(ends_s):g} s in which requests are counted"
            )
        self._check_groups()
        self._check_autoscaler()
        self._check_faults()

    @property
    def is_disaggregated(self) -> bool:
        """Whether prompts are computed by other replicas than the rest of the answer."""
        return any(group.role != "serve" for group in self.replicas)

    @property
    def scaled_group(self) -> ReplicaGroup | None:
        """The group that the autoscaler acts on."""
        if self.autoscaler is None:
            return None
        return next(group for group in self.replicas if self.autoscaler.group in ("", group.name))

    def of_role(self, role: str) -> tuple[ReplicaGroup, ...]:
        """The groups of that role."""
        return tuple(group for group in self.replicas if group.role == role)

    def _check_groups(self) -> None:
        names = [group.name for group in self.replicas]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"replicas must have different names, two groups are called {name!r}")
        for role in ("prefill", "decode") if self.is_disaggregated else ("serve",):
            if not sum(group.count for group in self.of_role(role)) and (self.autoscaler is None or not names):
                raise ConfigError(f"replicas must hold at least one of role {role}")
        if self.is_disaggregated and self.of_role("serve"):
            raise ConfigError("replicas must be either of role serve, or of roles prefill and decode")
        for name in ("decode_routing", "kv_transfer"):
            if getattr(self, name) is not None and not self.is_disaggregated:
                raise ConfigError(f"{name} needs replicas of roles prefill and decode")
        sizes = {group.engine.block_size for group in self.replicas}
        if len(sizes) > 1 and "prefix_precise" in {self.routing.policy, getattr(self.decode_routing, "policy", "")}:
            raise ConfigError("routing by prefix_precise needs one block_size for all replicas")

    def _check_autoscaler(self) -> None:
        if self.autoscaler is None:
            return
        names = [group.name for group in self.replicas]
        if self.is_disaggregated:
            raise ConfigError("autoscaler must act on replicas of role serve; pools of prefill and decode keep their size")
        if not self.autoscaler.group and len(names) > 1:
            raise ConfigError(f"autoscaler needs group: one of {', '.join(names)}")
        if self.autoscaler.group and self.autoscaler.group not in names:
            what = f"autoscaler.group {self.autoscaler.group!r} is unknown: {nearest(self.autoscaler.group, names)}"
            raise ConfigError(what, param="autoscaler.group")

    def _check_faults(self) -> None:
        known = [name for group in self.replicas for name in group.replica_names]
        scaled = self.scaled_group
        for index, fault in enumerate(self.faults):
            is_added = scaled is not None and fault.replica.startswith(f"{scaled.name}+")
            if fault.replica not in known and not is_added:
                path = f"faults[{index}].replica"
                raise ConfigError(f"{path}: there is no {fault.replica!r}: {nearest(fault.replica, known)}", param=path)


@dataclass(frozen=True, slots=True)
class LoadedSimulation:
    """A configuration, the file that it is from, and the folder where relative paths in it start."""

    config: SimulationConfig
    file: YamlFile
    folder: Path


def load_simulation(path: Path) -> LoadedSimulation:
    """Read a configuration file.

    Raises:
        ConfigError: it cannot be read, or says something impossible; names the file and the line.
    """
    hint = "'argosy simulate --example NAME' prints configurations to begin with"
    return parse_simulation(read_yaml(path, if_empty=hint), path.parent)


def parse_simulation(file: YamlFile, folder: Path) -> LoadedSimulation:
    """As `load_simulation`, of a file that has been read."""
    try:
        config = from_mapping(SimulationConfig, file.values, "")
    except ConfigError as error:
        raise file.located(error) from None
    return LoadedSimulation(config, file, folder)
