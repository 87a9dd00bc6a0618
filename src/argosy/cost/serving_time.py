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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from argosy.cost.checks import at_least_one, not_negative
from argosy.cost.efficiency import Constants
from argosy.cost.serving_memory import ServingMemory
from argosy.cost.speculation import Speculation
from argosy.cost.step_time import Binding
from argosy.cost.step_time_model import StepTimeModel
from argosy.cost.step_time_work import Array, StepTimes, StepWork
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
    def tokens(self) -> int:
        """Tokens of a request at its end."""
        return self.input_tokens + self.output_tokens

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
    running: int
    waiting: int
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


def closed_loop(
    model: StepTimeModel,
    load: ClosedLoop,
    *,
    step_tokens: int,
    memory: ServingMemory | None = None,
    speculation: Speculation | None = None,
) -> ServingEstimate:
    """Steady state of one replica under `load`, its steps holding at most `step_tokens` tokens per data rank.

    Args:
        memory: limits the running requests to what its KV admits (with the draft's KV, if it speculates); None leaves them
            unlimited.
        speculation: every decode step becomes a round: its draft steps, then a verification of all drafts.

    Raises:
        ConfigError: not even one request fits in memory, or a step budget below 1.
    """
    if memory is not None:
        memory.require(1, load.tokens)
    (estimate,) = closed_loops(model, (load,), step_tokens=step_tokens, memory=memory, speculation=speculation)
    return estimate


def closed_loops(
    model: StepTimeModel,
    loads: Sequence[ClosedLoop],
    *,
    step_tokens: int | Sequence[int],
    memory: ServingMemory | None = None,
    speculation: Speculation | None = None,
) -> list[ServingEstimate]:
    """`closed_loop` of many loads at once, at little more than the cost of one.

    Loads of which not one request fits in memory are reported with `admissible` 0, no
    request rate and an infinite wait.

    Raises:
        ConfigError: a step budget below 1.
    """
    budgets = _budgets(loads, step_tokens)
    admissible, running = _admitted(loads, memory)
    served = _served(model, loads, np.array(running, np.float64), budgets, speculation)
    return [_estimate(load, served, index, running[index], admissible[index]) for index, load in enumerate(loads)]


def _budgets(loads: Sequence[ClosedLoop], step_tokens: int | Sequence[int]) -> Array:
    budgets = [step_tokens] * len(loads) if isinstance(step_tokens, int) else list(step_tokens)
    for budget in budgets:
        at_least_one(step_tokens=budget)
    return np.array(budgets, np.float64)


def _admitted(loads: Sequence[ClosedLoop], memory: ServingMemory | None) -> tuple[list[int | None], list[int]]:
    """(most requests that KV lets run, requests that run) of each load."""
    limits = [None if memory is None else memory.running_limit(load.input_tokens, load.output_tokens) for load in loads]
    running = [
        load.concurrency if most is None else min(load.concurrency, most) for load, most in zip(loads, limits, strict=True)
    ]
    return limits, running


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """Mean steps of many loads before any constants, to be priced under one set after another.

    Attributes:
        work: of [2 x loads] steps: those without prompt tokens, then those with.
        shares: [2, loads], how often each kind is.
        micro_batches: [loads] in the pipeline at once.
    """

    work: StepWork
    shares: Array
    micro_batches: Array

    def tpot_s(self, constants: Constants) -> Array:
        """[loads] mean step, which is the time per output token."""
        times = self.work.priced(constants)
        shape = self.shares.shape
        latency, interval = times.latency_s.reshape(shape), times.interval_s.reshape(shape)
        return np.asarray((np.maximum(latency, self.micro_batches * interval) * self.shares).sum(axis=0))


def steady_steps(
    model: StepTimeModel,
    loads: Sequence[ClosedLoop],
    *,
    step_tokens: int | Sequence[int],
    memory: ServingMemory | None = None,
) -> SteadySteps:
    """The steps whose mean `closed_loops` reports as TPOT, without speculation.

    Raises:
        ConfigError: a step budget below 1, or a load of which not one request fits in memory.
    """
    budgets = _budgets(loads, step_tokens)
    limits, running = _admitted(loads, memory)
    if 0 in limits:
        raise ConfigError(f"no request of {loads[limits.index(0)].tokens} tokens fits in memory")
    requests = _Requests.of(loads, None)
    micro_batches, sequences = _micro_batches(model, np.array(running, np.float64))
    cycle = _cycle(requests, sequences, budgets)
    composition = _Composition.of(requests, cycle)
    shares = np.stack([1.0 - cycle.mixed_share, cycle.mixed_share])
    return SteadySteps(model.work(*composition.steps(1)), shares, micro_batches)


