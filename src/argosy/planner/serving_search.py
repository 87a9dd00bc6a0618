"""The search: every engine, chunk size, batch limit and number of replicas, judged against the service level at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from argosy.cost.model_spec import ModelSpec
from argosy.errors import ConfigError
from argosy.planner.curve import Curve, closed_loop_curve, state_grid
from argosy.planner.engines import MAX_SEQUENCES_PER_RANK, Admission, Engine, Misfit, engines
from argosy.planner.offers import Offer
from argosy.planner.open_loop import OpenLoop, Variability, open_loop
from argosy.planner.serving_question import ServingQuestion, Slo
from argosy.planner.traffic import Traffic

Array = NDArray[np.float64]
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
# Replicas to try over the fewest that are stable. Multiples are independent of what the service level or the limits allow,
# so that tightening either only removes plans.
_REPLICA_STEPS = (0, 1, 2, 3)
_REPLICA_FACTORS = (1.03, 1.06, 1.1, 1.15, 1.2, 1.3, 1.4, 1.6, 2.0, 3.0)


def variability_of(traffic: Traffic, round_tokens: float = 1.0) -> Variability:
    """How requests of `traffic` differ, as far as queues depend on it; a decode step yields `round_tokens`."""
    prompt, output = traffic.prompt, traffic.output
    return Variability(
        traffic.burstiness,
        output.cv**2,
        prompt.cv**2,
        tuple((share, node / prompt.mean) for share, node in zip(prompt.shares, prompt.nodes, strict=True)),
        tuple((share, (node - 1) / round_tokens) for share, node in zip(output.shares, output.nodes, strict=True)),
    )


@dataclass(frozen=True, slots=True)
class Grid:
    """All plans of one engine: [chunks, replicas, batches].

    Attributes:
        curve: with one row per chunk; admissions: per chunk.
        batches: sequences of a replica at most; allowed: where KV and the step budget admit that many.
        ttft_miss, tpot_miss: worst of the targets: share of requests beyond it over the share that may be; at most 1
            where all targets are met.
    """

    engine: Engine
    chunks: tuple[int, ...]
    admissions: tuple[Admission, ...]
    curve: Curve
    batches: NDArray[np.intp]
    replicas: NDArray[np.intp]
    loop: OpenLoop
    allowed: NDArray[np.bool_]
    ttft_miss: Array
    tpot_miss: Array

    @property
    def runs(self) -> NDArray[np.bool_]:
        """Plans whose queues are stable and whose batch fits in memory."""
        return self.loop.stable & self.allowed

    @property
    def usd_per_h(self) -> Array:
        """[replicas], in the middle of the price range."""
        return np.asarray(self.replicas * self.engine.devices * self.engine.offer.usd_per_h)

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """Plans that keep the service level."""
        return self.runs & (self.ttft_miss <= 1) & (self.tpot_miss <= 1)

    @property
    def full_batch_usd(self) -> Array:
        """[chunks, batches]: dollars per million requests of a replica with a full batch."""
        hourly = self.engine.devices * self.engine.offer.usd_per_h
        return hourly / (3600.0 * self.curve.rate[:, self.batches]) * 1e6


@dataclass(frozen=True, slots=True)
class Candidate:
    """One plan: an entry of a grid."""

    grid: Grid
    chunk: int
    replica: int
    batch: int

    @property
    def usd_per_h(self) -> float:
        """In the middle of the price range."""
        return float(self.grid.usd_per_h[self.replica])

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.grid.engine.devices

    @property
    def index(self) -> tuple[int, int, int]:
        """Into the arrays of the grid's loop."""
        return self.chunk, self.replica, self.batch

    @property
    def replicas(self) -> int:
        """Replicas of the plan."""
        return int(self.grid.replicas[self.replica])

    @property
    def max_batch(self) -> int:
        """Sequences of a replica at most."""
        return int(self.grid.curve.states[self.grid.batches[self.batch]])

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a step of a data rank at most."""
        return self.grid.chunks[self.chunk]

    @property
    def admission(self) -> Admission:
        """What memory admits under the plan's chunk size."""
        return self.grid.admissions[self.chunk]

    @property
    def full_batch_usd(self) -> float:
        """Dollars per million requests of a replica with a full batch."""
        return float(self.grid.full_batch_usd[self.chunk, self.batch])

    @property
    def tpot_mean_s(self) -> float:
        """Mean seconds per output token."""
        return float(self.grid.loop.tpot_s[self.index])

    @property
    def ttft_mean_s(self) -> float:
        """Mean time to first token."""
        return float(self.grid.loop.ttft_mean_s[self.index])

    @property
    def full_batch_requests_per_s(self) -> float:
        """Of a replica whose batch is full: beyond it queues grow without end."""
        return float(self.grid.curve.rate[self.chunk, self.grid.batches[self.batch]])


