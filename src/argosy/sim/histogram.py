"""Percentiles of any number of values in constant memory."""

from __future__ import annotations

import math

from argosy.errors import ConfigError

RELATIVE_ERROR = 0.005
_LEAST = 1e-9


class LogHistogram:
    """Counts in buckets whose bounds grow by a constant factor (DDSketch: Masson, Rim, Lee, VLDB 2019).

    Any quantile is given within a relative error of `RELATIVE_ERROR` of the value at that rank; count, mean, least and
    greatest are exact but for rounding. Values from 1e-9 to 1e9, so at most 4 200 buckets; what is smaller counts as 0.
    """

    _GAMMA = (1.0 + RELATIVE_ERROR) / (1.0 - RELATIVE_ERROR)
    _PER_LOG = 1.0 / math.log(_GAMMA)

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.greatest = -math.inf
        self._zeros = 0
        self._counts: dict[int, int] = {}

    def add(self, value: float, times: int = 1) -> None:
        """Count `value`, which must be finite and not negative, so many times."""
        assert 0.0 <= value < math.inf, f"a histogram takes finite values from 0 up, got {value}"
        self.count += times
        self.total += value * times
        if value < self.least:
            self.least = value
        if value > self.greatest:
            self.greatest = value
        if value < _LEAST:
            self._zeros += times
            return
        bucket = math.ceil(math.log(value) * self._PER_LOG)
        self._counts[bucket] = self._counts.get(bucket, 0) + times

    @property
    def mean(self) -> float | None:
        """The mean; None without values."""
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """The smallest value that at least `share` of all do not exceed, to `RELATIVE_ERROR`; None without values.

        Raises:
            ConfigError: a share outside 0 to 1.
        """
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"a quantile is a share from 0 to 1, got {share}")
        if not self.count:
            return None
        left = max(1, math.ceil(share * self.count)) - self._zeros
        if left <= 0:
            return 0.0
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                middle = 2.0 * self._GAMMA**bucket / (self._GAMMA + 1.0)
                return min(max(middle, self.least), self.greatest)
        raise AssertionError("the counts add up")

    def cumulative(self) -> list[tuple[float, float]]:
        """(value, share of all that do not exceed it), ascending, one pair for each bucket that counts something."""
        pairs, reached = [], self._zeros
        if self._zeros:
            pairs.append((0.0, reached / self.count))
        for bucket in sorted(self._counts):
            reached += self._counts[bucket]
            middle = 2.0 * self._GAMMA**bucket / (self._GAMMA + 1.0)
            pairs.append((min(max(middle, self.least), self.greatest), reached / self.count))
        return pairs

    def merge(self, other: LogHistogram) -> None:
        """Count everything that `other` has counted."""
        self.count += other.count
        self.total += other.total
        self.least = min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)
        self._zeros += other._zeros
        for bucket, times in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + times