def _micro_batches(model: StepTimeModel, running: Array) -> tuple[Array, Array]:
    """([loads] micro-batches in the pipeline, sequences of one) of the running requests of one data rank."""
    plan = model.deployment.plan
    rank_running = np.maximum(1.0, running / plan.data)
    micro_batches = np.minimum(float(plan.pipeline), rank_running)
    return micro_batches, rank_running / micro_batches


@dataclass(frozen=True, slots=True)
class _Cycle:
    """[loads] each: mean composition of a micro-batch's steps; see the module."""

    steps: Array
    prompt_steps: Array
    decoding: Array
    mixed_share: Array
    prompt_tokens: Array
    starts_per_mixed_step: Array


@dataclass(frozen=True, slots=True)
class _Served:
    """[loads] each: seconds of a request that has been admitted, the mean step, tokens it computes and yields a sequence."""

    first_token_s: Array
    step_s: Array
    step_width: int
    step_yield: float
    cycle: _Cycle
    by_binding: dict[Binding, Array]


@dataclass(frozen=True, slots=True)
class _Requests:
    """[loads] each: the requests of the loads. A decode step computes `step_width` tokens a sequence."""

    context: Array
    cached: Array
    prompt: Array
    decode_steps: Array
    step_width: int

    @classmethod
    def of(cls, loads: Sequence[ClosedLoop], speculation: Speculation | None) -> _Requests:
        columns = [
            (load.input_tokens + load.output_tokens / 2, load.cached_tokens, load.prompt_tokens, load.output_tokens - 1)
            for load in loads
        ]
        context, cached, prompt, tokens = np.array(columns, np.float64).reshape(-1, 4).T
        if speculation is None:
            return cls(context, cached, prompt, tokens, 1)
        return cls(context, cached, prompt, tokens / speculation.tokens, speculation.drafts + 1)


def _served(
    model: StepTimeModel, loads: Sequence[ClosedLoop], running: Array, budgets: Array, speculation: Speculation | None
) -> _Served:
    requests = _Requests.of(loads, speculation)
    micro_batches, sequences = _micro_batches(model, running)
    cycle = _cycle(requests, sequences, budgets)
    latency, interval, by_binding = _two_kinds_of_step(model, requests, cycle, speculation)
    cadence = np.maximum(latency, micro_batches * interval)
    shares = np.stack([1.0 - cycle.mixed_share, cycle.mixed_share])
    step_s = np.asarray((cadence * shares).sum(axis=0))
    budget_wait_s = (cycle.steps - requests.decode_steps - cycle.prompt_steps) * step_s
    residual_s = np.where(micro_batches * sequences > 1, step_s / 2, 0.0)
    own_prompt_s = cycle.prompt_steps * cadence[1]
    total = (latency * shares).sum(axis=0)
    bound = {binding: np.asarray((part * shares).sum(axis=0) / total) for binding, part in by_binding.items()}
    step_yield = 1.0 if speculation is None else speculation.tokens
    return _Served(
        np.asarray(residual_s + budget_wait_s + own_prompt_s), step_s, requests.step_width, step_yield, cycle, bound
    )


def _cycle(requests: _Requests, sequences: Array, step_tokens: Array) -> _Cycle:
    """Steps of a request's cycle and the mean mix, for a micro-batch of `sequences`.

    Decoding sequences and the budget they leave depend on each other; three rounds settle them to a token.
    """
    prompt, decode_steps = requests.prompt, requests.decode_steps
    decoding = np.zeros_like(sequences)
    for _ in range(3):
        budget = np.maximum(1.0, step_tokens - decoding * requests.step_width)
        prompt_steps = np.ceil(prompt / budget)
        steps = np.maximum(decode_steps + prompt_steps, sequences * prompt / budget)
        decoding = sequences * decode_steps / steps
    starts = sequences / steps
    mixed = np.minimum(1.0, np.maximum(-np.expm1(-starts * prompt_steps), starts * prompt / budget))
    mixed = np.where(decode_steps == 0, 1.0, mixed)
    return _Cycle(steps, prompt_steps, decoding, mixed, starts * prompt / mixed, starts / mixed)