@dataclass(frozen=True, slots=True)
class Search:
    """What was looked at."""

    question: ServingQuestion
    spec: ModelSpec
    offers: tuple[Offer, ...]
    grids: tuple[Grid, ...]
    misfits: tuple[Misfit, ...]

    @property
    def evaluated(self) -> int:
        """Plans judged."""
        return sum(int(grid.allowed.sum()) for grid in self.grids)


def search(question: ServingQuestion, spec: ModelSpec, draft: ModelSpec | None, offers: tuple[Offer, ...]) -> Search:
    """Judge every plan of the question's space.

    Raises:
        ConfigError: a degree or format that the question names is impossible, or requests longer than the model takes.
    """
    tokens = question.traffic.prompt.tokens + question.traffic.output.tokens
    if tokens > spec.max_positions:
        raise ConfigError(
            f"requests of {tokens} tokens exceed the {spec.max_positions} positions of {spec.name}; shorten prompt or output"
        )
    grids: list[Grid] = []
    misfits: list[Misfit] = []
    for offer in offers:
        for engine in engines(question, spec, draft, offer):
            if isinstance(engine, Misfit):
                misfits.append(engine)
                continue
            grid = evaluate(engine, question)
            if grid is not None:
                grids.append(grid)
    return Search(question, spec, offers, tuple(grids), tuple(misfits))


def evaluate(engine: Engine, question: ServingQuestion) -> Grid | None:
    """All plans of `engine`, or None if no batch that is asked for fits in its memory and steps."""
    traffic, plan = question.traffic, engine.deployment.plan
    admitted = [(chunk, engine.admission(traffic, chunk)) for chunk in engine.memories]
    limits = [min(a.sequences, _most_in_step(engine, chunk)) for chunk, a in admitted]
    kept = [index for index, limit in enumerate(limits) if limit >= 1]
    if not kept:
        return None
    most = max(limits[index] for index in kept)
    chunks = tuple(admitted[index][0] for index in kept)
    admissions = tuple(admitted[index][1] for index in kept)
    ladder = question.space.max_batch or (*BATCHES, *(limits[index] for index in kept))
    wanted = tuple(sorted({batch for batch in ladder if batch <= most}))
    if not wanted:
        return None
    states = state_grid(most, wanted)
    curve = closed_loop_curve(engine, traffic, chunks, tuple(a.hit_share for a in admissions), states)
    batches = np.searchsorted(states, np.array(wanted, np.float64)).astype(np.intp)
    capacity = float(curve.rate[:, -1].max())
    replicas = replica_counts(
        traffic.requests_per_s, capacity, engine.offer.most_devices(question.max_devices) / plan.devices
    )
    round_tokens = 1.0 if engine.speculation is None else engine.speculation.tokens
    variability = variability_of(traffic, round_tokens)
    loop = open_loop(curve, traffic.requests_per_s / replicas, batches, variability, replicas=replicas)
    allowed = np.array([[batch <= limits[index] for batch in wanted] for index in kept])[:, None, :]
    allowed = np.broadcast_to(allowed, loop.stable.shape)
    ttft, tpot = misses(loop, question.slo)
    return Grid(engine, chunks, admissions, curve, batches, replicas, loop, allowed, ttft, tpot)


