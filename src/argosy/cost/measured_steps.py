"""Step times of one model on one machine as a curve through measurements, where a roofline is too stiff.

    seconds = rows(tokens) + logit_s logit_rows + sequence_s sequences + seen_s seen + pair_s pairs      (the executor)
            + host_step_s + host_sequence_s sequences + host_token_s tokens                              (around it)

`rows` is linear between knots: one pass over the weights, the tiles of matrix kernels and the way from memory-bound to
compute-bound are all in it. `seen` are the tokens that decoding sequences look at, `pairs` the query-key pairs of prompt
chunks, both as means over the layers, whose windows may differ. Nothing is assumed of the kernels but that attention is
linear in what it looks at.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from argosy.cost.deployment import Deployment
from argosy.cost.op_list import forward_templates
from argosy.cost.op_template import GroupOp
from argosy.cost.robust_fit import robust_fit
from argosy.errors import ConfigError

Array = NDArray[np.float64]

# Relative error beyond which a step counts as an outlier: on a machine with other things to do there are some.
OUTLIER = 0.05
# Candidate knots; powers of two and what lies in between.
_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
# Medians within an eighth of a knot, at least, for it to be one.
_STEPS_PER_KNOT = 2
_FEWEST_STEPS = 50
_PRIOR = 0.01
# Share of times around the executor that count, the shortest ones.
_HOST_KEPT = 0.97
_LOW, _HIGH = 1e-6, 1e6
_TERMS = ("logit_s", "sequence_s", "seen_s", "pair_s")


class StepFeatures(NamedTuple):
    """What the time of a step depends on; see the module. Numbers of one step, or arrays of many."""

    tokens: float
    logit_rows: float
    sequences: float
    seen: float
    pairs: float


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measured step.

    Attributes:
        configuration: what is held out together.
        executor_s: that the executor took; host_s: from its start to the start of the next one beyond that, or None where
            no other step followed at once.
    """

    features: StepFeatures
    configuration: Hashable
    executor_s: float
    host_s: float | None


@dataclass(frozen=True, slots=True)
class StepErrors:
    """|predicted / measured - 1| of medians of alike steps: their median and 90th percentile."""

    median: float
    p90: float

    @classmethod
    def of(cls, errors: Array) -> StepErrors:
        """From the errors of all of them."""
        return cls(float(np.median(errors)), float(np.quantile(errors, 0.9)))


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """The fitted constants; see the module.

    Attributes:
        knots: tokens, rising from 1; rows_s: seconds at each. Beyond the last knot the last slope goes on.
        steps: how many were fitted to; fitted, held_out: errors of the executor's time on them, and on configurations that
            were left out of the fit.
    """

    knots: tuple[int, ...]
    rows_s: tuple[float, ...]
    logit_s: float
    sequence_s: float
    seen_s: float
    pair_s: float
    host_step_s: float
    host_sequence_s: float
    host_token_s: float
    steps: int
    fitted: StepErrors
    held_out: StepErrors

    def __post_init__(self) -> None:
        """Raise `ConfigError` for knots that do not rise from 1, or a constant that no step has."""
        if len(self.knots) < 2 or self.knots[0] != 1 or list(self.knots) != sorted(set(self.knots)):
            raise ConfigError(f"knots must rise from 1 and be two or more, got {self.knots}")
        if len(self.rows_s) != len(self.knots):
            raise ConfigError(f"{len(self.rows_s)} times for {len(self.knots)} knots")
        times = (
            *self.rows_s,
            *(getattr(self, name) for name in _TERMS),
            self.host_step_s,
            self.host_sequence_s,
            self.host_token_s,
        )
        if not all(math.isfinite(one) and one >= 0 for one in times):
            raise ConfigError("measured step times must be finite and not negative")

    def rows_at(self, tokens: float) -> float:
        """Seconds of everything that is done once per token."""
        knots, rows = self.knots, self.rows_s
        above = next((i for i in range(1, len(knots)) if tokens <= knots[i]), len(knots) - 1)
        share = (tokens - knots[above - 1]) / (knots[above] - knots[above - 1])
        return max(rows[above - 1] + share * (rows[above] - rows[above - 1]), 0.0)

    def fixed_s(self, tokens: float, logit_rows: float, sequences: float) -> float:
        """Seconds of a step without attention, host included."""
        return (
            self.rows_at(tokens)
            + self.logit_s * logit_rows
            + (self.sequence_s + self.host_sequence_s) * sequences
            + self.host_token_s * tokens
            + self.host_step_s
        )

    def step_s(self, features: StepFeatures) -> float:
        """Seconds from the start of a step to the start of the next."""
        tokens, logit_rows, sequences, seen, pairs = features
        return self.fixed_s(tokens, logit_rows, sequences) + self.seen_s * seen + self.pair_s * pairs


