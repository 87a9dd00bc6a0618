"""From a pair of pools to a plan with its figures."""

from __future__ import annotations

import numpy as np

from argosy.cost.quantity import Grade
from argosy.cost.step_time import Binding as StepBinding
from argosy.planner.disaggregated_search import PoolPair
from argosy.planner.engines import Engine, request_tokens
from argosy.planner.serving_answer import (
    Binding,
    Cost,
    KvCliff,
    Latency,
    MemoryBreakdown,
    Percentile,
    ServingPlan,
    Throughput,
)
from argosy.planner.serving_plan import (
    STEP_PARTS,
    energy_of,
    grades_of,
    memory_breakdown,
    per_million,
    percentiles_of,
    pool_layout,
    usd_range,
)
from argosy.planner.serving_question import ServingQuestion
from argosy.planner.serving_search import variability_of


def disaggregated_plan(pair: PoolPair, question: ServingQuestion, model_grade: Grade) -> ServingPlan:
    """The figures of `pair`."""
    traffic, prefill, decode = question.traffic, pair.prefill, pair.decode
    worker = prefill.worker
    pools = (
        pool_layout(worker.engine, "prefill", prefill.replicas, worker.servers, worker.chunk),
        pool_layout(decode.engine, "decode", decode.replicas, decode.batch, decode.chunk),
    )
    priced = ((worker.engine.offer, pools[0].devices), (decode.engine.offer, pools[1].devices))
    per_h = usd_range(priced)
    capacity = capacity_requests_per_s(pair)
    return ServingPlan(
        pools=pools,
        speculation=None,
        prefix_caching=worker.engine.caching,
        cached_prompt_share=worker.hit_share,
        memory=(
            _prefill_memory(worker.engine, worker.chunk, question),
            memory_breakdown(decode.engine.memories[decode.chunk], "decode", decode.batch, request_tokens(traffic)),
        ),
        latency=_latency(pair, question),
        throughput=Throughput(
            requests_per_s=traffic.requests_per_s,
            output_tokens_per_s=traffic.output_tokens_per_s,
            capacity_requests_per_s=capacity,
            utilisation=traffic.requests_per_s / capacity,
            running=float(decode.loop.running[decode.index]),
        ),
        cost=Cost(
            per_h,
            per_million(per_h, traffic.output_tokens_per_s),
            per_million(per_h, capacity * traffic.output.mean),
        ),
        energy=energy_of(priced, traffic),
        kv_cliff=_kv_cliff(pair, question),
        binding=_binding(pair, question),
        grades=grades_of((worker.engine, decode.engine), question, model_grade),
        notes=(f"KV of a prompt, {pair.transfer_bytes / 1e9:.3g} GB, moves in {pair.transfer_s * 1e3:.3g} ms",),
    )


def _prefill_memory(engine: Engine, chunk: int, question: ServingQuestion) -> MemoryBreakdown:
    """Each data rank holds the prompt it computes, and what the prefix cache keeps."""
    admission = engine.admission(question.traffic, chunk)
    return memory_breakdown(
        engine.memories[chunk], "prefill", engine.deployment.plan.data, question.traffic.prompt.tokens, admission
    )


def capacity_requests_per_s(pair: PoolPair) -> float:
    """Requests/s at which the first of the pools is full."""
    decode, worker = pair.decode, pair.prefill.worker
    at = decode.loop.batches[decode.index[2]]
    return min(
        pair.prefill.replicas * worker.servers / worker.time.occupancy_s,
        decode.replicas * float(decode.loop.curve.rate[0, at]),
    )


def _latency(pair: PoolPair, question: ServingQuestion) -> Latency:
    prompts, loop = variability_of(question.traffic).prompts, pair.decode.loop.at(pair.decode.index)
    return Latency(
        ttft_mean_s=pair.ttft_mean_s,
        ttft=tuple(
            Percentile(percentile, _ttft_quantile(pair, percentile / 100, prompts), target)
            for percentile, target in percentiles_of(question.slo.ttft)
        ),
        tpot_mean_s=pair.tpot_mean_s,
        tpot=tuple(
            Percentile(percentile, loop.tpot_quantile(percentile / 100), target)
            for percentile, target in percentiles_of(question.slo.tpot)
        ),
        queue_wait_s=pair.prefill.wait_probability * pair.prefill.wait_s + loop.queue_wait_s.item(),
    )


def _ttft_quantile(pair: PoolPair, share: float, prompts: tuple[tuple[float, float], ...]) -> float:
    """Quantile over prefill and transfer, tightened by the share that waits in the decode pool."""
    waits = float(pair.decode.loop.wait_probability[pair.decode.index])
    return pair.prefill.ttft_quantile(min(1 - 1e-9, share + waits), pair.transfer_s, prompts)


def _kv_cliff(pair: PoolPair, question: ServingQuestion) -> KvCliff:
    decode = pair.decode
    peak = decode.loop.at(decode.index).population_quantile(0.99).item()
    curve = decode.loop.curve
    cliff = decode.replicas * float(curve.rate[0, curve.up_to(decode.admissible)])
    unused = max(0.0, 1 - question.traffic.requests_per_s / cliff)
    return KvCliff(decode.admissible, peak, decode.admissible - peak, cliff, decode.usd_per_h * unused)


def _binding(pair: PoolPair, question: ServingQuestion) -> Binding:
    """Shares of a mean decode step; the pool that is fuller limits."""
    decode = pair.decode
    plan, traffic = decode.engine.deployment.plan, question.traffic
    rank = max(1.0, float(decode.loop.running[decode.index]) / plan.data)
    rank /= min(float(plan.pipeline), rank)
    times = decode.engine.model.decode(rank, traffic.prompt.mean + traffic.output.mean / 2)
    total = float(np.sum([times.by_binding[part][0] for part in StepBinding]))
    shares = {STEP_PARTS[part]: float(times.by_binding[part][0]) / total for part in StepBinding}
    running = float(decode.loop.running[decode.index]) / decode.batch
    limit = "prefill pool" if pair.prefill.utilisation >= running else "decode pool"
    return Binding(max(shares, key=lambda name: shares[name]), shares, limit)