def _most_in_step(engine: Engine, chunk_tokens: int) -> int:
    """Sequences of a replica that decode in one step of `chunk_tokens` per data rank and micro-batch."""
    plan = engine.deployment.plan
    per_rank = min(MAX_SEQUENCES_PER_RANK, chunk_tokens // engine.step_width * plan.pipeline)
    return plan.data * per_rank


def replica_counts(requests_per_s: float, capacity_per_s: float, most: float) -> NDArray[np.intp]:
    """Numbers of replicas to try, from the fewest that are stable; `most` alone where that is fewer."""
    fewest = max(1, math.ceil(requests_per_s / capacity_per_s))
    if fewest > most:
        return np.array([max(1, math.floor(most))], np.intp)
    counts = {fewest + step for step in _REPLICA_STEPS} | {math.ceil(fewest * factor) for factor in _REPLICA_FACTORS}
    return np.array(sorted(count for count in counts if count <= most), np.intp)


def misses(loop: OpenLoop, slo: Slo) -> tuple[Array, Array]:
    """(TTFT, TPOT) misses as `Grid` describes them."""
    ttft, tpot = np.zeros(loop.stable.shape), np.zeros(loop.stable.shape)
    for target in slo.ttft:
        ttft = np.maximum(ttft, loop.ttft_tail(target.seconds) / (1 - target.percentile / 100))
    for target in slo.tpot:
        tpot = np.maximum(tpot, loop.tpot_tail(target.seconds) / (1 - target.percentile / 100))
    return ttft, tpot


def within_budget(grid: Grid, question: ServingQuestion) -> NDArray[np.bool_]:
    """[replicas]: whether the high end of the price stays within the budget."""
    if question.max_usd_per_h is None:
        return np.ones(len(grid.replicas), bool)
    high = grid.replicas * grid.engine.devices * grid.engine.offer.price.high_usd_per_h
    return np.asarray(high <= question.max_usd_per_h)


def cheapest(grid: Grid, question: ServingQuestion) -> Candidate | None:
    """The plan with the fewest replicas; of those the one furthest within the service level, then the fastest."""
    usable = grid.feasible & within_budget(grid, question)[None, :, None]
    by_replicas = usable.any(axis=(0, 2))
    if not by_replicas.any():
        return None
    replica = int(np.argmax(by_replicas))
    miss = np.maximum(grid.ttft_miss, grid.tpot_miss)[:, replica, :]
    speed = grid.loop.ttft_mean_s[:, replica, :] + grid.loop.tpot_s[:, replica, :]
    score = np.where(
        usable[:, replica, :], miss + 1e-3 * speed / speed.max(initial=1e-12, where=usable[:, replica, :]), np.inf
    )
    chunk, batch = (int(i) for i in np.unravel_index(int(np.argmin(score)), score.shape))
    return Candidate(grid, chunk, replica, batch)


def cheapest_when_full(grid: Grid, question: ServingQuestion) -> Candidate | None:
    """The feasible plan with the lowest price per token at a full batch; of equals the one with fewest replicas."""
    usable = grid.feasible & within_budget(grid, question)[None, :, None]
    if not usable.any():
        return None
    price = np.where(usable, grid.full_batch_usd[:, None, :], np.inf)
    order = price + 1e-9 * price.min() * np.arange(len(grid.replicas))[None, :, None]
    return Candidate(grid, *(int(i) for i in np.unravel_index(int(np.argmin(order)), order.shape)))


def fastest(grid: Grid, question: ServingQuestion) -> Candidate | None:
    """The feasible plan with the lowest mean TPOT, then TTFT."""
    usable = grid.feasible & within_budget(grid, question)[None, :, None]
    if not usable.any():
        return None
    latency = grid.loop.tpot_s * 1e3 + grid.loop.ttft_mean_s * 1e-3
    order = np.where(usable, latency, np.inf)
    return Candidate(grid, *(int(i) for i in np.unravel_index(int(np.argmin(order)), order.shape)))


def candidates_of(grids: Iterable[Grid], question: ServingQuestion) -> list[Candidate]:
    """The cheapest plan of every engine, cheapest first; of equals the widest formats, then the most room."""
    found = [candidate for grid in grids if (candidate := cheapest(grid, question)) is not None]
    return distinct(sorted(found, key=lambda c: (round(c.usd_per_h, 6), -stored_bytes(c.grid.engine), room(c))))


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The first of those that differ in nothing but formats of equal size, such as fp8 and int8."""
    kept: dict[tuple[object, ...], Candidate] = {}
    for candidate in candidates:
        engine = candidate.grid.engine
        speculation = None if engine.speculation is None else engine.speculation.drafts
        sizes = engine.deployment.precisions.weights.bytes_per_element, engine.deployment.precisions.kv.bytes_per_element
        key = (engine.offer.device.name, engine.deployment.plan, *sizes, engine.caching, speculation)
        kept.setdefault(key, candidate)
    return list(kept.values())


def stored_bytes(engine: Engine) -> float:
    """Bytes of a weight and of a KV element: at one price wider formats are preferred, since their quality is known."""
    precisions = engine.deployment.precisions
    return precisions.weights.bytes_per_element + precisions.kv.bytes_per_element


def room(candidate: Candidate) -> float:
    """How close the plan is to its targets: 0 far inside, 1 at the limit; without targets its utilisation."""
    grid, index = candidate.grid, candidate.index
    miss = float(max(grid.ttft_miss[index], grid.tpot_miss[index]))
    return miss if miss > 0 else float(grid.loop.running[index] / grid.curve.states[grid.batches[candidate.batch]])
