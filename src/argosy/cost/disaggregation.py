"""Disaggregated serving: a pool that computes prompts, a pool that decodes, and KV moving from one to the other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from argosy.cost.checks import at_least_one, not_negative
from argosy.cost.serving_memory import ServingMemory
from argosy.cost.serving_time import ClosedLoop, PrefillTime, prefill_time, step_cadence_s
from argosy.cost.step_time_model import StepTimeModel
from argosy.cost.step_time_work import Array

# Points at which the decode pool is evaluated; between them its request rate is taken to be linear in the sequences.
_GRID = 97


@dataclass(frozen=True, slots=True)
class PoolEstimate:
    """Steady state of disaggregated prefill and decode pools.

    Attributes:
        ttft_s, tpot_s, request_s: means of a request; `tpot_s` is None for one output token.
        prefill_utilisation: of the prefill workers; decoding: sequences per decode worker.
        prefill_wait_s, transfer_s, admission_wait_s: parts of TTFT, the last one spent waiting for KV of the decode pool.
    """

    ttft_s: float
    tpot_s: float | None
    request_s: float
    requests_per_s: float
    output_tokens_per_s: float
    prefill_utilisation: float
    decoding: float
    prefill_wait_s: float
    transfer_s: float
    admission_wait_s: float


def disaggregated(
    prefill: StepTimeModel,
    prefill_workers: int,
    decode: StepTimeModel,
    decode_workers: int,
    load: ClosedLoop,
    *,
    chunk_tokens: int,
    transfer_s: float,
    decode_memory: ServingMemory | None = None,
) -> PoolEstimate:
    """Closed loop over a prefill pool that computes prompts one by one and a decode pool that only decodes.

    Prompts queue for the data ranks of the prefill workers (M/D/c: half the mean wait of M/M/c after Sakasegawa 1977), their
    KV moves in `transfer_s`, then they decode. The request rate is the one at which requests in both pools and between them
    add up to the concurrency. The first token is sent after the transfer.

    Raises:
        ConfigError: no workers, a negative transfer time, or a decode pool that not one request fits into.
    """
    at_least_one(prefill_workers=prefill_workers, decode_workers=decode_workers)
    not_negative(transfer_s=transfer_s)
    prompt = prefill_time(prefill, load.prompt_tokens, chunk_tokens=chunk_tokens, cached_tokens=load.cached_tokens)
    servers = prefill_workers * prefill.deployment.plan.data
    most = _most_decoding(load, decode_workers, decode_memory)
    rates, decoding_at = _decode_rates(decode, load, decode_workers, most)

    def in_flight(rate: float) -> float:
        waiting = rate * (prompt.latency_s + transfer_s + _queue_wait_s(rate, prompt, servers))
        return waiting + float(np.interp(rate, rates, decoding_at))

    low, high = 0.0, min(float(rates[-1]), servers / prompt.occupancy_s * (1 - 1e-9))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if in_flight(middle) < load.concurrency else (low, middle)
    decode_steps, decoding = load.output_tokens - 1, float(np.interp(low, rates, decoding_at))
    wait_s, unplaced = _queue_wait_s(low, prompt, servers), max(0.0, load.concurrency - in_flight(low))
    ttft_s = wait_s + prompt.latency_s + transfer_s + unplaced / low
    return PoolEstimate(
        ttft_s=ttft_s,
        tpot_s=decoding / low / decode_steps if decode_steps else None,
        request_s=ttft_s + decoding / low,
        requests_per_s=low,
        output_tokens_per_s=low * load.output_tokens,
        prefill_utilisation=low * prompt.occupancy_s / servers,
        decoding=decoding / decode_workers,
        prefill_wait_s=wait_s,
        transfer_s=transfer_s,
        admission_wait_s=unplaced / low,
    )


def _most_decoding(load: ClosedLoop, workers: int, memory: ServingMemory | None) -> float:
    if memory is None:
        return float(load.concurrency)
    tokens = load.tokens
    admissible = memory.admissible_concurrency(tokens)
    if admissible == 0:
        memory.require(1, tokens)
    return float(min(load.concurrency, admissible * workers))


def _decode_rates(decode: StepTimeModel, load: ClosedLoop, workers: int, most: float) -> tuple[Array, Array]:
    """Request rates of the decode pool at growing numbers of sequences in it: rate = D / (steps x TPOT(D))."""
    steps = load.output_tokens - 1
    if steps == 0:
        return np.array([0.0, np.inf]), np.zeros(2)
    decoding = np.geomspace(min(1.0, most), most, _GRID) if most > 1 else np.array([most])
    plan = decode.deployment.plan
    rank = np.maximum(1.0, decoding / workers / plan.data)
    micro_batches = np.minimum(float(plan.pipeline), rank)
    times = decode.decode(rank / micro_batches, load.input_tokens + load.output_tokens / 2)
    rates = decoding / (steps * step_cadence_s(times, micro_batches))
    return np.concatenate([[0.0], np.maximum.accumulate(rates)]), np.concatenate([[0.0], decoding])


def _queue_wait_s(rate: float, prompt: PrefillTime, servers: int) -> float:
    """Mean wait for one of `servers` with constant service times."""
    utilisation = rate * prompt.occupancy_s / servers
    power = math.pow(utilisation, math.sqrt(2 * (servers + 1)) - 1)
    return prompt.occupancy_s * power / (2 * servers * (1 - utilisation))
