"""From a configuration to a fleet that is ready to run: every part made once, and connected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from argosy.cost.catalogue import find_model
from argosy.cost.model_spec import ModelSpec
from argosy.engine.core.kv_events import KVListener
from argosy.errors import ConfigError
from argosy.fleet.policies.retries import RetryBudget
from argosy.fleet.policies.routing.kv_event_index import KvEventIndex
from argosy.fleet.policies.routing.pair import PairRouter
from argosy.fleet.policies.routing.replica_state import ReplicaInfo
from argosy.fleet.policies.routing.router import Router
from argosy.fleet.routing_settings import RoutingSettings
from argosy.sim.blueprint import Blueprint, blueprint_of
from argosy.sim.config.replicas import ReplicaGroup
from argosy.sim.config.simulation import KvTransferSettings, SimulationConfig
from argosy.sim.counted_source import CountedSource
from argosy.sim.event_loop import EventLoop
from argosy.sim.fleet.clients import Clients
from argosy.sim.fleet.faults import FaultInjector, random_crashes
from argosy.sim.fleet.fleet import Fleet
from argosy.sim.fleet.health_checks import HealthChecks
from argosy.sim.fleet.kv_feed import kv_feed
from argosy.sim.fleet.live_request import Dispatcher
from argosy.sim.fleet.pair import PairDispatcher
from argosy.sim.fleet.pool import Member, Pool
from argosy.sim.fleet.prompts import RequestDescriber
from argosy.sim.fleet.scaling import AutoscaledPool, ScalingDriver
from argosy.sim.fleet.single import SingleDispatcher
from argosy.sim.observers import Observers
from argosy.sim.perfetto import PerfettoTrace
from argosy.sim.random_streams import RandomStreams
from argosy.sim.recorder import Recorder
from argosy.sim.replica import Replica
from argosy.sim.run_log import RecordLog
from argosy.sim.timeline import FleetSample, Timeline
from argosy.sim.workload.build import build_source
from argosy.sim.workload.trace_request import Source, TraceRequest

FindModel = Callable[[str], ModelSpec]
# Of the time that requests arrive in, for the first width of what is kept over time.
_WINDOWS = 256


@dataclass(frozen=True, slots=True)
class Sinks:
    """Where records go while the simulation runs; None keeps none.

    Attributes:
        log_steps: whether steps go into the log too, beside requests.
    """

    log: RecordLog | None = None
    log_steps: bool = False
    trace: PerfettoTrace | None = None


@dataclass(slots=True)
class Assembly:
    """All parts of one simulation. Used once."""

    config: SimulationConfig
    blueprints: Mapping[str, Blueprint]
    loop: EventLoop
    pools: tuple[Pool, ...]
    fleet: Fleet
    source: CountedSource
    clients: Clients
    recorder: Recorder
    timeline: Timeline
    injectors: tuple[FaultInjector, ...]
    autoscaled: AutoscaledPool | None = None


def assemble(
    config: SimulationConfig,
    blueprints: Mapping[str, Blueprint],
    folder: Path,
    *,
    sinks: Sinks | None = None,
) -> Assembly:
    """Build what `config` describes.

    Args:
        blueprints: of every group by its name, as `make_blueprints` makes them.
        folder: where relative paths of trace files start.

    Raises:
        ConfigError: a trace file that cannot be opened, or a KV transfer without a link.
    """
    streams = RandomStreams(config.seed)
    source = build_source(config.workload, streams, folder)
    return _Assembler(config, blueprints, streams, sinks or Sinks()).assemble(source)


def make_blueprints(config: SimulationConfig, find_spec: FindModel = find_model) -> dict[str, Blueprint]:
    """A blueprint of every group by its name.

    Args:
        find_spec: the shape of a model by name.

    Raises:
        ConfigError: an unknown name, a model that does not fit, an impossible layout.
    """
    try:
        model = find_spec(config.model)
    except ConfigError as error:
        raise ConfigError(f"model: {error}", param="model") from None
    blueprints = {}
    for index, group in enumerate(config.replicas):
        path = f"replicas[{index}]"
        try:
            name = None if group.speculation is None else group.speculation.draft
            draft = None if name is None else find_spec(name)
            blueprints[group.name] = blueprint_of(group, model, draft)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}", param=f"{path}.{error.param}" if error.param else path) from None
    return blueprints


@dataclass(slots=True)
class _Assembler:
    config: SimulationConfig
    blueprints: Mapping[str, Blueprint]
    streams: RandomStreams
    sinks: Sinks
    loop: EventLoop = field(default_factory=EventLoop)
    blueprint_of_replica: dict[str, Blueprint] = field(default_factory=dict)

    def assemble(self, source: Source) -> Assembly:
        config, loop = self.config, self.loop
        recorder, counted = self._recorder(), CountedSource(source)
        roles = ("prefill", "decode") if config.is_disaggregated else ("serve",)
        pools = tuple(Pool(self._pool_name(role), loop) for role in roles)
        routers = tuple(self._router(role) for role in roles)
        checks = [HealthChecks(loop, pool, config.gateway.health) for pool in pools if config.gateway.health is not None]

        def on_refused(member: Member) -> None:
            for pool, check in zip(pools, checks, strict=bool(checks)):
                if member in pool:
                    check.on_refused(member)

        timeline = Timeline(
            loop,
            lambda: _look(pools, fleet),
            window_s=self._window_s(),
            measure_from_s=config.warm_up_s,
            measure_until_s=self._measure_until_s(),
        )
        observers = Observers(recorder, timeline, self.sinks.trace)
        fleet = Fleet(
            loop,
            self._dispatcher(pools, routers, on_refused),
            rng=self.streams.python("retries"),
            retry=config.gateway.retry,
            budget=RetryBudget(config.gateway.retry_budget_ratio),
            listener=observers,
        )
        for role, pool, router in zip(roles, pools, routers, strict=True):
            self._fill(pool, config.of_role(role), router, recorder)
        observers.autoscaled = autoscaled = self._autoscaled(pools[0], fleet, routers[0])
        injectors = self._injectors(roles, pools)

        def submit(request: TraceRequest) -> None:
            recorder.on_arrival(request)
            fleet.submit(request)

        clients = Clients(loop, counted, submit, config.clients, rng=self.streams.python("clients"))
        observers.clients = clients
        return Assembly(
            config, self.blueprints, loop, pools, fleet, counted, clients, recorder, timeline, injectors, autoscaled
        )

    def _recorder(self) -> Recorder:
        return Recorder(
            slo=self.config.slo,
            log=self.sinks.log,
            log_steps=self.sinks.log_steps,
            measure_from_s=self.config.warm_up_s,
            measure_until_s=self._measure_until_s(),
            window_s=self._window_s(),
        )

    def _window_s(self) -> float:
        end_s = self.config.stop_at_s or self.config.workload.duration_s
        return 1.0 if end_s is None else end_s / _WINDOWS

    def _measure_until_s(self) -> float:
        return math.inf if self.config.measure_until_s is None else self.config.measure_until_s

    def _pool_name(self, role: str) -> str:
        """What an autoscaler adds is named after its group."""
        scaled = self.config.scaled_group
        return role if scaled is None else scaled.name

    def _router(self, role: str) -> Router:
        settings = self.config.routing
        if role == "decode":
            settings = self.config.decode_routing or RoutingSettings("least_load", {"load": "tokens"}, "decode_routing")
        (block_tokens, *_) = [group.engine.block_size for group in self.config.of_role(role)]
        return Router(settings.make(block_tokens=block_tokens), self.streams.python(f"router/{role}"))

    def _dispatcher(
        self, pools: Sequence[Pool], routers: Sequence[Router], on_refused: Callable[[Member], None]
    ) -> Dispatcher:
        timeouts = self.config.gateway.timeouts
        matches = [router.policy.prefix_matcher is not None for router in routers]
        describer = RequestDescriber(self.config.replicas[0].engine.block_size if any(matches) else 0)
        if len(pools) == 1:
            return SingleDispatcher(self.loop, pools[0], routers[0], describer, timeouts, on_refused=on_refused)
        transfer = self.config.kv_transfer or KvTransferSettings()
        sender = self.blueprints[self.config.of_role("prefill")[0].name]
        link = sender.kv_link(transfer.bytes_per_s, transfer.latency_s)
        (prefill, decode), pair = pools, PairRouter(*routers)
        return PairDispatcher(self.loop, prefill, decode, pair, describer, link, timeouts, on_refused=on_refused)

    def _fill(self, pool: Pool, groups: Sequence[ReplicaGroup], router: Router, recorder: Recorder) -> None:
        def on_added(member: Member) -> None:
            cost = self.blueprint_of_replica[member.name].cost
            recorder.add_replica(member.replica, cost, since_s=self.loop.now_s())

        pool.on_added = on_added
        pool.on_removed = lambda member: recorder.remove_replica(member.name, self.loop.now_s())
        for group in groups:
            for name in group.replica_names:
                pool.add(*self._make(self.blueprints[group.name], name, router))

    def _make(self, blueprint: Blueprint, name: str, router: Router) -> tuple[Replica, ReplicaInfo]:
        matcher = router.policy.prefix_matcher
        listener: KVListener | None = kv_feed(matcher, name) if isinstance(matcher, KvEventIndex) else None
        self.blueprint_of_replica[name] = blueprint
        seed = self.streams.key("speculation", name)
        return blueprint.make(name, self.loop, seed=seed, kv_listener=listener), blueprint.info(name)

    def _autoscaled(self, pool: Pool, fleet: Fleet, router: Router) -> AutoscaledPool | None:
        settings, group = self.config.autoscaler, self.config.scaled_group
        if settings is None or group is None:
            return None
        blueprint = self.blueprints[group.name]
        driver = ScalingDriver(
            settings.every_s, settings.cold_start_s, settings.concurrency or float(blueprint.scheduler.max_num_seqs)
        )
        return AutoscaledPool(
            self.loop, pool, fleet, settings.make(), lambda name: self._make(blueprint, name, router), driver
        )

    def _injectors(self, roles: Sequence[str], pools: Sequence[Pool]) -> tuple[FaultInjector, ...]:
        faults = list(self.config.faults)
        crashes = self.config.random_crashes
        if crashes is not None:
            faults += random_crashes(
                [name for group in self.config.replicas for name in group.replica_names],
                crashes.mean_between_s,
                crashes.until_s,
                self.streams.python("crashes"),
                restart_after_s=crashes.restart_after_s,
                cold_start_s=crashes.cold_start_s,
            )
        injectors = []
        for role, pool in zip(roles, pools, strict=True):
            others = {name for group in self.config.replicas if group.role != role for name in group.replica_names}
            injectors.append(FaultInjector(self.loop, pool, [one for one in faults if one.replica not in others]))
        return tuple(injectors)


def _look(pools: Sequence[Pool], fleet: Fleet) -> FleetSample:
    return FleetSample(
        ready=sum(len(pool.ready) for pool in pools),
        starting=sum(len(pool.starting) for pool in pools),
        replicas=sum(len(pool) for pool in pools),
        in_system=fleet.num_alive,
        unrouted=fleet.num_waiting,
        usd_per_h=sum(member.state.info.usd_per_hour for pool in pools for member in pool),
    )
