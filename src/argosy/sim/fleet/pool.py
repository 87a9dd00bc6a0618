"""Replicas that serve the same model: who is in, who is up, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from argosy.errors import SimulationError
from argosy.fleet.policies.routing.replica_state import ReplicaInfo, ReplicaState
from argosy.sim.event_loop import EventLoop
from argosy.sim.replica import Replica
from argosy.sim.replica import ReplicaState as Status


@dataclass(slots=True, eq=False)
class Member:
    """A replica and what the router knows of it.

    Attributes:
        reachable: false during a network partition: it computes on, and nothing reaches it or comes from it.
        corrupts: whether what it computes is wrong.
        added_s, removed_s: when it was asked for and when it was gone, in simulated seconds; None while it is in the pool.
        withheld: what it had to tell during a partition, told when that is over.
        link_free_s: when the KV transfers it has begun are through.
    """

    replica: Replica
    state: ReplicaState
    added_s: float
    removed_s: float | None = None
    reachable: bool = True
    corrupts: bool = False
    withheld: list[Callable[[], None]] = field(default_factory=list)
    link_free_s: float = 0.0

    @property
    def name(self) -> str:
        """Name of the replica, which is its id for the router."""
        return self.replica.name

    def answers(self, *, deep: bool) -> bool:
        """Whether a health probe that begins at this moment gets a good answer; see `HealthCheck` for what is deep."""
        if not self.reachable:
            return False
        status = self.replica.state
        if deep:
            return not self.corrupts and status in (Status.READY, Status.DRAINING)
        return status in (Status.READY, Status.DRAINING, Status.HANGING)


class Pool:
    """Owns the members. Replicas are added READY; a cold start is up to `add`.

    Attributes:
        name: begins the names of the replicas that an autoscaler adds.
        detects_at_once: whether a failure is known to the router in the same instant; health checks clear it.
        forget_prefixes: called with a replica's id when what it held is lost.
        on_added, on_removed: called with a member that joined, and with one that is gone, for records.
    """

    def __init__(self, name: str, loop: EventLoop) -> None:
        self.name = name
        self.detects_at_once = True
        self.forget_prefixes: Callable[[str], None] = lambda replica_id: None  # noqa: ARG005
        self.on_added: Callable[[Member], None] = lambda member: None  # noqa: ARG005
        self.on_removed: Callable[[Member], None] = lambda member: None  # noqa: ARG005
        self._loop = loop
        self._members: dict[str, Member] = {}
        self._states: list[ReplicaState] = []
        self._listeners: list[Callable[[], None]] = []
        self._gone_replica_s = 0.0
        self._gone_usd = 0.0

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    @property
    def states(self) -> list[ReplicaState]:
        """What the router chooses from, in the order added; do not change."""
        return self._states

    @property
    def ready(self) -> list[Member]:
        """Members that serve and are to stay."""
        return [one for one in self if one.replica.is_ready and not one.state.draining]

    @property
    def starting(self) -> list[Member]:
        """Members that will serve."""
        return [one for one in self if one.replica.state is Status.STARTING]

    def member(self, name: str) -> Member:
        """The member called `name`.

        Raises:
            SimulationError: there is none.
        """
        found = self._members.get(name)
        if found is None:
            raise SimulationError(f"pool {self.name!r} has no replica {name!r}; it has {', '.join(self._members) or 'none'}")
        return found

    def of(self, state: ReplicaState) -> Member:
        """The member that the router calls `state`."""
        return self._members[state.replica_id]

    def on_capacity(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a replica begins to take requests, again or for the first time."""
        self._listeners.append(listener)

    def add(self, replica: Replica, info: ReplicaInfo, *, cold_start_s: float = 0.0) -> Member:
        """Take a replica in; it serves after `cold_start_s`.

        Raises:
            SimulationError: names differ, or the name is taken.
        """
        if info.replica_id != replica.name or replica.name in self._members:
            raise SimulationError(
                f"pool {self.name!r} cannot take replica {replica.name!r} as {info.replica_id!r}: the names must be equal "
                "and free"
            )
        member = Member(replica, ReplicaState(info), self._loop.now_s())
        self._members[replica.name] = member
        self._states.append(member.state)
        self.on_added(member)
        if cold_start_s > 0.0:
            replica.stop(drain=False)
            self.restart(member, cold_start_s)
        else:
            self._tell()
        return member

    def restart(self, member: Member, cold_start_s: float) -> None:
        """Start a stopped or crashed member; it serves after `cold_start_s`, and gets requests once that is noticed."""
        member.replica.start(cold_start_s)
        member.state.healthy = False
        # After the replica's own event of that moment, which was entered first.
        self._loop.after(cold_start_s, lambda: self._started(member))

    def remove(self, member: Member, *, drain: bool = True) -> None:
        """Let a member go: at once, or when what it has is done."""
        member.state.draining = True
        member.replica.stop(drain=drain)
        self.settle(member)

    def settle(self, member: Member) -> None:
        """Strike a draining member off the list once nothing is there or on its way. Called when a booking ends."""
        if not member.state.draining or member.removed_s is not None:
            return
        if not member.replica.num_in_flight and not member.state.booked.requests:
            now_s = self._loop.now_s()
            member.removed_s = now_s
            del self._members[member.name]
            self._states.remove(member.state)
            self.forget_prefixes(member.name)
            self._gone_replica_s += now_s - member.added_s
            self._gone_usd += (now_s - member.added_s) / 3600.0 * member.state.info.usd_per_hour
            self.on_removed(member)

    def settle_state(self, state: ReplicaState) -> None:
        """As `settle`, by what the router calls the member; does nothing if it is gone."""
        member = self._members.get(state.replica_id)
        if member is not None and member.state is state:
            self.settle(member)

    def status_changed(self, member: Member) -> None:
        """Something befell a member or ended: known to the router at once, unless health checks have to find out."""
        if self.detects_at_once:
            self.set_healthy(member, member.answers(deep=False))

    def set_healthy(self, member: Member, healthy: bool) -> None:
        """What the router is to believe."""
        rises = healthy and not member.state.healthy
        member.state.healthy = healthy
        if rises:
            self._tell()

    def replica_s(self) -> float:
        """Replica-seconds so far, of those that start or drain too."""
        now_s = self._loop.now_s()
        return self._gone_replica_s + sum([now_s - one.added_s for one in self])

    def usd(self) -> float:
        """Dollars for them, by the price of each."""
        now_s = self._loop.now_s()
        return self._gone_usd + sum([(now_s - one.added_s) / 3600.0 * one.state.info.usd_per_hour for one in self])

    def _started(self, member: Member) -> None:
        if member.replica.state is Status.READY and member.removed_s is None:
            member.corrupts = False
            self.status_changed(member)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
