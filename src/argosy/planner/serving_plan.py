"""From a candidate of the search to a plan with its figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from argosy.cost.formats import base_precision
from argosy.cost.model_arithmetic import kv_bytes_per_token
from argosy.cost.quantity import Grade, worst_grade
from argosy.cost.serving_memory import ServingMemory
from argosy.cost.serving_time import ClosedLoop, ServingEstimate, closed_loops
from argosy.cost.step_time import Binding as StepBinding
from argosy.planner.engines import Admission, Engine, request_tokens
from argosy.planner.offers import Offer
from argosy.planner.serving_answer import (
    Binding,
    Cost,
    Energy,
    KvCliff,
    Latency,
    MemoryBreakdown,
    Percentile,
    PoolLayout,
    ServingPlan,
    SpeculationChoice,
    Throughput,
    UsdRange,
)
from argosy.planner.serving_question import ServingQuestion, Target
from argosy.planner.serving_search import Candidate
from argosy.planner.traffic import Traffic

STEP_PARTS = {
    StepBinding.COMPUTE: "compute",
    StepBinding.MEMORY: "memory bandwidth",
    StepBinding.NETWORK: "network",
    StepBinding.OVERHEAD: "overhead",
}
_USUAL_PERCENTILES = (50.0, 99.0)


def serving_plan(candidate: Candidate, question: ServingQuestion, model_grade: Grade) -> ServingPlan:
    """The figures of `candidate`, all from its grid and from the memory and step times of its engine."""
    engine, traffic = candidate.grid.engine, question.traffic
    memory, estimate = engine.memories[candidate.chunk_tokens], operating_point(candidate, traffic)
    pool = pool_layout(engine, "serve", candidate.replicas, candidate.max_batch, candidate.chunk_tokens)
    return ServingPlan(
        pools=(pool,),
        speculation=speculation_choice(engine, memory),
        prefix_caching=engine.caching,
        cached_prompt_share=candidate.admission.hit_share,
        memory=(memory_breakdown(memory, "serve", candidate.max_batch, request_tokens(traffic), candidate.admission),),
        latency=_latency(candidate, question),
        throughput=_throughput(candidate, traffic),
        cost=_cost(candidate, traffic),
        energy=energy_of(((engine.offer, pool.devices),), traffic),
        kv_cliff=_kv_cliff(candidate, traffic),
        binding=Binding(STEP_PARTS[estimate.binds], step_shares(estimate), limit_of(candidate)),
        grades=grades_of((engine,), question, model_grade),
        notes=notes_of(candidate, question, estimate),
    )


def operating_point(candidate: Candidate, traffic: Traffic) -> ServingEstimate:
    """The closed loop at the mean number of running sequences: for what a step's time goes into."""
    running = max(1, round(float(candidate.grid.loop.running[candidate.index])))
    prompt = traffic.prompt.tokens
    cached = min(int(candidate.admission.hit_share * prompt), prompt - 1)
    load = ClosedLoop(prompt, traffic.output.tokens, running, cached)
    engine = candidate.grid.engine
    (estimate,) = closed_loops(engine.model, (load,), step_tokens=candidate.chunk_tokens, speculation=engine.speculation)
    return estimate


def step_shares(estimate: ServingEstimate) -> dict[str, float]:
    """Shares of the mean step by what they go into."""
    return {STEP_PARTS[part]: share for part, share in estimate.by_binding.items()}


def pool_layout(engine: Engine, role: str, replicas: int, batch: int, chunk: int) -> PoolLayout:
    """The layout of `replicas` of `engine`."""
    plan = engine.deployment.plan
    stored = engine.weights.stored
    return PoolLayout(
        role=role,
        device=engine.offer.device.name,
        replicas=replicas,
        tensor=plan.tensor,
        pipeline=plan.pipeline,
        data=plan.data,
        expert=plan.expert,
        devices_per_replica=plan.devices,
        weights=str(base_precision(engine.offer.device) if stored is None else engine.weights),
        kv=str(engine.deployment.precisions.kv),
        max_batch=batch,
        chunk_tokens=chunk,
    )


def speculation_choice(engine: Engine, memory: ServingMemory) -> SpeculationChoice | None:
    """What speculation is used and what memory it takes, or None."""
    if engine.speculation is None or engine.draft is None:
        return None
    draft = kv_bytes_per_token(engine.draft.spec, engine.draft.precisions.kv, tensor=engine.draft.plan.tensor)
    stage = max(memory.stages, key=lambda stage: stage.token_bytes)
    return SpeculationChoice(
        draft=engine.draft.spec.name,
        drafts=engine.speculation.drafts,
        acceptance=engine.speculation.acceptance,
        weight_bytes=stage.draft_weight_bytes,
        kv_share=draft / stage.token_bytes if stage.token_bytes else 0.0,
    )


