"""What goes wrong with replicas, and when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from argosy.errors import ConfigError
from argosy.sim.event_loop import EventLoop
from argosy.sim.fleet.pool import Member, Pool
from argosy.sim.replica import Failure
from argosy.sim.replica import ReplicaState as Status


@dataclass(frozen=True, slots=True)
class Crash:
    """The replica is gone with all it has; it starts again `restart_after_s` later, if ever, and takes `cold_start_s`."""

    kind: ClassVar[str] = "crash"
    at_s: float
    replica: str
    restart_after_s: float | None = None
    cold_start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Hang:
    """It takes requests and answers none, for `duration_s` or for ever."""

    kind: ClassVar[str] = "hang"
    at_s: float
    replica: str
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Its steps take `factor` times as long: a throttled device, a noisy neighbour."""

    kind: ClassVar[str] = "slowdown"
    at_s: float
    replica: str
    factor: float
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Corruption:
    """It computes nonsense at full speed."""

    kind: ClassVar[str] = "corruption"
    at_s: float
    replica: str
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """Nothing reaches it or comes from it, and it computes on."""

    kind: ClassVar[str] = "partition"
    at_s: float
    replica: str
    duration_s: float | None = None


Fault = Crash | Hang | Slowdown | Corruption | Partition


def random_crashes(
    replicas: Iterable[str],
    mean_between_s: float,
    until_s: float,
    rng: Random,
    *,
    restart_after_s: float | None,
    cold_start_s: float = 0.0,
) -> list[Crash]:
    """Crashes of each replica as a Poisson process up to `until_s`, in order of time.

    Raises:
        ConfigError: the mean time between crashes is not positive.
    """
    if not mean_between_s > 0.0:
        raise ConfigError(f"mean_between_s must be above 0, got {mean_between_s}")
    crashes: list[Crash] = []
    for name in replicas:
        at_s = rng.expovariate(1.0 / mean_between_s)
        while at_s < until_s:
            crashes.append(Crash(at_s, name, restart_after_s, cold_start_s))
            if restart_after_s is None:
                break
            at_s += restart_after_s + cold_start_s + rng.expovariate(1.0 / mean_between_s)
    return sorted(crashes, key=lambda crash: (crash.at_s, crash.replica))


class FaultInjector:
    """Lets `faults` befall the members of `pool`, and end, in their time.

    A fault of a replica that is not in the pool by then is skipped, since an autoscaler may have removed it; `num_skipped`
    counts these.
    """

    def __init__(self, loop: EventLoop, pool: Pool, faults: Iterable[Fault]) -> None:
        """Raises `ConfigError` for a fault with an impossible time or factor, naming it."""
        self.num_skipped = 0
        self._loop = loop
        self._pool = pool
        for fault in faults:
            self._check(fault)
            loop.at(fault.at_s, lambda fault=fault: self._befall(fault))  # type: ignore[misc]

    def _check(self, fault: Fault) -> None:
        length = fault.restart_after_s if isinstance(fault, Crash) else fault.duration_s
        if not fault.at_s >= self._loop.now_s() or (length is not None and not length >= 0.0):
            raise ConfigError(f"a fault needs a time to come and a length from 0 up: {fault}")
        if isinstance(fault, Slowdown) and not fault.factor > 0.0:
            raise ConfigError(f"factor of a slowdown must be above 0: {fault}")

    def _befall(self, fault: Fault) -> None:
        member = next((one for one in self._pool if one.name == fault.replica), None)
        if member is None:
            self.num_skipped += 1
            return
        match fault:
            case Crash():
                self._crash(member, fault)
                return
            case Hang():
                member.replica.fail(Failure.HANG)
            case Slowdown():
                member.replica.set_slowdown(fault.factor)
            case Corruption():
                member.corrupts = True
                member.replica.fail(Failure.CORRUPT)
            case Partition():
                member.reachable = False
        self._pool.status_changed(member)
        if fault.duration_s is not None:
            self._loop.after(fault.duration_s, lambda: self._recover(member, fault))

    def _crash(self, member: Member, fault: Crash) -> None:
        if member.replica.state in (Status.CRASHED, Status.STOPPED, Status.STARTING):
            self.num_skipped += 1
            return
        # Known before its requests fail, so that those that are tried again at once go elsewhere.
        if self._pool.detects_at_once:
            member.state.healthy = False
        member.replica.fail(Failure.CRASH)
        self._pool.forget_prefixes(member.name)
        if fault.restart_after_s is not None:
            self._loop.after(fault.restart_after_s, lambda: self._restart(member, fault.cold_start_s))

    def _restart(self, member: Member, cold_start_s: float) -> None:
        if member.removed_s is None and not member.state.draining and member.replica.state is Status.CRASHED:
            self._pool.restart(member, cold_start_s)

    def _recover(self, member: Member, fault: Fault) -> None:
        match fault:
            case Hang():
                member.replica.recover()
            case Slowdown():
                member.replica.set_slowdown(1.0)
            case Corruption():
                member.corrupts = False
                member.replica.recover()
            case Partition():
                member.reachable = True
                withheld, member.withheld = member.withheld, []
                for tell in withheld:
                    tell()
            case Crash():
                raise AssertionError("a crash ends by a restart")
        self._pool.status_changed(member)