def attention_shares(deployment: Deployment) -> dict[int | None, float]:
    """Share of layers by attention window, None for those without one."""
    ops = [op for op in forward_templates(deployment) if isinstance(op, GroupOp) and op.exchange is None]
    total = sum(op.place.repeats for op in ops)
    shares: dict[int | None, float] = {}
    for op in ops:
        shares[op.limit] = shares.get(op.limit, 0.0) + op.place.repeats / total
    return shares


def fit_measured_steps(samples: Sequence[StepSample], *, folds: int = 5, seed: int = 0) -> MeasuredSteps:
    """Fit to measured steps.

    Raises:
        ConfigError: too few steps or configurations, or times that nothing takes.
    """
    order = list(dict.fromkeys(one.configuration for one in samples))
    if len(order) < folds or len(samples) < _FEWEST_STEPS:
        raise ConfigError(f"{len(samples)} steps of {len(order)} configurations are too few to fit step times to")
    configurations, table, seconds = _medians(samples)
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise ConfigError("measured seconds must be finite and above 0")
    knots = _knots(table[:, 0])
    design = _design(table, knots)
    values = _fit(design, seconds, len(knots))
    logit_s, sequence_s, seen_s, pair_s = values[len(knots) :].tolist()
    fold_of = dict(zip(order, np.random.default_rng(seed).permutation(len(order)) % folds, strict=True))
    fold = np.array([fold_of[one] for one in configurations])
    held_out = []
    for number in range(folds):
        left_out = fold == number
        guessed = _fit(design[~left_out], seconds[~left_out], len(knots))
        held_out.append(np.abs(design[left_out] @ guessed / seconds[left_out] - 1.0))
    host_step_s, host_sequence_s, host_token_s = _fit_host(samples)
    return MeasuredSteps(
        knots=knots,
        rows_s=tuple(values[: len(knots)].tolist()),
        logit_s=logit_s,
        sequence_s=sequence_s,
        seen_s=seen_s,
        pair_s=pair_s,
        host_step_s=host_step_s,
        host_sequence_s=host_sequence_s,
        host_token_s=host_token_s,
        steps=len(samples),
        fitted=StepErrors.of(np.abs(design @ values / seconds - 1.0)),
        held_out=StepErrors.of(np.concatenate(held_out)),
    )


def _medians(samples: Sequence[StepSample]) -> tuple[list[Hashable], Array, Array]:
    """(configurations, [medians, 5] mean features, [medians] seconds) of steps that are alike.

    A machine with other things to do only ever adds time, at random: a median of several steps does not see it unless it
    hits half of them. Alike are steps of one configuration with the same rows, whose attention differs by a quarter at most.
    """
    alike: dict[Hashable, list[StepSample]] = {}
    for one in samples:
        work = [round(4.0 * math.log2(1.0 + size)) for size in (one.features.seen, one.features.pairs)]
        alike.setdefault((one.configuration, *one.features[:3], *work), []).append(one)
    groups = list(alike.values())
    table = np.array([np.mean([one.features for one in group], axis=0) for group in groups])
    seconds = np.array([np.median([one.executor_s for one in group]) for group in groups])
    return [group[0].configuration for group in groups], table, seconds