def memory_breakdown(
    memory: ServingMemory, pool: str, batch: int, tokens: int, admission: Admission | None = None
) -> MemoryBreakdown:
    """Bytes of a device of the stage that `batch` sequences of `tokens` leave least room on."""
    per_rank = -(-batch // memory.data)
    resident = 0.0 if admission is None else admission.resident_tokens

    def kv(index: int) -> float:
        stage = memory.stages[index]
        each = stage.sequence_bytes(tokens, memory.block_tokens)
        if admission is not None and admission.hit_share:
            each -= stage.sequence_bytes(admission.shared_tokens, memory.block_tokens) - stage.state_bytes
        return per_rank * each + resident * stage.token_bytes

    index = min(range(len(memory.stages)), key=lambda i: memory.stages[i].usable_kv_bytes - kv(i))
    stage = memory.stages[index]
    used = sum(stage.parts().values()) + kv(index)
    return MemoryBreakdown(
        pool=pool,
        total_bytes=stage.total_bytes,
        weight_bytes=stage.weight_bytes,
        draft_weight_bytes=stage.draft_weight_bytes,
        activation_bytes=stage.activation_bytes,
        communication_bytes=stage.communication_bytes,
        runtime_bytes=stage.runtime_bytes,
        kv_bytes=kv(index),
        free_bytes=stage.total_bytes - used,
    )


def percentiles_of(targets: tuple[Target, ...]) -> list[tuple[float, float | None]]:
    """(percentile, target seconds or None) to report: the usual ones and those asked for, ascending."""
    asked = {target.percentile: target.seconds for target in targets}
    return [(percentile, asked.get(percentile)) for percentile in sorted({*_USUAL_PERCENTILES, *asked})]


def _latency(candidate: Candidate, question: ServingQuestion) -> Latency:
    loop = candidate.grid.loop.at(candidate.index)
    defined = question.traffic.output.tokens > 1
    ttft = tuple(
        Percentile(percentile, loop.ttft_quantile(percentile / 100), target)
        for percentile, target in percentiles_of(question.slo.ttft)
    )
    tpot = tuple(
        Percentile(percentile, loop.tpot_quantile(percentile / 100), target)
        for percentile, target in percentiles_of(question.slo.tpot)
        if defined
    )
    return Latency(
        ttft_mean_s=loop.ttft_mean_s.item(),
        ttft=ttft,
        tpot_mean_s=loop.tpot_s.item() if defined else None,
        tpot=tpot,
        queue_wait_s=loop.queue_wait_s.item(),
    )


def _throughput(candidate: Candidate, traffic: Traffic) -> Throughput:
    capacity = candidate.replicas * candidate.full_batch_requests_per_s
    return Throughput(
        requests_per_s=traffic.requests_per_s,
        output_tokens_per_s=traffic.output_tokens_per_s,
        capacity_requests_per_s=capacity,
        utilisation=traffic.requests_per_s / capacity,
        running=float(candidate.grid.loop.running[candidate.index]),
    )


def usd_range(pools: Iterable[tuple[Offer, int]]) -> UsdRange:
    """$/h of (offer, devices) together."""
    pairs = [(offer.price, devices) for offer, devices in pools]
    return UsdRange(
        sum(price.low_usd_per_h * devices for price, devices in pairs),
        sum(price.high_usd_per_h * devices for price, devices in pairs),
    )


def per_million(per_h: UsdRange, tokens_per_s: float) -> UsdRange:
    """Dollars per million tokens at a rate: $/h / (3600 x tokens/s) x 10^6."""
    factor = 1e6 / (3600.0 * tokens_per_s)
    return UsdRange(per_h.low * factor, per_h.high * factor)


def _cost(candidate: Candidate, traffic: Traffic) -> Cost:
    per_h = usd_range(((candidate.grid.engine.offer, candidate.devices),))
    full = candidate.replicas * candidate.full_batch_requests_per_s * traffic.output.mean
    return Cost(per_h, per_million(per_h, traffic.output_tokens_per_s), per_million(per_h, full))


def energy_of(pools: Iterable[tuple[Offer, int]], traffic: Traffic) -> Energy:
    """Board power of (offer, devices) together."""
    watts = 0.0
    for offer, devices in pools:
        if offer.device.power is None:
            return Energy(None, None)
        watts += offer.device.power.value * devices
    return Energy(watts, watts / traffic.output_tokens_per_s)


def _kv_cliff(candidate: Candidate, traffic: Traffic) -> KvCliff:
    grid = candidate.grid
    admissible = candidate.admission.sequences
    peak = grid.loop.at(candidate.index).population_quantile(0.99).item()
    at = grid.curve.up_to(admissible)
    cliff = candidate.replicas * float(grid.curve.rate[candidate.chunk, at])
    unused = max(0.0, 1 - traffic.requests_per_s / cliff)
    return KvCliff(admissible, peak, admissible - peak, cliff, candidate.usd_per_h * unused)


def limit_of(candidate: Candidate) -> str:
    """What fails first with one replica fewer of the same engine, over all its chunk sizes and batches.

    Where there is only one, what fails is that nothing smaller than a replica can be bought.
    """
    grid, before = candidate.grid, candidate.replica - 1
    if candidate.replicas == 1:
        return "one replica is the least there is"
    if before < 0 or int(grid.replicas[before]) != candidate.replicas - 1:
        return _limit_at_full_batch(candidate)
    runs = grid.runs[:, before, :]
    if not runs.any():
        return _limit_at_full_batch(candidate)
    ttft, tpot = grid.ttft_miss[:, before, :][runs], grid.tpot_miss[:, before, :][runs]
    if (tpot > 1).all():
        return "TPOT"
    if (ttft > 1).all():
        return "TTFT"
    return "TTFT and TPOT together" if ((ttft > 1) | (tpot > 1)).all() else "nothing: fewer replicas would do"


def _limit_at_full_batch(candidate: Candidate) -> str:
    """With fewer replicas queues grow without end: because KV holds no more, or because steps give no more."""
    grid = candidate.grid
    rate = grid.curve.rate[candidate.chunk]
    at = grid.curve.up_to(candidate.admission.sequences)
    growing = at > 0 and rate[at] > rate[at - 1] * (1 + 1e-4)
    return "KV capacity" if growing and grid.curve.states[at] >= candidate.admission.sequences else "throughput"


def grades_of(engines: Sequence[Engine], question: ServingQuestion, model: Grade) -> Mapping[str, Grade]:
    """How far each group of figures may be trusted: no further than the worst value in it.

    Links count where something crosses them: within a replica of several devices, or between two pools.
    """
    offers = [engine.offer for engine in engines]
    devices = [offer.device for offer in offers]
    prices = [offer.price.grade for offer in offers]
    memory = [model, *(device.memory.grade for device in devices)]
    memory += [question.memory.runtime.grade, question.memory.communication_group.grade]
    rates = [device.memory_bandwidth.grade for device in devices]
    rates += [e.offer.device.peak[e.deployment.precisions.compute].grade for e in engines]
    crossed = [e.offer for e in engines if e.deployment.plan.devices > 1 or len(engines) > 1]
    links = [link for offer in crossed for link in (offer.topology.scale_up, offer.topology.scale_out) if link is not None]
    rates += [quantity.grade for link in links for quantity in (link.bandwidth, link.latency)]
    fits = [question.constants_on(device.name).grade for device in devices]
    latency = worst_grade([model, *fits, *rates])
    power = [device.power.grade for device in devices if device.power is not None]
    return {
        "memory": worst_grade(memory),
        "latency": latency,
        "throughput": latency,
        "price per hour": worst_grade(prices),
        "price per token": worst_grade([latency, *prices]),
        "energy": worst_grade([latency, *power]),
    }


def notes_of(candidate: Candidate, question: ServingQuestion, estimate: ServingEstimate) -> tuple[str, ...]:
    """What the figures do not say by themselves."""
    engine, notes = candidate.grid.engine, []
    traffic = question.traffic
    outside = question.constants_on(engine.offer.device.name).extrapolates(
        tokens=estimate.step_tokens,
        context=traffic.prompt.mean + traffic.output.mean / 2,
        concurrency=float(estimate.running),
        tensor=engine.deployment.plan.tensor,
        pipeline=engine.deployment.plan.pipeline,
    )
    if outside:
        notes.append(f"outside the range that constants were fitted on: {', '.join(outside)}")
    if engine.weights.stored is not None or engine.deployment.precisions.kv.bytes_per_element < 2:
        notes.append("what quantisation costs in quality is not part of this plan; evaluate the model in these formats")
    longest = traffic.prompt.nodes[-1] + traffic.output.nodes[-1]
    if longest > engine.deployment.spec.max_positions:
        limit = engine.deployment.spec.max_positions
        notes.append(f"the longest requests, about {longest:.0f} tokens, exceed the model's {limit} positions")
    if engine.caching and candidate.admission.hit_share < traffic.prefix.share * 0.999:
        share = candidate.admission.hit_share / traffic.prefix.share
        notes.append(f"{share:.0%} of the reusable prefixes fit beside the running requests; hits are scaled to that")
    return tuple(notes)