@dataclass(frozen=True, slots=True)
class _Composition:
    """Mean steps of the loads, [groups, 2 x loads]: decoding sequences, then prompt chunks; steps without prompts first."""

    count: Array
    chunk: Array
    past: Array
    starts: Array

    @classmethod
    def of(cls, requests: _Requests, cycle: _Cycle) -> _Composition:
        chunk = np.minimum(cycle.prompt_tokens, requests.prompt / cycle.prompt_steps)
        # Chunks of a prompt start at 0, c, 2c ...: on average half of what is left before the last one.
        past = requests.cached + (requests.prompt - requests.prompt / cycle.prompt_steps) / 2
        # Where nothing decodes no step is without prompt tokens: its share is 0 and one sequence stands in.
        alone = np.where(cycle.decoding > 0, cycle.decoding, 1.0)
        none = np.zeros_like(alone)
        return cls(
            np.stack([_pair(alone, cycle.decoding), _pair(none, cycle.prompt_tokens / chunk)]),
            _pair(none, chunk),
            np.stack([_pair(requests.context, requests.context), _pair(none, past)]),
            _pair(none, cycle.starts_per_mixed_step),
        )

    def steps(self, width: int) -> tuple[Array, Array, Array, Array]:
        """(count, new, past, logit rows) when decoding sequences compute `width` tokens each."""
        new = np.stack([np.full_like(self.chunk, width), self.chunk])
        return self.count, new, self.past, width * self.count[0] + self.starts


def _two_kinds_of_step(
    model: StepTimeModel, requests: _Requests, cycle: _Cycle, speculation: Speculation | None
) -> tuple[Array, Array, dict[Binding, Array]]:
    """(latency, interval, parts of the latency), each [2, loads]: steps without prompt tokens, then steps with.

    A draft model computes the same prompts, and one token a sequence for every draft, before the target's step.
    """
    composition = _Composition.of(requests, cycle)
    target = model.times(*composition.steps(requests.step_width))
    latency, interval, parts = target.latency_s, target.interval_s, dict(target.by_binding)
    if speculation is not None:
        decoding = composition.count[0]
        first = speculation.draft.times(*composition.steps(1))
        further = speculation.draft.decode(np.maximum(decoding, np.finfo(np.float64).tiny), composition.past[0])
        repeats = (speculation.drafts - 1) * (decoding > 0)
        drafting = first.latency_s + repeats * further.latency_s
        latency, interval = latency + drafting, interval + drafting
        parts = {
            binding: part + first.by_binding[binding] + repeats * further.by_binding[binding]
            for binding, part in parts.items()
        }
    shape = cycle.mixed_share.shape
    return (
        latency.reshape(2, *shape),
        interval.reshape(2, *shape),
        {binding: part.reshape(2, *shape) for binding, part in parts.items()},
    )


def _pair(without: Array, with_prompts: Array) -> Array:
    return np.concatenate([without, with_prompts])


def _estimate(load: ClosedLoop, served: _Served, index: int, running: int, admissible: int | None) -> ServingEstimate:
    cycle, further_tokens = served.cycle, load.output_tokens - 1
    tpot_s, first_token_s = float(served.step_s[index]) / served.step_yield, float(served.first_token_s[index])
    requests_per_s = running / (first_token_s + further_tokens * tpot_s)
    waiting = load.concurrency - running
    admission_wait_s = waiting / requests_per_s if running else math.inf
    ttft_s = admission_wait_s + first_token_s
    return ServingEstimate(
        ttft_s=ttft_s,
        tpot_s=tpot_s if further_tokens else None,
        request_s=ttft_s + further_tokens * tpot_s,
        admission_wait_s=admission_wait_s,
        requests_per_s=requests_per_s,
        output_tokens_per_s=requests_per_s * load.output_tokens,
        running=running,
        waiting=waiting,
        admissible=admissible,
        mixed_share=float(cycle.mixed_share[index]),
        step_tokens=served.step_width * float(cycle.decoding[index])
        + float(cycle.mixed_share[index] * cycle.prompt_tokens[index]),
        by_binding={binding: float(share[index]) for binding, share in served.by_binding.items()},
    )
