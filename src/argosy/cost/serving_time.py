"""TTFT, TPOT and throughput of a replica under continuous batching at a fixed concurrency, in closed form.

The state is steady: `concurrency` clients each send a request, wait for its end and send the next. A replica runs steps;
every running sequence decodes one token a step, and prompts are computed in what the step's token budget leaves. With

- n = OSL - 1 decode steps and k = ceil(prompt / budget) prompt steps of a request,
- q running sequences of which q n/S decode at a time, S steps being a request's cycle,
- λ = q/S requests that start per step,

a share φ of the steps is mixed: 1 - exp(-λ k) while starts are sparse and independent, and at least λ prompt / budget,
since no step exceeds its budget. S is n + k, or q prompt / budget where prompts alone fill every step. TPOT is the mean
step; TTFT is what is left of the step in progress, the request's own prompt steps and the wait for budget. Requests beyond
what the KV cache admits wait for a whole cycle's share (Little's law): the KV cliff.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from argosy.cost.checks import at_least_one, not_negative
from argosy.cost.serving_memory import ServingMemory
from argosy.cost.step_time import Binding
from argosy.cost.step_time_model import Array, StepTimeModel, StepTimes
from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Load of one replica.

    Attributes:
        input_tokens, output_tokens: of every request (means, where they vary); concurrency: requests in flight.
        cached_tokens: of the prompt, found in the prefix cache.
    """

    input_tokens: int
    output_tokens: int
    concurrency: int
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a load that no client can make."""
        at_least_one(input_tokens=self.input_tokens, output_tokens=self.output_tokens, concurrency=self.concurrency)
        if not 0 <= self.cached_tokens < self.input_tokens:
            raise ConfigError(f"cached_tokens must be 0 to {self.input_tokens - 1}, got {self.cached_tokens}")

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens to compute."""
        return self.input_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True)
class ServingEstimate:
    """Means in steady state, of one replica.

    Attributes:
        ttft_s, tpot_s, request_s: of a request; `tpot_s` is None for one output token.
        admission_wait_s: part of TTFT spent waiting for KV.
        requests_per_s, output_tokens_per_s: of the replica.
        running, waiting: requests in the batch and before it; admissible: most that KV holds, or None if unlimited.
        mixed_share: share of steps that carry prompt tokens; step_tokens: mean tokens of a step of one data rank.
        by_binding: shares of the mean step.
    """

    ttft_s: float
    tpot_s: float | None
    request_s: float
    admission_wait_s: float
    requests_per_s: float
    output_tokens_per_s: float
    running: float
    waiting: float
    admissible: int | None
    mixed_share: float
    step_tokens: float
    by_binding: dict[Binding, float]

    @property
    def beyond_kv(self) -> bool:
        """Whether requests wait for KV, so that TTFT has left the plateau."""
        return self.waiting > 0

    @property
    def binds(self) -> Binding:
        """What most of the mean step goes into."""
        return max(self.by_binding, key=lambda binding: self.by_binding[binding])


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """One prompt alone: `latency_s` until its logits, `occupancy_s` until the next prompt may start behind it."""

    latency_s: float
    occupancy_s: float


def prefill_time(model: StepTimeModel, prompt_tokens: int, *, chunk_tokens: int, cached_tokens: int = 0) -> PrefillTime:
    """Time of a prompt in chunks that follow each other through the pipeline's stages, after `cached_tokens` of context."""
    at_least_one(prompt_tokens=prompt_tokens, chunk_tokens=chunk_tokens)
    not_negative(cached_tokens=cached_tokens)
    past = np.arange(0, prompt_tokens, chunk_tokens, dtype=np.float64)
    times = model.prefill(np.minimum(chunk_tokens, prompt_tokens - past), cached_tokens + past)
    latency, interval = times.latency_s, times.interval_s
    return PrefillTime(float(latency[-1] + interval[:-1].sum()), float(interval.sum()))


def step_cadence_s(times: StepTimes, micro_batches: Array) -> Array:
    """[steps] seconds between steps of one micro-batch when `micro_batches` are in the pipeline at once."""
    return np.maximum(times.latency_s, micro_batches * times.interval_s)


@dataclass(frozen=True, slots=True)
class _Cycle:
    """Mean composition of a micro-batch's steps; see the module."""

    steps: float
    prompt_steps: int
    decoding: float
    mixed_share: float
    prompt_tokens: float
    starts_per_mixed_step: float


