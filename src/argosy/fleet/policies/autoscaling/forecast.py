"""Forecasts of request rates with a season, such as a day or a week."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from argosy.errors import ConfigError

DAY_S = 86_400.0


class Forecaster(Protocol):
    """Foretells a rate. `observe` is called in order of time."""

    def observe(self, at_s: float, rate_per_s: float) -> None:
        """Learn that requests came at `rate_per_s` until `at_s`. Mutates the forecaster."""
        ...

    def rate_per_s(self, at_s: float) -> float | None:
        """The rate expected at a time to come; None while too little is known."""
        ...

    def step_s(self) -> float:
        """The finest detail of the forecast in seconds: looking more often shows nothing else."""
        ...


@dataclass(frozen=True, slots=True)
class DailySchedule:
    """The same rates every day, known beforehand.

    Attributes:
        steps: (seconds after midnight, requests per second from then on), rising, from 0. The last holds until midnight.
        midnight_s: a time at which a day begins.
    """

    steps: tuple[tuple[float, float], ...]
    midnight_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` if the steps are not a day."""
        starts = [start for start, _ in self.steps]
        if not starts or starts[0] != 0.0 or starts[-1] >= DAY_S or any(b <= a for a, b in pairwise(starts)):
            raise ConfigError(f"the steps of a daily schedule must rise from 0 to below {DAY_S:.0f} s, got {starts}")
        if any(rate < 0.0 for _, rate in self.steps):
            raise ConfigError("a rate of a daily schedule is negative")

    def observe(self, at_s: float, rate_per_s: float) -> None:
        """Nothing to learn."""

    def rate_per_s(self, at_s: float) -> float:
        """The rate of the step that holds at `at_s`."""
        second = (at_s - self.midnight_s) % DAY_S
        return next(rate for start, rate in reversed(self.steps) if start <= second)

    def step_s(self) -> float:
        """The shortest step."""
        starts = [start for start, _ in self.steps] + [DAY_S]
        return min(b - a for a, b in pairwise(starts))


class _Buckets:
    """Means of the observations that fall into buckets of equal length, handed on when a bucket is over."""

    def __init__(self, bucket_s: float) -> None:
        self._bucket_s = bucket_s
        self._number: int | None = None
        self._sum = 0.0
        self._count = 0

    def add(self, at_s: float, value: float) -> list[tuple[int, float | None]]:
        """Buckets that ended before `at_s`, as (number, mean); those without observations have no mean."""
        number = math.floor(at_s / self._bucket_s)
        over: list[tuple[int, float | None]] = []
        if self._number is not None and number > self._number:
            over.append((self._number, self._sum / self._count))
            over += [(missed, None) for missed in range(self._number + 1, number)]
            self._sum, self._count = 0.0, 0
        self._number = number
        self._sum += value
        self._count += 1
        return over


def _check_season(season_s: float, bucket_s: float) -> int:
    num = round(season_s / bucket_s) if bucket_s > 0.0 else 0
    if num < 1 or not math.isclose(num * bucket_s, season_s):
        raise ConfigError(f"season_s ({season_s}) must be a whole number of buckets of bucket_s ({bucket_s})")
    return num


