"""What a breaker remembers of the answers of the last seconds, and of how fast they usually are."""

from __future__ import annotations

import math
from dataclasses import dataclass

NUM_BUCKETS = 10
# A latency of zero has no logarithm; nothing answers within a microsecond.
_SHORTEST_S = 1e-6


@dataclass(slots=True)
class _Bucket:
    number: int = -1
    successes: int = 0
    failures: int = 0
    num_latencies: int = 0
    sum_log_latency: float = 0.0


class OutcomeWindow:
    """Counts over the last `window_s` seconds, in ten buckets of time: constant memory whatever the rate.

    The oldest bucket leaves whole, so that between 0.9 and 1.0 of the window is looked at.
    """

    def __init__(self, window_s: float) -> None:
        self._bucket_s = window_s / NUM_BUCKETS
        self._buckets = [_Bucket() for _ in range(NUM_BUCKETS)]

    def add_success(self, now_s: float, latency_s: float | None) -> None:
        """Count an answer; `latency_s` may be unknown."""
        bucket = self._bucket(now_s)
        bucket.successes += 1
        if latency_s is not None:
            bucket.num_latencies += 1
            bucket.sum_log_latency += math.log(max(latency_s, _SHORTEST_S))

    def take_back_success(self, at_s: float) -> None:
        """A success counted at `at_s` turned out to be none; nothing to do if that is longer ago than the window."""
        number = math.floor(at_s / self._bucket_s)
        bucket = self._buckets[number % NUM_BUCKETS]
        if bucket.number == number and bucket.successes:
            bucket.successes -= 1

    def add_failure(self, now_s: float) -> None:
        """Count a failure."""
        self._bucket(now_s).failures += 1

    def counts(self, now_s: float) -> tuple[int, int]:
        """Successes and failures within the window."""
        live = self._live(now_s)
        return sum(bucket.successes for bucket in live), sum(bucket.failures for bucket in live)

    def mean_latency_s(self, now_s: float) -> tuple[float, int] | None:
        """Geometric mean of the latencies within the window and their number, or None if there is none.

        The geometric mean: one answer that took a hundred times as long must not stand for twenty that did not.
        """
        live = self._live(now_s)
        count = sum(bucket.num_latencies for bucket in live)
        return (math.exp(sum(bucket.sum_log_latency for bucket in live) / count), count) if count else None

    def clear(self) -> None:
        """Forget everything."""
        self._buckets = [_Bucket() for _ in range(NUM_BUCKETS)]

    def _bucket(self, now_s: float) -> _Bucket:
        number = math.floor(now_s / self._bucket_s)
        place = number % NUM_BUCKETS
        if self._buckets[place].number != number:
            self._buckets[place] = _Bucket(number)
        return self._buckets[place]

    def _live(self, now_s: float) -> list[_Bucket]:
        oldest = math.floor(now_s / self._bucket_s) - NUM_BUCKETS
        return [bucket for bucket in self._buckets if bucket.number > oldest]


@dataclass(slots=True)
class LatencyBaseline:
    """Usual latency: the mean of the first samples, then an exponentially weighted one, both over logarithms.

    Attributes:
        decay_s: time constant; what holds for much less time than this hardly moves it.
        min_samples: samples before it has a value.
    """

    decay_s: float
    min_samples: int
    _log: float = 0.0
    _count: int = 0
    _at_s: float = 0.0

    @property
    def value_s(self) -> float | None:
        """Seconds, or None while there are too few samples."""
        return math.exp(self._log) if self._count >= self.min_samples else None

    def observe(self, latency_s: float, now_s: float) -> None:
        """Take in one latency. Mutates this object."""
        self._count += 1
        share = 1.0 / self._count
        if self._count > self.min_samples:
            share = -math.expm1(-max(0.0, now_s - self._at_s) / self.decay_s)
        self._log += share * (math.log(max(latency_s, _SHORTEST_S)) - self._log)
        self._at_s = now_s
