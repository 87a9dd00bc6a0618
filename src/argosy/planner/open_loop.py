"""A replica under open traffic: distributions of queueing, TTFT and TPOT from its closed-loop curve.

A replica with n requests in it finishes X(n) a second, X being its closed-loop throughput. Replaced by one server of that
state-dependent rate (flow-equivalent aggregation; Chandy, Herzog & Woo 1975), requests in the replica are a birth-death
chain: p(n) is proportional to the product of λ/X(i) over i = 1..n, and X(B) beyond the largest batch B. From it:

- TPOT of a request is that of the state it runs in; states count by the sequences that run in them.
- A request waits for a place in the batch when it finds B or more; the wait is then exponential.
- Its prompt waits for those before it in the step budget: M/G/c with the occupancy of a prompt (Sakasegawa 1977), the wait
  exponential as well.
- Arrivals of variance-to-mean ratio c widen the chain: probabilities to the power 2/(1 + c), the variance of a diffusion;
  in waits the variability of service joins (Allen & Cunneen): (c + cs²)/2.

TTFT is both waits, half a step and the request's own prompt steps, whose distribution follows the prompt lengths. Arrays are
[chunks, rates, batches] where not said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from argosy.planner.curve import Curve

Array = NDArray[np.float64]
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Variability:
    """What makes requests differ.

    Attributes:
        arrivals: variance over mean of arrivals; service: squared cv of a request's work in the batch.
        prompt: squared cv of prompt lengths; prompt_nodes: lengths over their mean, of equal shares of requests.
    """

    arrivals: float
    service: float
    prompt: float
    prompt_nodes: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Steady state. Entries where `stable` is False are meaningless.

    Attributes:
        running, tpot_s: means; tpot_s by sequences.
        wait_probability, wait_s: of the batch, the mean over those that wait.
        prompt_wait_probability, prompt_wait_s: of the step budget, likewise.
        residual_s, prompt_s, decode_step_s: half a step, a mean prompt's own steps, a step without prompts.
    """

    curve: Curve
    batches: NDArray[np.intp]
    stable: NDArray[np.bool_]
    running: Array
    tpot_s: Array
    wait_probability: Array
    wait_s: Array
    prompt_wait_probability: Array
    prompt_wait_s: Array
    residual_s: Array
    prompt_s: Array
    decode_step_s: Array
    variability: Variability
    _in_states: Array
    _in_batch: Array
    _tail: Array
    _tail_ratio: Array

    @property
    def ttft_mean_s(self) -> Array:
        """Mean time to first token."""
        waits = self.wait_probability * self.wait_s + self.prompt_wait_probability * self.prompt_wait_s
        return waits + self.residual_s + self.prompt_s

    @property
    def queue_wait_s(self) -> Array:
        """Mean of both waits."""
        return self.wait_probability * self.wait_s + self.prompt_wait_probability * self.prompt_wait_s

    def ttft_tail(self, seconds: float | Array) -> Array:
        """Share of requests whose TTFT exceeds `seconds`."""
        total = np.zeros(self.stable.shape)
        nodes = self.variability.prompt_nodes
        base = np.minimum(self.decode_step_s, self.prompt_s)
        for node in nodes:
            left = seconds - self.residual_s - base - (self.prompt_s - base) * node
            total += self._waits_exceed(left)
        return np.where(self.stable, total / len(nodes), 1.0)

    def _waits_exceed(self, seconds: Array) -> Array:
        """P(batch wait + prompt wait > t): each is 0 or exponential, and independent."""
        mean_a, mean_b = np.maximum(self.wait_s, 1e-12), np.maximum(self.prompt_wait_s, 1e-12)
        mean_b = np.where(np.abs(mean_a - mean_b) < 1e-6 * mean_a, mean_a * (1 + 1e-5), mean_b)
        t = np.maximum(seconds, 0.0)
        a, b = np.exp(-t / mean_a), np.exp(-t / mean_b)
        both = (mean_a * a - mean_b * b) / (mean_a - mean_b)
        p, q = self.wait_probability, self.prompt_wait_probability
        return np.where(seconds < 0, 1.0, p * (1 - q) * a + q * (1 - p) * b + p * q * both)

    def ttft_quantile(self, share: float) -> Array:
        """Seconds that `share` of requests stay within."""
        low = np.zeros(self.stable.shape)
        high = self.residual_s + self.prompt_s * max(self.variability.prompt_nodes) + self.decode_step_s
        high = high + 60.0 * (self.wait_s + self.prompt_wait_s)
        for _ in range(50):
            middle = (low + high) / 2
            above = self.ttft_tail(middle) > 1 - share
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return np.where(self.stable, high, np.inf)

    def tpot_quantile(self, share: float) -> Array:
        """Seconds per output token that `share` of running sequences stay within."""
        total = self._at_batch(self._in_batch) + self._tail * self.curve.states[self.batches]
        wanted = share * total
        index = (self._in_batch[..., None, :] < wanted[..., None]).sum(axis=-1)
        index = np.minimum(index, self.batches)
        rows = np.arange(len(self.curve.tpot_s))[:, None, None]
        return np.where(self.stable, self.curve.tpot_s[rows, index], np.inf)

    def population_quantile(self, share: float) -> Array:
        """Requests in the replica, waiting ones included, that are not exceeded for `share` of the time."""
        total = 1.0 + self._at_batch(self._in_states) + self._tail
        wanted = share * total - 1.0
        index = (self._in_states[..., None, :] < wanted[..., None]).sum(axis=-1)
        inside = self.curve.states[np.minimum(index, self.batches)]
        excess = np.maximum(self._tail, _TINY) / np.maximum((1 - share) * total, _TINY)
        beyond = np.log(np.maximum(excess, 1.0)) / -np.log(np.clip(self._tail_ratio, _TINY, 1 - 1e-12))
        return np.where(self._tail > (1 - share) * total, self.curve.states[self.batches] + beyond, inside)

    def _at_batch(self, cumulative: Array) -> Array:
        return cumulative[..., self.batches]