def _knots(tokens: Array) -> tuple[int, ...]:
    """Candidates near which there are medians; 1 and the largest step always."""
    most = int(tokens.max())
    inner = [knot for knot in _KNOTS if 1 < knot < most and (np.abs(tokens / knot - 1.0) <= 0.125).sum() >= _STEPS_PER_KNOT]
    return (1, *inner, max(most, 2))


def _design(table: Array, knots: tuple[int, ...]) -> Array:
    """[steps, constants]; the first columns are the hat functions of the knots."""
    tokens = table[:, 0]
    above = np.clip(np.searchsorted(knots, tokens), 1, len(knots) - 1)
    places = np.array(knots, np.float64)
    share = (tokens - places[above - 1]) / (places[above] - places[above - 1])
    hats = np.zeros((len(tokens), len(knots)))
    rows = np.arange(len(tokens))
    hats[rows, above - 1], hats[rows, above] = 1.0 - share, share
    return np.hstack([hats, table[:, 1:]])


def _fit(design: Array, seconds: Array, num_knots: int) -> Array:
    """[constants] by robust least squares on ln(predicted / measured), each constant above 0."""
    typical = float(np.median(seconds))
    start = np.empty(design.shape[1])
    for column in range(design.shape[1]):
        used = design[:, column] > 0.5 if column < num_knots else design[:, column] > 0
        if column < num_knots:
            start[column] = 0.8 * float(np.median(seconds[used])) if used.any() else typical
        else:
            mean = float(design[used, column].mean()) if used.any() else 1.0
            start[column] = 0.02 * typical / mean
    log_start = np.log(start)

    def residuals(x: Array) -> Array:
        return np.concatenate([np.log(design @ np.exp(x) / seconds), _PRIOR * (x - log_start)])

    low, high = log_start + math.log(_LOW), log_start + math.log(_HIGH)
    return np.exp(robust_fit(residuals, log_start, low, high, outlier=OUTLIER).x)


def _fit_host(samples: Sequence[StepSample]) -> tuple[float, float, float]:
    """Seconds around the executor (a step, a sequence, a token), each at least 0.

    Least squares on trimmed means of steps with alike numbers of sequences and tokens, weighed by how many there are. Means,
    since waits for the interpreter are rare, long and part of what every run will see; trimmed, since some are not.
    """
    alike: dict[tuple[int, int], list[StepSample]] = {}
    for one in samples:
        if one.host_s is not None:
            sizes = (one.features.sequences, one.features.tokens)
            alike.setdefault((round(2.0 * math.log2(sizes[0])), round(2.0 * math.log2(sizes[1]))), []).append(one)
    if not alike:
        raise ConfigError("no step followed another at once: the time around the executor cannot be told")
    rows, seconds, weights = [], [], []
    for group in alike.values():
        times = sorted([one.host_s for one in group if one.host_s is not None])
        kept = times[: max(1, math.ceil(_HOST_KEPT * len(times)))]
        rows.append([1.0, *np.mean([(one.features.sequences, one.features.tokens) for one in group], axis=0)])
        seconds.append(sum(kept) / len(kept))
        weights.append(math.sqrt(len(group)))
    design, wanted = np.array(rows) * np.array(weights)[:, None], np.array(seconds) * np.array(weights)
    used, found = [0, 1, 2], np.zeros(3)
    while used:
        solved = np.linalg.lstsq(design[:, used], wanted, rcond=None)[0]
        if (solved >= 0).all():
            found[used] = solved
            break
        used.pop(int(np.argmin(solved)))
    step_s, sequence_s, token_s = found.tolist()
    return step_s, sequence_s, token_s
