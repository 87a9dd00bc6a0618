"""What it takes to make replicas of one kind, and how many blocks, dollars and watts each has."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.calibration_file import constants_for
from argosy.cost.catalogue import find_device, find_node
from argosy.cost.collectives import Topology
from argosy.cost.deployment import Deployment
from argosy.cost.device import Device, Precision
from argosy.cost.efficiency import Constants
from argosy.cost.formats import WEIGHT_FORMATS, WeightFormat, base_precision, kv_type, precisions_for
from argosy.cost.machine_calibration import ENGINE, is_this_machine, known_calibrations, require_machine
from argosy.cost.model_arithmetic import kv_bytes_per_token
from argosy.cost.model_spec import ModelSpec
from argosy.cost.parallel import ParallelPlan
from argosy.cost.prices import Term, price_range, prices_of
from argosy.cost.serving_memory import MemoryConstants, ServingMemory, serving_memory
from argosy.cost.step_time_model import StepTimeModel
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.kv_events import KVListener
from argosy.engine.core.scheduler import Scheduler
from argosy.errors import ConfigError
from argosy.fleet.policies.routing.replica_state import ReplicaInfo
from argosy.settings.schema import nearest
from argosy.sim.config.replicas import ReplicaGroup, SpeculationSettings
from argosy.sim.cost_executor import CostExecutor, CostTimer
from argosy.sim.event_loop import EventLoop
from argosy.sim.fleet.transfer import KvLink
from argosy.sim.measured_pricer import MeasuredPricer
from argosy.sim.replica import Replica
from argosy.sim.results import ReplicaCost
from argosy.sim.speculation import SpeculationProcess
from argosy.sim.step_pricer import StepPricer

# Sequences of a data rank at most, for the size of logits: step buffers of servers end about here.
_MOST_LOGIT_ROWS = 512


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Makes replicas that are alike. They share the pricer, which remembers and has no other state.

    Attributes:
        speculation: drafts, acceptance and the draft model's pricer, or None.
        weight, region: for the router; cost: of one replica.
    """

    pricer: StepPricer
    scheduler: SchedulerConfig
    cost: ReplicaCost
    speculation: tuple[int, float, StepPricer | None] | None = None
    weight: float = 1.0
    region: str = ""

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV pool of a replica holds."""
        return self.scheduler.num_blocks * self.scheduler.block_size

    @property
    def usd_per_hour(self) -> float:
        """Of one replica; 0 if not known."""
        return (self.cost.usd_per_device_hour or 0.0) * self.cost.devices

    def make(self, name: str, loop: EventLoop, *, seed: int, kv_listener: KVListener | None = None) -> Replica:
        """A replica that is ready. `seed` decides which drafts are accepted."""
        process = None
        if self.speculation is not None:
            drafts, acceptance, draft = self.speculation
            process = SpeculationProcess(drafts, acceptance, seed=seed, draft=draft)
        timer = CostTimer(self.pricer, process)
        executor = CostExecutor(timer, num_blocks=self.scheduler.num_blocks, kv_dtype=self.scheduler.kv_dtype)
        scheduler = Scheduler(self.scheduler, kv_listener=kv_listener, known_outputs=executor)
        return Replica(name, loop, scheduler, executor)

    def info(self, name: str) -> ReplicaInfo:
        """What a router is told of a replica of that name."""
        return ReplicaInfo(
            name,
            weight=self.weight,
            region=self.region,
            max_model_len=self.scheduler.effective_max_len,
            kv_capacity_tokens=self.kv_tokens,
            usd_per_hour=self.usd_per_hour,
        )

    def kv_link(self, bytes_per_s: float | None = None, latency_s: float | None = None) -> KvLink:
        """The link by which a replica sends KV; None takes the scale-out links of its devices together.

        Raises:
            ConfigError: neither a bandwidth is given nor has the device a scale-out link.
        """
        deployment, out = self.pricer.model.deployment, self.pricer.model.topology.scale_out
        if bytes_per_s is None:
            if out is None:
                name = self.pricer.model.device.name
                raise ConfigError(f"kv_transfer needs bytes_per_s: {name} has no link between nodes", param="kv_transfer")
            bytes_per_s = out.bandwidth.value * deployment.plan.devices
        if latency_s is None:
            latency_s = 0.0 if out is None else out.latency.value
        return KvLink(bytes_per_s, kv_bytes_per_token(deployment.spec, deployment.precisions.kv), latency_s)


def blueprint_of(group: ReplicaGroup, model: ModelSpec, draft: ModelSpec | None = None) -> Blueprint:
    """The blueprint of a group of a configuration.

    Args:
        draft: the model that `group.speculation.draft` names.

    Raises:
        ConfigError: an unknown name, a layout that the model does not allow, or a model that does not fit.
    """
    device, topology = _where(group)
    weights = WEIGHT_FORMATS.get(group.weights)
    if weights is None:
        raise ConfigError(f"weights {group.weights!r} is unknown: {nearest(group.weights, WEIGHT_FORMATS)}", param="weights")
    kv = _kv(group, device)
    constants = _constants(group, device)
    plan = group.parallelism.plan()
    deployment = Deployment(model, plan, precisions_for(device, weights, kv))
    speculation, beside = None, None
    if group.speculation is not None:
        beside, speculation = _speculation(group.speculation, draft, plan, device, kv, topology, constants)
    memory = serving_memory(
        deployment,
        device,
        step_tokens=group.engine.max_num_batched_tokens,
        step_sequences=min(group.engine.max_num_batched_tokens, _MOST_LOGIT_ROWS),
        constants=MemoryConstants(
            total_fraction=group.memory_fraction, kv_fraction=group.kv_fraction, block_tokens=group.engine.block_size
        ),
        draft=beside,
    )
    num_blocks = group.engine.num_blocks or kv_blocks(memory)
    return Blueprint(
        pricer=_pricer(group, StepTimeModel(deployment, device, topology, constants), weights),
        scheduler=group.engine.scheduler_config(num_blocks, model.max_positions, str(kv)),
        cost=ReplicaCost(plan.devices, _price(group, device), _watts(group, device)),
        speculation=speculation,
        weight=group.weight,
        region=group.region,
    )


def kv_blocks(memory: ServingMemory) -> int:
    """KV blocks of a whole replica: those of all attention-DP ranks, which are taken to be filled alike.

    Raises:
        ConfigError: not one block fits, or the model caches nothing.
    """
    if memory.kv_blocks is None:
        raise ConfigError("a model without a KV cache needs engine.num_blocks: how many blocks stand for its states")
    if memory.kv_blocks == 0:
        memory.require(1, memory.block_tokens)
    return memory.kv_blocks * memory.data


def _where(group: ReplicaGroup) -> tuple[Device, Topology]:
    if group.node:
        node = find_node(group.node)
        return node.device, Topology.of_node(node)
    device = find_device(group.device)
    return device, Topology.of(device)


def _pricer(group: ReplicaGroup, model: StepTimeModel, weights: WeightFormat) -> StepPricer:
    """On this machine, the curve that was measured with such a model and such weights, if there is one."""
    if is_this_machine(group.device) and model.deployment.plan.devices == 1:
        measured = require_machine().steps_of(model.deployment.spec, str(weights))
        if measured is not None:
            return MeasuredPricer(model, measured)
    return StepPricer(model)


def _kv(group: ReplicaGroup, device: Device) -> Precision:
    if group.kv is None:
        return base_precision(device)
    known = {str(precision): precision for precision in Precision if precision is not Precision.TF32}
    if group.kv not in known:
        raise ConfigError(f"kv {group.kv!r} is unknown: {nearest(group.kv, known)}", param="kv")
    return kv_type(device, known[group.kv])


def _constants(group: ReplicaGroup, device: Device) -> Constants:
    known = known_calibrations(device.name)
    engines = list(dict.fromkeys(engine for one in known for engine in one.engines))
    if group.step_times not in engines:
        what = f"step_times {group.step_times!r} were not measured: {nearest(group.step_times, engines)}"
        raise ConfigError(what, param="step_times")
    if is_this_machine(group.device) and group.step_times != ENGINE:
        what = f"step_times of {group.device} are those of {ENGINE}, got {group.step_times!r}: set step_times: {ENGINE}"
        raise ConfigError(what, param="step_times")
    return constants_for(device.name, group.step_times, calibrations=known)


def _speculation(
    settings: SpeculationSettings,
    draft: ModelSpec | None,
    plan: ParallelPlan,
    device: Device,
    kv: Precision,
    topology: Topology,
    constants: Constants,
) -> tuple[Deployment | None, tuple[int, float, StepPricer | None]]:
    """The draft's deployment, under the target's tensor parallelism where its heads divide, and what the replica needs."""
    if draft is None:
        return None, (settings.drafts, settings.acceptance, None)
    precisions = precisions_for(device, WeightFormat.BASE, kv)
    try:
        deployment = Deployment(draft, ParallelPlan.for_serving(plan.tensor), precisions)
    except ConfigError:
        deployment = Deployment(draft, ParallelPlan.for_serving(1), precisions)
    pricer = StepPricer(StepTimeModel(deployment, device, topology, constants))
    return deployment, (settings.drafts, settings.acceptance, pricer)


def _price(group: ReplicaGroup, device: Device) -> float | None:
    if group.usd_per_device_hour is not None:
        return group.usd_per_device_hour
    if not prices_of(device, term=Term.ON_DEMAND):
        return None
    known = price_range(device)
    return (known.low_usd_per_h + known.high_usd_per_h) / 2


def _watts(group: ReplicaGroup, device: Device) -> float | None:
    if group.watts_per_device is not None:
        return group.watts_per_device
    return None if device.power is None else device.power.value