def closed_loop(
    model: StepTimeModel, load: ClosedLoop, *, step_tokens: int, memory: ServingMemory | None = None
) -> ServingEstimate:
    """Steady state of one replica under `load`, its steps holding at most `step_tokens` tokens per data rank.

    Args:
        memory: limits the running requests to what its KV admits; None leaves them unlimited.

    Raises:
        ConfigError: not even one request fits in memory, or a step budget below 1.
    """
    at_least_one(step_tokens=step_tokens)
    tokens = load.input_tokens + load.output_tokens
    admissible = None if memory is None else memory.admissible_concurrency(tokens)
    if admissible == 0 and memory is not None:
        memory.require(1, tokens)
    running = load.concurrency if admissible is None else min(load.concurrency, admissible)
    plan = model.deployment.plan
    rank_running = max(1.0, running / plan.data)
    micro_batches = min(float(plan.pipeline), rank_running)
    cycle = _cycle(load, rank_running / micro_batches, step_tokens)
    cadence, times, shares = _mean_step(model, load, cycle, micro_batches)
    decode_steps = load.output_tokens - 1
    mixed_s = float(cadence[1])
    mean_s = float(cadence @ shares)
    budget_wait_s = (cycle.steps - decode_steps - cycle.prompt_steps) * mean_s
    residual_s = mean_s / 2 if rank_running > 1 else 0.0
    own_prompt_s = (cycle.prompt_steps - 1) * mixed_s + max(mixed_s, float(times.latency_s[1]))
    served_s = residual_s + budget_wait_s + own_prompt_s + decode_steps * mean_s
    requests_per_s = running / served_s
    waiting = load.concurrency - running
    admission_wait_s = waiting / requests_per_s
    ttft_s = admission_wait_s + residual_s + budget_wait_s + own_prompt_s
    total = float(times.latency_s @ shares)
    return ServingEstimate(
        ttft_s=ttft_s,
        tpot_s=mean_s if decode_steps else None,
        request_s=admission_wait_s + served_s,
        admission_wait_s=admission_wait_s,
        requests_per_s=requests_per_s,
        output_tokens_per_s=requests_per_s * load.output_tokens,
        running=running,
        waiting=waiting,
        admissible=admissible,
        mixed_share=cycle.mixed_share,
        step_tokens=cycle.decoding + cycle.mixed_share * cycle.prompt_tokens,
        by_binding={binding: float(part @ shares) / total for binding, part in times.by_binding.items()},
    )


def _cycle(load: ClosedLoop, sequences: float, step_tokens: int) -> _Cycle:
    """Steps of a request's cycle and the mean mix, for a micro-batch of `sequences`.

    Decoding sequences and the budget they leave depend on each other; three rounds settle them to a token.
    """
    decode_steps, prompt = load.output_tokens - 1, load.prompt_tokens
    decoding, steps, prompt_steps, budget = 0.0, 0.0, 1, float(step_tokens)
    for _ in range(3):
        budget = max(1.0, step_tokens - decoding)
        prompt_steps = math.ceil(prompt / budget)
        steps = max(decode_steps + prompt_steps, sequences * prompt / budget)
        decoding = sequences * decode_steps / steps
    starts = sequences / steps
    mixed = 1.0 if decode_steps == 0 else min(1.0, max(-math.expm1(-starts * prompt_steps), starts * prompt / budget))
    return _Cycle(steps, prompt_steps, decoding, mixed, starts * prompt / mixed, starts / mixed)


def _mean_step(
    model: StepTimeModel, load: ClosedLoop, cycle: _Cycle, micro_batches: float
) -> tuple[Array, StepTimes, Array]:
    """(cadence, times, shares) of the two kinds of step: without and with prompt tokens."""
    context = load.input_tokens + load.output_tokens / 2
    chunk = min(cycle.prompt_tokens, load.prompt_tokens / cycle.prompt_steps)
    # Chunks of a prompt start at 0, c, 2c ...: on average half of what is left before the last one.
    past = load.cached_tokens + (load.prompt_tokens - load.prompt_tokens / cycle.prompt_steps) / 2
    prompts = cycle.prompt_tokens / chunk
    alone = cycle.decoding if cycle.decoding > 0 else 1.0
    count = np.array([[alone, cycle.decoding], [0.0, prompts]])
    new = np.array([[1.0, 1.0], [0.0, chunk]])
    before = np.array([[context, context], [0.0, past]])
    logits = np.array([alone, cycle.decoding + cycle.starts_per_mixed_step])
    times = model.times(count, new, before, logits)
    return step_cadence_s(times, np.full(2, micro_batches)), times, np.array([1.0 - cycle.mixed_share, cycle.mixed_share])
