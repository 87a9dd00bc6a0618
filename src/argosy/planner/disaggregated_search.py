"""Separate pools for prefill and decode: how many workers of which layout each needs, and the KV moved between them.

The pools decouple. A decode pool is sized for TPOT, and so that a request hardly ever waits for KV in it: at most a tenth of
the requests that may miss TTFT. A prefill pool computes prompts one by one per data rank (M/G/c; Sakasegawa 1977) and is
sized for TTFT: wait, prompt, and transfer of its KV. The first token is sent after the transfer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from argosy.cost.device import Link
from argosy.cost.model_arithmetic import kv_bytes, state_bytes
from argosy.cost.model_spec import ModelSpec
from argosy.cost.serving_arithmetic import transfer_s
from argosy.cost.serving_time import PrefillTime, prefill_time, step_cadence_s
from argosy.planner.curve import Curve, state_grid
from argosy.planner.engines import MAX_SEQUENCES_PER_RANK, Engine
from argosy.planner.offers import Offer
from argosy.planner.open_loop import OpenLoop, open_loop
from argosy.planner.serving_question import ServingQuestion
from argosy.planner.serving_search import BATCHES, Grid, misses, replica_counts, variability_of

Array = NDArray[np.float64]
# Of the requests that may miss TTFT, the share left for waits in the decode pool; without a TTFT target 1 % may wait.
_DECODE_SHARE, _DECODE_WAIT = 0.1, 0.01
# Pools of each phase that are combined, the cheapest ones per KV format.
_PREFILL_POOLS, _DECODE_POOLS = 16, 6


@dataclass(frozen=True, slots=True)
class DecodePool:
    """Workers that only decode.

    Attributes:
        batch: of a worker at most; loop: its steady state at [0, replica, batch] of `index`.
        admissible: sequences that a worker's KV holds.
    """

    engine: Engine
    chunk: int
    replicas: int
    batch: int
    admissible: int
    loop: OpenLoop
    index: tuple[int, int, int]

    @property
    def usd_per_h(self) -> float:
        """In the middle of the price range."""
        return self.replicas * self.engine.devices * self.engine.offer.usd_per_h


@dataclass(frozen=True, slots=True)
class PrefillWorker:
    """A worker that computes prompts: seconds of a mean one, and what a thousand a second would cost an hour."""

    engine: Engine
    chunk: int
    hit_share: float
    time: PrefillTime

    @property
    def usd_per_prompt(self) -> float:
        """Dollars an hour per prompt a second at full use."""
        return self.engine.devices * self.engine.offer.usd_per_h * self.time.occupancy_s / self.servers

    @property
    def servers(self) -> int:
        """Prompts that a worker computes at once."""
        return self.engine.deployment.plan.data


@dataclass(frozen=True, slots=True)
class PrefillQueue:
    """Steady state of `replicas` workers behind one queue.

    Attributes:
        wait_probability, wait_s: share of prompts that wait and the mean over those.
    """

    worker: PrefillWorker
    replicas: int
    utilisation: float
    wait_probability: float
    wait_s: float

    def ttft_tail(self, seconds: float, transfer: float, prompts: tuple[tuple[float, float], ...]) -> float:
        """Share of requests whose wait, prompt and transfer exceed `seconds`; `prompts` are (share, length over mean)."""
        total = 0.0
        for share, length in prompts:
            left = seconds - (transfer + self.worker.time.latency_s) * length
            beyond = 1.0 if left < 0 else self.wait_probability * math.exp(-left / max(self.wait_s, 1e-12))
            total += share * beyond
        return total

    def ttft_quantile(self, share: float, transfer: float, prompts: tuple[tuple[float, float], ...]) -> float:
        """Seconds that `share` of requests stay within."""
        low, high = (
            0.0,
            (self.worker.time.latency_s + transfer) * max(length for _, length in prompts) + 60 * self.wait_s + 1e-9,
        )
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.ttft_tail(middle, transfer, prompts) > 1 - share else (low, middle)
        return high


@dataclass(frozen=True, slots=True)
class PoolPair:
    """A disaggregated plan that keeps the service level."""

    prefill: PrefillQueue
    decode: DecodePool
    transfer_s: float
    transfer_bytes: float

    @property
    def usd_per_h(self) -> float:
        """In the middle of the price ranges."""
        worker = self.prefill.worker.engine
        return self.prefill.replicas * worker.devices * worker.offer.usd_per_h + self.decode.usd_per_h

    @property
    def devices(self) -> int:
        """Of both pools."""
        return self.prefill.replicas * self.prefill.worker.engine.devices + self.decode.replicas * self.decode.engine.devices

    @property
    def ttft_mean_s(self) -> float:
        """Mean time to first token."""
        wait = self.prefill.wait_probability * self.prefill.wait_s
        return (
            wait
            + self.prefill.worker.time.latency_s
            + self.transfer_s
            + float(self.decode.loop.queue_wait_s[self.decode.index])
        )

    @property
    def tpot_mean_s(self) -> float:
        """Mean seconds per output token."""
        return float(self.decode.loop.tpot_s[self.decode.index])


def pool_pairs(grids: Iterable[Grid], question: ServingQuestion, spec: ModelSpec) -> list[PoolPair]:
    """The cheapest pair for every kind of decode pool considered, cheapest first. None for outputs of one token."""
    if question.traffic.output.tokens == 1 or not question.space.disaggregate:
        return []
    engines = [grid.engine for grid in grids if grid.engine.speculation is None]
    kvs = dict.fromkeys(engine.deployment.precisions.kv for engine in engines)
    pairs: list[PoolPair] = []
    for kv in kvs:
        same = [engine for engine in engines if engine.deployment.precisions.kv is kv]
        decoders = sorted(
            (pool for engine in same if not engine.caching and (pool := decode_pool(engine, question)) is not None),
            key=lambda pool: pool.usd_per_h,
        )[:_DECODE_POOLS]
        workers = sorted(_prefill_workers(same, question), key=lambda worker: worker.usd_per_prompt)[:_PREFILL_POOLS]
        for decoder in decoders:
            pairs += (pair for worker in workers if (pair := _pair(worker, decoder, question, spec)) is not None)
    best: dict[tuple[object, ...], PoolPair] = {}
    for pair in sorted(pairs, key=lambda pair: (round(pair.usd_per_h, 6), pair.ttft_mean_s)):
        engine = pair.decode.engine
        sizes = engine.deployment.precisions.weights.bytes_per_element, engine.deployment.precisions.kv
        best.setdefault((engine.offer.device.name, engine.deployment.plan, *sizes), pair)
    return list(best.values())


def decode_curve(engine: Engine, question: ServingQuestion, states: Array) -> Curve:
    """[1, states]: request rates and TPOT of a worker that only decodes, at the mean context."""
    plan, traffic = engine.deployment.plan, question.traffic
    rank = np.maximum(1.0, states / plan.data)
    micro_batches = np.minimum(float(plan.pipeline), rank)
    times = engine.model.decode(rank / micro_batches, traffic.prompt.mean + traffic.output.mean / 2)
    step = step_cadence_s(times, micro_batches)
    rate = np.maximum.accumulate(states / ((traffic.output.mean - 1) * step))
    widths = np.diff(states, prepend=0.0)
    none = np.zeros((1, len(states)))
    between = np.interp(states - (widths - 1) / 2, states, rate)
    return Curve(states, widths, rate[None], between[None], step[None], none, none, none, none, 1)


def decode_pool(engine: Engine, question: ServingQuestion) -> DecodePool | None:
    """The fewest workers, and the largest batch for them, that keep TPOT and hardly ever let a request wait."""
    traffic, plan = question.traffic, engine.deployment.plan
    chunk = min(engine.memories)
    admissible = engine.admission(traffic, chunk).sequences
    most = min(admissible, plan.data * MAX_SEQUENCES_PER_RANK)
    ladder = tuple(sorted({batch for batch in (question.space.max_batch or (*BATCHES, most)) if batch <= most}))
    if not ladder:
        return None
    curve = decode_curve(engine, question, state_grid(most, ladder))
    batches = np.searchsorted(curve.states, np.array(ladder, np.float64)).astype(np.intp)
    limit = engine.offer.most_devices(question.max_devices) / plan.devices
    replicas = replica_counts(traffic.requests_per_s, float(curve.rate[0, -1]), limit)
    loop = open_loop(curve, traffic.requests_per_s / replicas, batches, variability_of(traffic), replicas=replicas)
    allowed = min((_DECODE_SHARE * (1 - target.percentile / 100) for target in question.slo.ttft), default=_DECODE_WAIT)
    usable = loop.stable & (misses(loop, question.slo)[1] <= 1) & (loop.wait_probability <= allowed)
    if not usable.any():
        return None
    replica = int(np.argmax(usable.any(axis=(0, 2))))
    batch = int(np.max(np.nonzero(usable[0, replica])[0]))
    return DecodePool(engine, chunk, int(replicas[replica]), ladder[batch], admissible, loop, (0, replica, batch))


def _prefill_workers(engines: Iterable[Engine], question: ServingQuestion) -> Iterator[PrefillWorker]:
    """Each engine with the chunk size that makes its prompts cheapest."""
    prompt = question.traffic.prompt.tokens
    for engine in engines:
        workers = []
        for chunk in engine.memories:
            hit_share = engine.admission(question.traffic, chunk).hit_share
            cached = min(math.floor(hit_share * prompt), prompt - 1)
            time = prefill_time(engine.model, prompt - cached, chunk_tokens=chunk, cached_tokens=cached)
            workers.append(PrefillWorker(engine, chunk, hit_share, time))
        yield min(workers, key=lambda worker: (worker.time.occupancy_s, worker.time.latency_s))


def prefill_queue(worker: PrefillWorker, replicas: int, question: ServingQuestion) -> PrefillQueue | None:
    """Steady state, or None where the queue grows without end."""
    traffic = question.traffic
    servers = replicas * worker.servers
    utilisation = traffic.requests_per_s * worker.time.occupancy_s / servers
    if utilisation >= 1:
        return None
    spread = (traffic.burstiness + traffic.prompt.cv**2) / 2
    probability = utilisation ** (math.sqrt(2.0 * (servers + 1)) - 1)
    return PrefillQueue(
        worker, replicas, utilisation, probability, worker.time.occupancy_s * spread / (servers * (1 - utilisation))
    )


def transfer_link(prefill: Offer, decode: Offer, devices: int) -> Link | None:
    """The link between pools of `devices` in all: within a node if all fit in one, else the slower network of both."""
    if prefill.device == decode.device and devices <= prefill.topology.devices_per_node:
        return prefill.topology.scale_up
    links = [offer.topology.scale_out for offer in (prefill, decode)]
    known = [link for link in links if link is not None]
    return min(known, key=lambda link: link.bandwidth.value) if len(known) == len(links) else None


def _pair(worker: PrefillWorker, decoder: DecodePool, question: ServingQuestion, spec: ModelSpec) -> PoolPair | None:
    """The fewest prefill workers for `decoder` that keep TTFT, within devices and budget."""
    traffic, engine = question.traffic, worker.engine
    capacity = worker.servers / worker.time.occupancy_s
    used = decoder.replicas * decoder.engine.devices
    same = engine.offer is decoder.engine.offer
    left = engine.offer.most_devices() - (used if same else 0)
    if question.max_devices is not None:
        left = min(left, question.max_devices - used)
    prompt = traffic.prompt.tokens
    precision = decoder.engine.deployment.precisions.kv
    moved = kv_bytes(spec, prompt, precision) + state_bytes(spec)
    shards = min(e.deployment.plan.tensor * e.deployment.plan.pipeline for e in (engine, decoder.engine))
    prompts = variability_of(traffic).prompts
    if left < engine.devices:
        return None
    for replicas in replica_counts(traffic.requests_per_s, capacity, left / engine.devices):
        queue = prefill_queue(worker, int(replicas), question)
        link = transfer_link(engine.offer, decoder.engine.offer, used + int(replicas) * engine.devices)
        if queue is None or link is None:
            continue
        bandwidth = link.bandwidth.value * question.constants_on(engine.offer.device.name).link_efficiency
        moving_s = transfer_s(moved, bandwidth, shards=shards, latency_s=link.latency.value)
        pair = PoolPair(queue, decoder, moving_s, moved)
        if all(
            queue.ttft_tail(target.seconds, moving_s, prompts) <= (1 - _DECODE_SHARE) * (1 - target.percentile / 100)
            for target in question.slo.ttft
        ):
            return pair if _affordable(pair, question) else None
    return None


def _affordable(pair: PoolPair, question: ServingQuestion) -> bool:
    if question.max_usd_per_h is None:
        return True
    high = pair.prefill.replicas * pair.prefill.worker.engine.devices * pair.prefill.worker.engine.offer.price.high_usd_per_h
    high += pair.decode.replicas * pair.decode.engine.devices * pair.decode.engine.offer.price.high_usd_per_h
    return high <= question.max_usd_per_h
