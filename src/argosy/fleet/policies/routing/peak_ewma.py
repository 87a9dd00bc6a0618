"""Latency as a router remembers it: up at once, down slowly."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class PeakEwma:
    """Exponentially weighted mean of latencies in which a peak counts in full (Finagle's peak EWMA).

    A sample above the mean replaces it; one below moves it by 1 - exp(-dt/decay_s). A replica that turns slow is avoided
    after one answer, and is trusted again only after a while.

    Attributes:
        decay_s: time constant in seconds.
        warm_up_samples: first samples to leave out: they time compilation and cold caches.
        value_s: seconds, or None before the first sample that counts.
    """

    decay_s: float = 10.0
    warm_up_samples: int = 0
    value_s: float | None = None
    num_samples: int = 0
    _at_s: float = 0.0

    def observe(self, latency_s: float, now_s: float) -> None:
        """Take in one latency, seen at `now_s`. Mutates this object."""
        self.num_samples += 1
        if self.num_samples <= self.warm_up_samples:
            return
        if self.value_s is None or latency_s >= self.value_s:
            self.value_s = latency_s
        else:
            kept = math.exp(-(now_s - self._at_s) / self.decay_s)
            self.value_s = kept * self.value_s + (1.0 - kept) * latency_s
        self._at_s = now_s
