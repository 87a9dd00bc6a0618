"""A replica under open traffic: distributions of queueing, TTFT and TPOT from its closed-loop curve.

A replica with n requests in it finishes X(n) a second, X being its closed-loop throughput. Replaced by one server of that
state-dependent rate (flow-equivalent aggregation; Chandy, Herzog & Woo 1975), requests in the replica are a birth-death
chain: p(n) is proportional to the product of λ/X(i) over i = 1..n, and X(B) beyond the largest batch B. From it:

- TPOT of a request is that of the state it runs in, states counting by the sequences that run in them, with the spread of
  a mean over its steps, some of which carry prompts: normal, and wider for short outputs.
- A request waits for a place in the batch when it finds B or more; the wait is then exponential.
- Its prompt waits for those before it in the step budget: M/G/c with the occupancy of a prompt (Sakasegawa 1977), the wait
  exponential as well.
- Arrivals of variance-to-mean ratio c widen the chain: probabilities to the power 2/(1 + c), the variance of a diffusion;
  in waits the variability of service joins (Allen & Cunneen): (c + cs²)/2.

TTFT is both waits, half a step and the request's own prompt steps, whose distribution follows the prompt lengths. Arrays are
[chunks, rates, batches] where not said otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from argosy.planner.curve import Curve

Array = NDArray[np.float64]
_TINY = 1e-300
_BISECTIONS = 45
# Means of exponential waits beyond which nothing is left to find.
_LONGEST_WAIT = 60.0


@dataclass(frozen=True, slots=True)
class Variability:
    """What makes requests differ.

    Attributes:
        arrivals: variance over mean of arrivals; service: squared cv of a request's work in the batch.
        prompt: squared cv of prompt lengths.
        prompts: (share of requests, prompt length over the mean); outputs: (share of requests, tokens decoded).
    """

    arrivals: float
    service: float
    prompt: float
    prompts: tuple[tuple[float, float], ...]
    outputs: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """The birth-death chain, unnormalised.

    Attributes:
        empty: [chunks, rates, 1] weight of no request; mass: [chunks, rates, states].
        limit: weight of the state B; tail: of all above; ratio: of each of these to the one before.
        total: of all.
    """

    empty: Array
    mass: Array
    limit: Array
    tail: Array
    ratio: Array
    total: Array


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Steady state. Entries where `stable` is False are meaningless.

    Attributes:
        batches: indices into `curve.states` of the batch limits.
        running, tpot_s: means; tpot_s by sequences.
        wait_probability, wait_s: for a place in the batch, the mean over those that wait.
        prompt_wait_probability, prompt_wait_s: for step budget, likewise.
        residual_s, prompt_s: half a step, a mean prompt's own steps.
    """

    curve: Curve
    batches: NDArray[np.intp]
    variability: Variability
    chain: Chain
    stable: NDArray[np.bool_]
    running: Array
    tpot_s: Array
    wait_probability: Array
    wait_s: Array
    prompt_wait_probability: Array
    prompt_wait_s: Array
    residual_s: Array
    prompt_s: Array

    @property
    def queue_wait_s(self) -> Array:
        """Mean of both waits."""
        return self.wait_probability * self.wait_s + self.prompt_wait_probability * self.prompt_wait_s

    @property
    def ttft_mean_s(self) -> Array:
        """Mean time to first token."""
        return self.queue_wait_s + self.residual_s + self.prompt_s

    def at(self, index: tuple[int, int, int]) -> OpenLoop:
        """One entry alone, as arrays of one element."""
        chunk, rate, batch = (slice(i, i + 1) for i in index)
        alone = {
            name: getattr(self, name)[chunk, rate, batch]
            for name in (
                "stable",
                "running",
                "tpot_s",
                "wait_probability",
                "wait_s",
                "prompt_wait_probability",
                "prompt_wait_s",
                "residual_s",
                "prompt_s",
            )
        }
        chain = Chain(
            self.chain.empty[chunk, rate],
            self.chain.mass[chunk, rate],
            *(getattr(self.chain, name)[chunk, rate, batch] for name in ("limit", "tail", "ratio", "total")),
        )
        return dataclasses.replace(self, curve=self.curve.row(index[0]), batches=self.batches[batch], chain=chain, **alone)

    def ttft_tail(self, seconds: float) -> Array:
        """Share of requests whose TTFT exceeds `seconds`.

        A prompt's steps take no less than steps without prompts, however short it is.
        """
        total = np.zeros(self.stable.shape)
        base = np.minimum(2 * self.residual_s, self.prompt_s)
        for share, length in self.variability.prompts:
            left = seconds - self.residual_s - base - (self.prompt_s - base) * length
            total += share * self._waits_exceed(left)
        return np.where(self.stable, total, 1.0)

    def _waits_exceed(self, seconds: Array) -> Array:
        """P(batch wait + prompt wait > t): each is 0 or exponential, and they are independent."""
        mean_a, mean_b = np.maximum(self.wait_s, 1e-12), np.maximum(self.prompt_wait_s, 1e-12)
        mean_b = np.where(np.abs(mean_a - mean_b) < 1e-6 * mean_a, mean_a * (1 + 1e-5), mean_b)
        t = np.maximum(seconds, 0.0)
        a, b = np.exp(-t / mean_a), np.exp(-t / mean_b)
        both = (mean_a * a - mean_b * b) / (mean_a - mean_b)
        p, q = self.wait_probability, self.prompt_wait_probability
        return np.where(seconds < 0, 1.0, p * (1 - q) * a + q * (1 - p) * b + p * q * both)

    def tpot_tail(self, seconds: float) -> Array:
        """Share of requests whose TPOT exceeds `seconds`."""
        beyond = self.curve.tpot_tail(seconds, self.variability.outputs)
        running = self.chain.mass * self.curve.middles
        weighted = np.cumsum(running * beyond[:, None, :], axis=-1)[..., self.batches]
        everything = np.cumsum(running, axis=-1)[..., self.batches]
        tail = self.chain.tail * self.curve.states[self.batches]
        share = (weighted + tail * beyond[:, None, self.batches]) / np.maximum(everything + tail, _TINY)
        return np.where(self.stable, share, 1.0)

    def ttft_quantile(self, share: float) -> float:
        """Least seconds that `share` of requests stay within in some stable entry."""
        longest = max(length for _, length in self.variability.prompts)
        high = 3 * self.residual_s + self.prompt_s * max(1.0, longest)
        high = high + _LONGEST_WAIT * (self.wait_s + self.prompt_wait_s)
        return least_seconds(self.ttft_tail, share, float(high[self.stable].max(initial=0.0)))

    def tpot_quantile(self, share: float) -> float:
        """Least seconds per output token that `share` of requests stay within in some stable entry."""
        high = float((self.curve.tpot_s + 40 * self.curve.deviation_s).max()) * (1 + 1e-6)
        return least_seconds(self.tpot_tail, share, high) if self.stable.any() else float("inf")

    def population_quantile(self, share: float) -> Array:
        """Requests in the replica, waiting ones included, that are not exceeded for `share` of the time."""
        chain = self.chain
        states, above = self.curve.states, (1 - share) * chain.total
        cumulative = chain.empty + np.cumsum(chain.mass, axis=-1)
        index = (cumulative[..., None, :] < (share * chain.total)[..., None]).sum(axis=-1)
        beyond = np.log(np.maximum(chain.tail / np.maximum(above, _TINY), 1.0)) / -np.log(
            np.clip(chain.ratio, _TINY, 1 - 1e-12)
        )
        inside = states[np.minimum(index, self.batches)]
        return np.asarray(np.where(chain.tail > above, states[self.batches] + beyond, inside))


