"""The closed-loop curve of an engine: throughput, TPOT and prompt times against the requests in it, for every chunk size."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from argosy.cost.serving_time import ClosedLoop, closed_loops
from argosy.cost.step_time_model import StepTimeModel
from argosy.planner.engines import Engine
from argosy.planner.traffic import Traffic

Array = NDArray[np.float64]
_POINTS = 18


@dataclass(frozen=True, slots=True)
class Curve:
    """[chunks, states] each; `states` are numbers of requests in a replica, ascending from 1, `widths` their distances.

    States lie about half of a Poisson deviation apart, so that sums over them follow the distribution.

    Attributes:
        rate: requests/s finished; rate_between: the same in the middle of the cell that ends at a state.
        tpot_s: seconds per output token (0 for outputs of one token).
        deviation_s: standard deviation of the time of one output token about its mean, for whether its step has prompts.
        residual_s: half a step; prompt_s: steps of a mean prompt alone.
        occupancy_s: what a mean prompt takes of steps whose budget is full, as they are while prompts queue.
        prompt_servers: prompts that are computed at once: data ranks x stages.
    """

    states: Array
    widths: Array
    rate: Array
    rate_between: Array
    tpot_s: Array
    deviation_s: Array
    residual_s: Array
    prompt_s: Array
    occupancy_s: Array
    prompt_servers: int

    @property
    def middles(self) -> Array:
        """[states], mean number of requests in the cell that ends at a state."""
        return np.asarray(self.states - (self.widths - 1) / 2)

    def row(self, chunk: int) -> Curve:
        """The curve of one chunk size alone."""
        one = slice(chunk, chunk + 1)
        return Curve(
            self.states,
            self.widths,
            self.rate[one],
            self.rate_between[one],
            self.tpot_s[one],
            self.deviation_s[one],
            self.residual_s[one],
            self.prompt_s[one],
            self.occupancy_s[one],
            self.prompt_servers,
        )

    def tpot_tail(self, seconds: float, outputs: tuple[tuple[float, float], ...]) -> Array:
        """[chunks, states] share of requests that take more than `seconds` a token there.

        The mean over a request's tokens is normal about the state's; `outputs` are (share of requests, tokens decoded).
        """
        over = (seconds - self.tpot_s) / np.maximum(self.deviation_s, 1e-12)
        beyond = np.zeros(self.tpot_s.shape)
        for share, tokens in outputs:
            beyond += share * _normal_tail(over * math.sqrt(max(1.0, tokens)))
        return beyond

    def up_to(self, sequences: float) -> int:
        """Index of the largest state of at most `sequences`."""
        return int(np.searchsorted(self.states, sequences, side="right")) - 1


def _normal_tail(x: Array) -> Array:
    """P(Z > x) of the standard normal, to 8e-8 (Abramowitz & Stegun 1964, formula 26.2.17)."""
    size = np.abs(np.clip(x, -40.0, 40.0))
    t = 1.0 / (1.0 + 0.2316419 * size)
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    upper = np.exp(-size * size / 2) / math.sqrt(2 * math.pi) * series
    return np.asarray(np.where(x >= 0, upper, 1.0 - upper))


def state_grid(most: int, wanted: tuple[int, ...]) -> Array:
    """Whole numbers from 1 to `most`, all small ones, then about √n/2 apart; those `wanted` are among them."""
    states, at = {1, most, *(n for n in wanted if n <= most)}, 1
    while at < most:
        states.add(at)
        at += max(1, int(math.sqrt(at) / 2))
    return np.array(sorted(states), np.float64)


def closed_loop_curve(
    engine: Engine, traffic: Traffic, chunks: tuple[int, ...], hit_shares: tuple[float, ...], states: Array
) -> Curve:
    """Evaluate closed loops at some of the states and interpolate.

    `hit_shares` are per chunk, since the KV left for the prefix cache differs.
    """
    most, prompt, output = int(states[-1]), traffic.prompt.tokens, traffic.output.tokens
    points = np.unique(np.round(np.geomspace(1, most, _POINTS))).astype(int)
    cached = [min(math.floor(share * prompt), prompt - 1) for share in hit_shares]
    loads = [ClosedLoop(prompt, output, int(n), found) for found in cached for n in points]
    budgets = [chunk for chunk in chunks for _ in points]
    estimates = closed_loops(engine.model, loads, step_tokens=budgets, speculation=engine.speculation)
    shape, plan = (len(chunks), len(points)), engine.deployment.plan
    rate = np.array([e.requests_per_s for e in estimates]).reshape(shape)
    tpot = np.array([e.tpot_s or 0.0 for e in estimates]).reshape(shape)
    first = np.array([e.ttft_s for e in estimates]).reshape(shape)
    round_tokens = 1.0 if engine.speculation is None else engine.speculation.tokens
    rank = np.maximum(1.0, points / plan.data)
    servers = plan.data * plan.pipeline
    batch = rank / np.minimum(float(plan.pipeline), rank)
    residual = np.where(rank > 1, tpot * round_tokens / 2, 0.0)
    micro_batches = np.minimum(float(plan.pipeline), rank)
    budget = np.maximum(1.0, np.array(chunks)[:, None] - batch * engine.step_width)
    new = prompt - np.array(cached)[:, None].astype(np.float64)
    own_steps = np.ceil(new / budget)
    own_s = first - residual
    prompt_s = _without_budget_wait(own_s, batch * new / budget > (output - 1) / round_tokens + own_steps)
    mixed = np.array([e.mixed_share for e in estimates]).reshape(shape)
    curve = Curve(
        states=states,
        widths=np.diff(states, prepend=0.0),
        rate=np.maximum.accumulate(rate, axis=1),
        rate_between=rate,
        tpot_s=tpot,
        deviation_s=_deviation_s(tpot, prompt_s / own_steps / round_tokens, mixed, own_steps),
        residual_s=residual,
        prompt_s=prompt_s,
        occupancy_s=new / budget * _full_step_s(engine, traffic, batch, micro_batches, budget),
        prompt_servers=servers,
    )
    return _interpolated(curve, points)


def _deviation_s(tpot_s: Array, mixed_s: Array, mixed: Array, own_steps: Array) -> Array:
    """Of a token's time, a share `mixed` of steps taking `mixed_s`; the steps of one prompt follow each other."""
    apart = np.maximum(0.0, mixed_s - tpot_s) / np.maximum(1e-12, 1 - mixed)
    return np.asarray(np.sqrt(mixed * (1 - mixed) * own_steps) * np.where(mixed < 1, apart, 0.0))


