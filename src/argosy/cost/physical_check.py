"""Refusing measurements that no machine can have made.

Every bound holds for any implementation without speculation or prefix hits: all FLOPs at peak on all devices, weights and
KV read at full bandwidth, no activation ever written, experts only as many as one token visits, communication free. What
undercuts one is a typing error, a load spread over more replicas than recorded, or speculation that was not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.deployment import Deployment
from argosy.cost.device import Device, Precision
from argosy.cost.op import Op, StepComposition
from argosy.cost.op_list import forward_ops, forward_templates, held_weight_bytes
from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServedLatency:
    """Mean latencies at a load: what a row states."""

    input_tokens: int
    output_tokens: int
    concurrency: int
    ttft_s: float
    tpot_s: float

    @property
    def request_s(self) -> float:
        """Mean time of a request."""
        return self.ttft_s + (self.output_tokens - 1) * self.tpot_s

    @property
    def decoding(self) -> float:
        """Mean requests that decode at a time (Little's law)."""
        return self.concurrency * (self.output_tokens - 1) * self.tpot_s / self.request_s


def check_possible(measured: ServedLatency, deployment: Deployment, device: Device) -> None:
    """Raise `ConfigError` naming the bound that `measured` undercuts, if there is one."""
    templates, plan = forward_templates(deployment), deployment.plan
    weights = max(held_weight_bytes(templates, stage) for stage in range(plan.pipeline))
    if weights > device.memory.value:
        raise ConfigError(
            f"impossible: weights of {weights / 1e9:.1f} GB a device do not fit in {device.memory.value / 1e9:.1f} GB"
        )
    prompt_s = _flops_s(_ops(deployment, 1, measured.input_tokens, 0), device)
    _at_least(measured.ttft_s, prompt_s, "TTFT", "one prompt at peak FLOP/s")
    step_s = decode_bound_s(measured, deployment, device)
    _at_least(measured.tpot_s, step_s, "TPOT", f"reading weights and the KV of {measured.decoding:.1f} requests")
    token_s = _flops_s(_ops(deployment, 1, 1, measured.input_tokens), device)
    # Attention-DP ranks share requests out; a stage works while others do, so one stage's time is what a request occupies.
    busy = measured.concurrency / plan.data / plan.pipeline
    cycle_s = busy * (prompt_s + (measured.output_tokens - 1) * token_s)
    _at_least(measured.request_s, cycle_s, "request time", f"{measured.concurrency} requests at peak FLOP/s")


def decode_bound_s(measured: ServedLatency, deployment: Deployment, device: Device) -> float:
    """Seconds that a mean decode step of the load takes at the least, on the device with the most to do."""
    rank_decoding = measured.decoding / deployment.plan.data
    one = _ops(deployment, 1, 1, measured.input_tokens)
    weights: dict[int, float] = {}
    for op in one:
        read = op.repeats * (op.weight_bytes + max(1.0, rank_decoding) * op.kv_bytes)
        weights[op.stage] = weights.get(op.stage, 0.0) + read
    bytes_s = sum(weights.values()) / device.memory_bandwidth.value
    return max(bytes_s, max(1.0, rank_decoding) * _flops_s(one, device))


def _ops(deployment: Deployment, count: int, new: int, past: int) -> tuple[Op, ...]:
    balanced = Deployment(deployment.spec, deployment.plan, deployment.precisions)
    step = StepComposition(((count, new, past),), count)
    return forward_ops(balanced.spec, balanced.plan, balanced.precisions, step)


def _flops_s(ops: tuple[Op, ...], device: Device) -> float:
    """All FLOPs of all stages at the peak of their arithmetic, one after the other."""
    flops: dict[Precision, float] = {}
    for op in ops:
        flops[op.precision] = flops.get(op.precision, 0.0) + op.repeats * op.flops
    return sum(amount / device.peak_flop_per_s(precision) for precision, amount in flops.items() if amount)


def _at_least(measured_s: float, bound_s: float, what: str, doing: str) -> None:
    if measured_s < bound_s:
        raise ConfigError(
            f"impossible: {what} of {measured_s * 1e3:.3g} ms is below the {bound_s * 1e3:.3g} ms that {doing} takes"
        )