def least_seconds(tail: Callable[[float], Array], share: float, high: float) -> float:
    """Smallest t up to `high` with `tail`(t) at most 1 - `share` in some entry; infinite if there is none."""
    allowed = 1 - share
    if not (tail(high) <= allowed).any():
        return float("inf")
    low = 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if (tail(middle) <= allowed).any() else (middle, high)
    return high


def open_loop(
    curve: Curve,
    rates: Array,
    batches: NDArray[np.intp],
    variability: Variability,
    *,
    replicas: NDArray[np.intp] | None = None,
) -> OpenLoop:
    """Steady states of every chunk of `curve`, at every rate (requests/s of a replica) and batch limit.

    Args:
        batches: indices into `curve.states`.
        replicas: [rates] that the arrivals are split over at random, which brings each of them nearer to Poisson:
            1 + (c - 1)/R; None for one.
    """
    split = np.ones(len(rates)) if replicas is None else replicas.astype(np.float64)
    arrivals = 1.0 + (variability.arrivals - 1.0) / split[None, :, None]
    chain = _chain(curve, rates, batches, arrivals, variability.service)
    running, at_batches = chain.mass * curve.middles, curve.states[batches]
    by_arrival = np.maximum(np.cumsum(chain.mass, axis=-1)[..., batches] + chain.tail, _TINY)
    sequences = np.cumsum(running, axis=-1)[..., batches] + chain.tail * at_batches
    by_sequence = np.maximum(sequences, _TINY)

    def by_states(values: Array, weights: Array, tail: Array, norm: Array) -> Array:
        sums = np.cumsum(weights * values[:, None, :], axis=-1)[..., batches]
        return np.asarray((sums + tail * values[:, None, batches]) / norm)

    rate = rates[None, :, None]
    occupancy_s = by_states(curve.occupancy_s, chain.mass, chain.tail, by_arrival)
    load = rate * occupancy_s / curve.prompt_servers
    stable = (rate < curve.rate[:, None, batches]) & (load < 1) & np.isfinite(chain.total)
    busy = np.minimum(load, 1 - 1e-9)
    waiting = np.clip((chain.limit + chain.tail) / chain.total, 0.0, 1.0)
    queued = chain.limit * chain.ratio / (1 - chain.ratio) ** 2 / chain.total
    prompt_spread = (arrivals + variability.prompt) / 2
    return OpenLoop(
        curve=curve,
        batches=batches,
        variability=variability,
        chain=chain,
        stable=stable,
        running=sequences / chain.total,
        tpot_s=by_states(curve.tpot_s, running, chain.tail * at_batches, by_sequence),
        wait_probability=waiting,
        wait_s=np.where(waiting > 1e-15, queued / rate / np.maximum(waiting, 1e-15), 0.0),
        prompt_wait_probability=busy ** (np.sqrt(2.0 * (curve.prompt_servers + 1)) - 1),
        prompt_wait_s=occupancy_s * prompt_spread / (curve.prompt_servers * (1 - busy)),
        residual_s=by_states(curve.residual_s, chain.mass, chain.tail, by_arrival),
        prompt_s=by_states(curve.prompt_s, chain.mass, chain.tail, by_arrival),
    )


def _chain(curve: Curve, rates: Array, batches: NDArray[np.intp], arrivals: Array, service: float) -> Chain:
    """Weights in the logarithm, from the state of most weight; a cell of states has the weight of its middle each."""
    log_rate = np.log(rates)[None, :, None]
    step = (log_rate - np.log(curve.rate_between)[:, None, :]) * (2.0 / (1.0 + arrivals))
    level = np.cumsum(step * curve.widths, axis=-1)
    log_mass = np.log(curve.widths) + level - step * (curve.widths - 1) / 2
    peak = np.maximum(log_mass.max(axis=-1, keepdims=True), 0.0)
    mass, empty = np.exp(log_mass - peak), np.exp(-peak)
    limit = np.exp(level - peak)[..., batches]
    spread = np.maximum(1e-3, (arrivals + service) / 2)
    over = log_rate - np.log(curve.rate[:, None, batches])
    ratio = np.exp(np.minimum(over, -1e-9) / spread)
    tail = limit * ratio / (1 - ratio)
    # Far below the mode of an unstable chain nothing is left but rounding; such entries are not `stable`.
    total = np.maximum(empty + np.cumsum(mass, axis=-1)[..., batches] + tail, _TINY)
    return Chain(empty, mass, limit, tail, ratio, total)
