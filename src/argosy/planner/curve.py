"""The closed-loop curve of an engine: throughput, TPOT and prompt times against the requests in it, for every chunk size."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from argosy.cost.serving_time import ClosedLoop, closed_loops
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
        residual_s: half a step; prompt_s: steps of a mean prompt; occupancy_s: seconds of the step budget that it takes.
        prompt_servers: prompts that are computed at once: data ranks x stages.
    """

    states: Array
    widths: Array
    rate: Array
    rate_between: Array
    tpot_s: Array
    residual_s: Array
    prompt_s: Array
    occupancy_s: Array
    prompt_servers: int

    def up_to(self, sequences: float) -> int:
        """Index of the largest state of at most `sequences`."""
        return int(np.searchsorted(self.states, sequences, side="right")) - 1


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
    budget = np.maximum(1.0, np.array(chunks)[:, None] - batch * engine.step_width)
    new = prompt - np.array(cached)[:, None]
    own_steps = np.ceil(new / budget)
    prompt_s = _without_budget_wait(first - residual, batch * new / budget > (output - 1) / round_tokens + own_steps)
    curve = Curve(
        states=states,
        widths=np.diff(states, prepend=0.0),
        rate=np.maximum.accumulate(rate, axis=1),
        rate_between=rate,
        tpot_s=tpot,
        residual_s=residual,
        prompt_s=prompt_s,
        occupancy_s=prompt_s * (new / budget) / own_steps,
        prompt_servers=servers,
    )
    return _interpolated(curve, points)


def _without_budget_wait(first_s: Array, saturated: NDArray[np.bool_]) -> Array:
    """Where prompts alone fill every step a closed loop adds the wait for budget; the queue in front of prompts has it."""
    result = first_s.copy()
    for column in range(1, first_s.shape[1]):
        result[:, column] = np.where(saturated[:, column], result[:, column - 1], first_s[:, column])
    return result


def _interpolated(at_points: Curve, points: NDArray[np.int_]) -> Curve:
    states, widths = at_points.states, at_points.widths
    middles = states - (widths - 1) / 2

    def spread(values: Array, at: Array) -> Array:
        return np.stack([np.interp(at, points, row) for row in values])

    return dataclasses.replace(
        at_points,
        rate=spread(at_points.rate, states),
        rate_between=spread(at_points.rate, middles),
        tpot_s=spread(at_points.tpot_s, states),
        residual_s=spread(at_points.residual_s, states),
        prompt_s=spread(at_points.prompt_s, states),
        occupancy_s=spread(at_points.occupancy_s, states),
    )
