"""What a serving plan says: what to run, what it takes and gives, and how far each figure may be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from argosy.cost.quantity import Grade
from argosy.planner.plain import Plain


@dataclass(frozen=True, slots=True)
class UsdRange(Plain):
    """Dollars from the low to the high end of what the devices cost."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Middle of the range, by which plans are ranked."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class PoolLayout(Plain):
    """Replicas of one kind.

    Attributes:
        role: "serve" for both phases, or "prefill" or "decode" of a disaggregated plan.
        tensor, pipeline, data, expert: degrees of one replica; expert 1 shards experts like other matrices.
        weights, kv: formats.
        max_batch: sequences of a replica at once; chunk_tokens: tokens of a step of one data rank.
    """

    role: str
    device: str
    replicas: int
    tensor: int
    pipeline: int
    data: int
    expert: int
    devices_per_replica: int
    weights: str
    kv: str
    max_batch: int
    chunk_tokens: int

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.devices_per_replica

    def describe(self) -> str:
        """One line, such as `2 x (TP 4 x PP 1 on H100 SXM), fp8 weights, fp8 KV`."""
        degrees = [f"TP {self.tensor}"]
        degrees += [f"{name} {value}" for name, value in (("PP", self.pipeline), ("DP", self.data)) if value > 1]
        degrees += [f"EP {self.expert}"] if self.expert > 1 else []
        role = "" if self.role == "serve" else f"{self.role}: "
        return f"{role}{self.replicas} x ({' x '.join(degrees)} on {self.device}), {self.weights} weights, {self.kv} KV"


@dataclass(frozen=True, slots=True)
class SpeculationChoice(Plain):
    """Drafts a round by `draft`, and what they cost in memory: the KV tax.

    Attributes:
        weight_bytes: of the draft on each device; kv_share: of a sequence's KV that is the draft's.
    """

    draft: str
    drafts: int
    acceptance: float
    weight_bytes: float
    kv_share: float


@dataclass(frozen=True, slots=True)
class MemoryBreakdown(Plain):
    """Bytes of one device of the fullest stage.

    Attributes:
        kv_bytes: of `max_batch` sequences and what prefixes keep cached; free_bytes: beyond that.
    """

    pool: str
    total_bytes: float
    weight_bytes: float
    draft_weight_bytes: float
    activation_bytes: float
    communication_bytes: float
    runtime_bytes: float
    kv_bytes: float
    free_bytes: float


@dataclass(frozen=True, slots=True)
class Percentile(Plain):
    """`seconds` that `percentile` percent of requests stay within; `target_s` where the question asks for one."""

    percentile: float
    seconds: float
    target_s: float | None = None


@dataclass(frozen=True, slots=True)
class Latency(Plain):
    """Seconds at the traffic asked for; TPOT is None for outputs of one token."""

    ttft_mean_s: float
    ttft: tuple[Percentile, ...]
    tpot_mean_s: float | None
    tpot: tuple[Percentile, ...]
    queue_wait_s: float


@dataclass(frozen=True, slots=True)
class Throughput(Plain):
    """Of the whole plan.

    Attributes:
        capacity_requests_per_s: at which queues grow without end; utilisation: of it.
        running: sequences in a replica on average.
    """

    requests_per_s: float
    output_tokens_per_s: float
    capacity_requests_per_s: float
    utilisation: float
    running: float


@dataclass(frozen=True, slots=True)
class Cost(Plain):
    """Dollars.

    Attributes:
        per_million_tokens: of output, at the traffic asked for; at_full_batch: with every batch full.
    """

    per_h: UsdRange
    per_million_tokens: UsdRange
    per_million_tokens_at_full_batch: UsdRange


@dataclass(frozen=True, slots=True)
class Energy(Plain):
    """At board power, an upper bound: watts of all devices, joules per output token. None where the power is unknown."""

    watts: float | None
    joules_per_output_token: float | None


@dataclass(frozen=True, slots=True)
class KvCliff(Plain):
    """Distance to where requests wait for KV memory and TTFT leaves its plateau.

    Attributes:
        admissible: sequences that a replica's KV holds; running_peak: 99th percentile of sequences in it.
        margin_sequences: admissible - running_peak, below 0 where the peak already waits.
        cliff_requests_per_s: traffic at which the mean would reach the cliff, or capacity where that comes first.
        margin_usd_per_h: what of the bill buys the distance from the traffic to that.
    """

    admissible: int
    running_peak: float
    margin_sequences: float
    cliff_requests_per_s: float
    margin_usd_per_h: float


@dataclass(frozen=True, slots=True)
class Binding(Plain):
    """What the plan runs against.

    Attributes:
        step: what most of a step's time goes into (compute, memory bandwidth, network, overhead); shares of each.
        limit: what keeps one more request out: KV capacity, TPOT, TTFT, or throughput.
    """

    step: str
    shares: Mapping[str, float]
    limit: str


@dataclass(frozen=True, slots=True)
class ServingPlan(Plain):
    """One way to serve the traffic within the service level.

    Attributes:
        pools: one, or prefill and decode.
        cached_prompt_share: of prompt tokens found in the prefix cache.
        grades: how far each group of figures may be trusted.
        notes: what a reader has to know beside the figures.
        worse_because: against the best plan of the same ranking; "" for the best one.
    """

    pools: tuple[PoolLayout, ...]
    speculation: SpeculationChoice | None
    prefix_caching: bool
    cached_prompt_share: float
    memory: tuple[MemoryBreakdown, ...]
    latency: Latency
    throughput: Throughput
    cost: Cost
    energy: Energy
    kv_cliff: KvCliff
    binding: Binding
    grades: Mapping[str, Grade]
    notes: tuple[str, ...] = ()
    worse_because: str = ""

    @property
    def devices(self) -> int:
        """Devices of all pools."""
        return sum(pool.devices for pool in self.pools)

    def describe(self) -> str:
        """One line."""
        parts = [pool.describe() for pool in self.pools]
        if self.speculation is not None:
            parts.append(f"{self.speculation.drafts} drafts by {self.speculation.draft}")
        if self.prefix_caching:
            parts.append("prefix caching")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class ParetoPoint(Plain):
    """A plan with every batch full, which no other beats in both figures."""

    plan: str
    devices: int
    max_batch: int
    tpot_s: float
    usd_per_million_tokens: UsdRange


@dataclass(frozen=True, slots=True)
class Change(Plain):
    """A change of the question that would make a plan feasible, and the plan it leads to."""

    what: str
    plan: str
    usd_per_h: UsdRange


@dataclass(frozen=True, slots=True)
class Infeasible(Plain):
    """Why no plan exists, and changes that would allow one, smallest first."""

    reason: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class ServingAnswer(Plain):
    """Plans in three orders, the trade-off between price and speed, or why there is none.

    Attributes:
        plans: by $/h; by_tokens_price: by $/1M output tokens with every batch full; by_latency: by TPOT, then TTFT.
        pareto: $/1M tokens against TPOT at full batches, whatever the traffic and service level.
        evaluated: plans looked at.
    """

    model: str
    plans: tuple[ServingPlan, ...]
    by_tokens_price: tuple[ServingPlan, ...]
    by_latency: tuple[ServingPlan, ...]
    pareto: tuple[ParetoPoint, ...]
    evaluated: int
    infeasible: Infeasible | None = None

    @property
    def best(self) -> ServingPlan | None:
        """The cheapest plan, or None."""
        return self.plans[0] if self.plans else None