def _full_step_s(engine: Engine, traffic: Traffic, batch: Array, micro_batches: Array, budget: Array) -> Array:
    """[chunks, points] seconds between steps that carry `budget` prompt tokens beside a decoding `batch`."""
    context = traffic.prompt.mean + traffic.output.mean / 2
    shape = budget.shape
    count = np.stack([np.broadcast_to(batch, shape).ravel(), np.ones(budget.size)])
    past = np.stack([np.full(budget.size, context), np.full(budget.size, traffic.prompt.mean / 2)])
    together = np.broadcast_to(micro_batches, shape).ravel()

    def cadence(model: StepTimeModel, width: int) -> Array:
        new = np.stack([np.full(budget.size, float(width)), budget.ravel()])
        times = model.times(count, new, past, width * count[0] + 1.0)
        return np.asarray(np.maximum(times.latency_s, together * times.interval_s))

    seconds = cadence(engine.model, engine.step_width)
    if engine.speculation is not None:
        # The draft computes the same prompts and, for every draft, a token of each sequence.
        further = engine.speculation.draft.decode(count[0], context).latency_s
        seconds = seconds + cadence(engine.speculation.draft, 1) + (engine.speculation.drafts - 1) * further
    return np.asarray(seconds.reshape(shape))


def _without_budget_wait(first_s: Array, saturated: NDArray[np.bool_]) -> Array:
    """Where prompts alone fill every step a closed loop adds the wait for budget; the queue in front of prompts has it."""
    result = first_s.copy()
    for column in range(1, first_s.shape[1]):
        result[:, column] = np.where(saturated[:, column], result[:, column - 1], first_s[:, column])
    return result


def _interpolated(at_points: Curve, points: NDArray[np.int_]) -> Curve:
    states = at_points.states

    def spread(values: Array, at: Array) -> Array:
        return np.stack([np.interp(at, points, row) for row in values])

    return dataclasses.replace(
        at_points,
        rate=spread(at_points.rate, states),
        rate_between=spread(at_points.rate, at_points.middles),
        tpot_s=spread(at_points.tpot_s, states),
        deviation_s=spread(at_points.deviation_s, states),
        residual_s=spread(at_points.residual_s, states),
        prompt_s=spread(at_points.prompt_s, states),
        occupancy_s=spread(at_points.occupancy_s, states),
    )