@dataclass(slots=True)
class SeasonalNaive:
    """What it was at the same time of earlier seasons: the mean of the last `num_seasons` of them.

    With a season of a week it knows that Sundays are not Mondays. Memory: season / bucket x num_seasons numbers.
    """

    season_s: float = 7 * DAY_S
    bucket_s: float = 900.0
    num_seasons: int = 1
    _past: dict[int, list[float]] = field(default_factory=dict)
    _num_buckets: int = 0
    _buckets: _Buckets = field(init=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        self._num_buckets = _check_season(self.season_s, self.bucket_s)
        if self.num_seasons < 1:
            raise ConfigError(f"num_seasons must be at least 1, got {self.num_seasons}")
        self._buckets = _Buckets(self.bucket_s)

    def observe(self, at_s: float, rate_per_s: float) -> None:
        """Add to the bucket that holds `at_s`; it counts when it is over."""
        for number, mean in self._buckets.add(at_s, rate_per_s):
            if mean is not None:
                past = self._past.setdefault(number % self._num_buckets, [])
                past.append(mean)
                del past[: -self.num_seasons]

    def rate_per_s(self, at_s: float) -> float | None:
        """Mean over the seasons seen; None for a time of the season that has not been seen."""
        past = self._past.get(math.floor(at_s / self.bucket_s) % self._num_buckets)
        return None if past is None else sum(past) / len(past)

    def step_s(self) -> float:
        """One bucket."""
        return self.bucket_s


@dataclass(slots=True)
class HoltWinters:
    """Additive triple exponential smoothing (Winters 1960): a level, a trend per bucket, an offset per bucket of the season.

    The first season initialises level and offsets; forecasts begin after it. With observation y of bucket t and season m:

        level   = alpha (y - season[t-m]) + (1 - alpha) (level + trend)
        trend   = beta (level - old level) + (1 - beta) trend
        season  = gamma (y - level) + (1 - gamma) season[t-m]
        ahead h = level + h trend + season[t+h-m], not below 0

    A bucket without observations leaves all as it is but for the level, which goes on with the trend.
    """

    season_s: float = DAY_S
    bucket_s: float = 900.0
    alpha: float = 0.2
    beta: float = 0.01
    gamma: float = 0.3
    _first: list[float] = field(default_factory=list)
    _season: list[float] = field(default_factory=list)
    _level: float = 0.0
    _trend: float = 0.0
    _last: int = 0
    _num_buckets: int = 0
    _offset: int = 0
    _buckets: _Buckets = field(init=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        self._num_buckets = _check_season(self.season_s, self.bucket_s)
        for name in ("alpha", "beta", "gamma"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be within [0, 1], got {getattr(self, name)}")
        self._buckets = _Buckets(self.bucket_s)

    def observe(self, at_s: float, rate_per_s: float) -> None:
        """Add to the bucket that holds `at_s`; it counts when it is over."""
        for number, mean in self._buckets.add(at_s, rate_per_s):
            if self._season:
                self._update(number, mean)
            else:
                self._initialise(number, mean)

    def rate_per_s(self, at_s: float) -> float | None:
        """The forecast for the bucket that holds `at_s`, a time after the last observation."""
        if not self._season:
            return None
        number = math.floor(at_s / self.bucket_s)
        ahead = number - self._last
        return max(0.0, self._level + ahead * self._trend + self._season[number % self._num_buckets])

    def step_s(self) -> float:
        """One bucket."""
        return self.bucket_s

    def _initialise(self, number: int, mean: float | None) -> None:
        if mean is None:
            self._first.clear()
            return
        self._first.append(mean)
        if len(self._first) < self._num_buckets:
            return
        self._level = sum(self._first) / self._num_buckets
        self._last = number
        offsets = [value - self._level for value in self._first]
        begin = number - self._num_buckets + 1
        self._season = [offsets[(place - begin) % self._num_buckets] for place in range(self._num_buckets)]
        self._first.clear()

    def _update(self, number: int, mean: float | None) -> None:
        self._last = number
        if mean is None:
            self._level += self._trend
            return
        place, old = number % self._num_buckets, self._level
        season = self._season[place]
        self._level = self.alpha * (mean - season) + (1.0 - self.alpha) * (old + self._trend)
        self._trend = self.beta * (self._level - old) + (1.0 - self.beta) * self._trend
        self._season[place] = self.gamma * (mean - self._level) + (1.0 - self.gamma) * season


def highest_rate_per_s(forecaster: Forecaster, begin_s: float, end_s: float) -> float | None:
    """The highest rate expected within [begin_s, end_s]; None if nothing is known of any of it."""
    step_s = forecaster.step_s()
    times: Sequence[float] = [begin_s + number * step_s for number in range(math.floor((end_s - begin_s) / step_s) + 1)]
    known = [rate for at_s in (*times, end_s) if (rate := forecaster.rate_per_s(at_s)) is not None]
    return max(known, default=None)
