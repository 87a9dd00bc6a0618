"""Whether a system keeps up, or only has not fallen behind far enough yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from argosy.sim.time_series import Window

# A backlog that grows in proportion to time is on average 5/3 as high in the third quarter as in the second, and 7/5 as
# high in the fourth as in the third. A queue in a steady state has ratios about 1; what is asked for lies between.
_SECOND_TO_THIRD, _THIRD_TO_FOURTH = 1.25, 1.15
# Too few arrivals say nothing; growth by a few requests is what queues do.
_FEWEST_ARRIVALS, _LEAST_GROWTH = 40, 8.0


@dataclass(frozen=True, slots=True)
class Stability:
    """Verdict over the time in which requests arrived.

    Attributes:
        is_unstable: requests in the system grew from quarter to quarter, in proportion to time or faster.
        in_system: mean number that an arriving request found, per quarter; empty if too few arrived to say anything.
        growth_per_s: from the second to the fourth quarter, per second; of an overloaded system the excess rate.
    """

    is_unstable: bool
    in_system: tuple[float, ...]
    growth_per_s: float

    def __str__(self) -> str:
        if not self.in_system:
            return "too few arrivals to tell whether the system keeps up"
        quarters = ", ".join(f"{mean:.1f}" for mean in self.in_system)
        if not self.is_unstable:
            return f"stable: arriving requests found {quarters} in the system, quarter by quarter"
        return (
            f"unstable: the queue grows by {self.growth_per_s:.3g} requests/s (arriving requests found {quarters} in the "
            "system, quarter by quarter); latencies depend on how long is simulated and are no property of the system"
        )


def judge(windows: Sequence[Window], width_s: float) -> Stability:
    """Judge by the mean numbers in the system in four quarters of the windows from the first to the last arrival."""
    first = next((index for index, window in enumerate(windows) if window.arrivals), 0)
    last = next((index for index in range(len(windows) - 1, -1, -1) if windows[index].arrivals), -1)
    span = windows[first : last + 1]
    parts = [span[len(span) * quarter // 4 : len(span) * (quarter + 1) // 4] for quarter in range(4)]
    arrivals = [sum(window.arrivals for window in part) for part in parts]
    if min(arrivals) * 4 < _FEWEST_ARRIVALS:
        return Stability(is_unstable=False, in_system=(), growth_per_s=0.0)
    means = [sum(w.in_system for w in part) / count for part, count in zip(parts, arrivals, strict=True)]
    _, second, third, fourth = means
    grows = third > _SECOND_TO_THIRD * second and fourth > _THIRD_TO_FOURTH * third and fourth - second > _LEAST_GROWTH
    return Stability(grows, tuple(means), (fourth - second) / (len(span) * width_s / 2))
