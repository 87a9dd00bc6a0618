"""Arithmetic of scaling a fleet: how long a replica takes to come, how many are wanted, and a day's schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from argosy.cost.checks import at_least_one, not_negative, positive
from argosy.errors import ConfigError

_DAY_H = 24.0


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Seconds from wanting a replica to its first request, step by step; steps run one after another."""

    detect_s: float = 5.0
    provision_s: float = 60.0
    pull_image_s: float = 10.0
    load_weights_s: float = 300.0
    initialise_s: float = 25.0
    warm_up_s: float = 15.0
    register_s: float = 5.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a step that takes no time a clock could show."""
        not_negative(**{field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def total_s(self) -> float:
        """Sum of the steps."""
        return math.fsum(getattr(self, field.name) for field in fields(self))


# Typical sequential read rates: a local NVMe drive, one stream from an object store.
LOCAL_SSD_BYTES_PER_S = 6e9
OBJECT_STORE_BYTES_PER_S = 0.5e9


def load_time_s(weight_bytes: float, bytes_per_s: float) -> float:
    """Seconds to read weights: bytes / rate.

    Raises:
        ConfigError: a size or rate that cannot be.
    """
    not_negative(weight_bytes=weight_bytes)
    positive(bytes_per_s=bytes_per_s)
    return weight_bytes / bytes_per_s


@dataclass(frozen=True, slots=True)
class Spike:
    """What a jump of traffic does to a fleet: utilisation until help comes, and replicas back to where it was before."""

    utilisation: float
    replicas_wanted: int
    extra_replicas: int
    backlog_requests: float


def spike(
    replicas: int, utilisation: float, rate_per_s: float, spike_rate_per_s: float, *, cold_start_s: float = 0.0
) -> Spike:
    """A fleet at `utilisation` on `rate_per_s` gets `spike_rate_per_s`.

    Utilisation grows with the rate; replicas wanted keep the old utilisation; what exceeds capacity queues for the length
    of a cold start.

    Raises:
        ConfigError: an input out of range.
    """
    at_least_one(replicas=replicas)
    positive(utilisation=utilisation, rate_per_s=rate_per_s)
    not_negative(spike_rate_per_s=spike_rate_per_s, cold_start_s=cold_start_s)
    loaded = utilisation * spike_rate_per_s / rate_per_s
    wanted = max(1, _ceil(replicas * spike_rate_per_s / rate_per_s))
    capacity_per_s = rate_per_s / utilisation
    backlog = max(0.0, spike_rate_per_s - capacity_per_s) * cold_start_s
    return Spike(loaded, wanted, max(0, wanted - replicas), backlog)


def _ceil(value: float) -> int:
    """Ceiling that forgives the last bits of a quotient: 3000 / 0.7 * 0.7 is 3000 replicas, not 3001."""
    return math.ceil(value * (1 - 1e-12))


def reactive_replicas(current: int, observed: float, target: float) -> int:
    """ceil(current x observed / target): of a queue length per replica, or of a P99 latency.

    At least one. The form of the Kubernetes horizontal autoscaler.

    Raises:
        ConfigError: an input out of range.
    """
    at_least_one(current=current)
    not_negative(observed=observed)
    positive(target=target)
    return max(1, _ceil(current * observed / target))


def replicas_wanted(*, predicted: int, reactive: int, buffer: int = 0) -> int:
    """max(predicted, reactive) + buffer: a forecast never scales below what is observed.

    Raises:
        ConfigError: a negative count.
    """
    not_negative(predicted=predicted, reactive=reactive, buffer=buffer)
    return max(predicted, reactive) + buffer


def replicas_for_rate(rate_per_s: float, per_replica_per_s: float, *, margin: float = 1.0) -> int:
    """ceil(rate / per-replica throughput x margin), at least one: also the size of a warm pool, from the peak rate.

    Raises:
        ConfigError: an input out of range.
    """
    not_negative(rate_per_s=rate_per_s)
    positive(per_replica_per_s=per_replica_per_s, margin=margin)
    return max(1, _ceil(rate_per_s / per_replica_per_s * margin))


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """From `at_h` (hours of the day, 0 to 24) on, `replicas` run, for the traffic that begins at `traffic_at_h`."""

    at_h: float
    replicas: int
    traffic_at_h: float

    @property
    def clock(self) -> str:
        """As hh:mm."""
        minutes = round(self.at_h * 60) % (24 * 60)
        return f"{minutes // 60:02d}:{minutes % 60:02d}"


def daily_schedule(
    traffic: Sequence[tuple[float, float]], per_replica_per_s: float, *, lead_h: float = 0.5, margin: float = 1.0
) -> tuple[ScheduleEntry, ...]:
    """Replicas over a day for a piecewise constant rate: up `lead_h` early, so that replicas are warm, down on time.

    The day repeats: the first entry follows the last, and a scale-up that would start before midnight is put there.

    Args:
        traffic: (hour it begins, requests per second), hours rising, the first at 0.

    Raises:
        ConfigError: hours that do not rise within the day, or a lead longer than the phase before a scale-up.
    """
    if not traffic or traffic[0][0] != 0:
        raise ConfigError("traffic must begin with hour 0")
    not_negative(lead_h=lead_h)
    hours = [hour for hour, _ in traffic]
    if any(not later > earlier for earlier, later in zip(hours, [*hours[1:], _DAY_H], strict=True)):
        raise ConfigError(f"hours of traffic must rise within 0 to 24, got {hours}")
    counts = [replicas_for_rate(rate, per_replica_per_s, margin=margin) for _, rate in traffic]
    entries = []
    for index, (hour, count) in enumerate(zip(hours, counts, strict=True)):
        rises = count > counts[index - 1]
        phase_h = hour - hours[index - 1] if index else _DAY_H - hours[-1]
        if rises and lead_h >= phase_h:
            raise ConfigError(f"lead_h {lead_h} is not shorter than the {phase_h} h before the rise at hour {hour}")
        entries.append(ScheduleEntry((hour - lead_h) % _DAY_H if rises else hour, count, hour))
    return tuple(sorted(entries, key=lambda entry: entry.at_h))


def scheduled_replica_hours(schedule: Sequence[ScheduleEntry]) -> float:
    """Replica-hours of one day of `schedule`.

    Raises:
        ConfigError: an empty schedule.
    """
    if not schedule:
        raise ConfigError("a schedule needs at least one entry")
    following = [*[entry.at_h for entry in schedule[1:]], schedule[0].at_h + _DAY_H]
    return math.fsum(entry.replicas * (end - entry.at_h) for entry, end in zip(schedule, following, strict=True))


def reactive_peak_replicas(peak_rate_per_s: float, per_replica_per_s: float, *, overshoot: float = 1.5) -> int:
    """Replicas that reactive scaling reaches at a peak: the backlog of the cold start asks for more than the rate needs.

    `overshoot` is what was seen over the need; 1.5 is typical of a peak that comes within one cold start.

    Raises:
        ConfigError: an input out of range.
    """
    return replicas_for_rate(peak_rate_per_s, per_replica_per_s, margin=overshoot)