def open_loop(curve: Curve, rates: Array, batches: NDArray[np.intp], variability: Variability) -> OpenLoop:
    """Steady states of every chunk of `curve`, at every rate (requests/s of a replica) and batch limit.

    Args:
        batches: indices into `curve.states`.
    """
    states, widths = curve.states, curve.widths
    lam = rates[None, :, None]
    step_log = (np.log(lam) - np.log(curve.rate_between)[:, None, :]) * (2.0 / (1.0 + variability.arrivals))
    level = np.cumsum(step_log * widths, axis=-1)
    log_mass = np.log(widths) + level - step_log * (widths - 1) / 2
    peak = np.maximum(log_mass.max(axis=-1, keepdims=True), 0.0)
    mass, empty = np.exp(log_mass - peak), np.exp(-peak)
    at_limit = np.exp(level - peak)[..., batches]
    in_states, in_batch = np.cumsum(mass, axis=-1), np.cumsum(mass * states, axis=-1)
    limit = np.log(lam) - np.log(curve.rate[:, None, batches])
    spread = max(1e-3, (variability.arrivals + variability.service) / 2)
    ratio = np.exp(np.minimum(limit, -1e-9) / spread)
    tail = at_limit * ratio / (1 - ratio)
    # Far beyond the mode of an unstable chain nothing is left but rounding; such entries are masked by `stable`.
    total = np.maximum(empty + in_states[..., batches] + tail, _TINY)
    running = (in_batch[..., batches] + tail * states[batches]) / total

    def mean(values: Array, weights: Array, norm: Array, tail_weight: Array) -> Array:
        sums = np.cumsum(weights * values[:, None, :], axis=-1)[..., batches]
        return np.asarray((sums + tail_weight * values[:, None, batches]) / norm)

    by_sequence = np.maximum(in_batch[..., batches] + tail * states[batches], _TINY)
    by_arrival = np.maximum(in_states[..., batches] + tail, _TINY)
    prompt_s = mean(curve.prompt_s, mass, by_arrival, tail)
    occupancy_s = mean(curve.occupancy_s, mass, by_arrival, tail)
    load = lam * occupancy_s / curve.prompt_servers
    stable = (limit < 0) & (load < 1) & np.isfinite(total)
    safe = np.minimum(load, 1 - 1e-9)
    prompt_wait_probability = safe ** (np.sqrt(2.0 * (curve.prompt_servers + 1)) - 1)
    prompt_spread = (variability.arrivals + variability.prompt) / 2
    waiting = at_limit * ratio / (1 - ratio) ** 2 / total
    wait_probability = np.clip((at_limit + tail) / total, 0.0, 1.0)
    return OpenLoop(
        curve=curve,
        batches=batches,
        stable=stable,
        running=running,
        tpot_s=mean(curve.tpot_s, mass * states, by_sequence, tail * states[batches]),
        wait_probability=wait_probability,
        wait_s=np.where(wait_probability > 1e-15, waiting / lam / np.maximum(wait_probability, 1e-15), 0.0),
        prompt_wait_probability=prompt_wait_probability,
        prompt_wait_s=occupancy_s * prompt_spread / (curve.prompt_servers * (1 - safe)),
        residual_s=mean(curve.residual_s, mass, by_arrival, tail),
        prompt_s=prompt_s,
        decode_step_s=2 * mean(curve.residual_s, mass, by_arrival, tail),
        variability=variability,
        _in_states=in_states,
        _in_batch=in_batch,
        _tail=tail,
        _tail_ratio=ratio,
    )
