"""The queue of one priority class: one line of requests per tenant, and whose turn it is.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) over tokens, as the virtual token counter of Sheng et al. ("Fairness
in Serving Large Language Models", OSDI 2024) has it: a tenant's counter grows by tokens / weight when a request of it is
dispatched, by the estimate, and is put right when the true number is known. The lowest counter goes next. One that begins
to wait starts no lower than the lowest was at the last dispatch, so that nobody saves up a claim by staying away.

Nothing is divided in advance: what one tenant does not ask for goes to the others. The shares are max-min fair.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from argosy.fleet.policies.keyed_heap import KeyedHeap
from argosy.fleet.policies.priorities import ClassSettings, QueueSettings
from argosy.fleet.policies.queued_request import QueuedRequest
from argosy.fleet.policies.saturation import Room


class Excess(NamedTuple):
    """What is too much for a bound; negative where there is room."""

    num_requests: int
    num_bytes: int

    @property
    def is_any(self) -> bool:
        """Whether a bound is exceeded."""
        return self.num_requests > 0 or self.num_bytes > 0

    def at_least(self, other: Excess) -> Excess:
        """The larger of the two, for each bound."""
        return Excess(max(self.num_requests, other.num_requests), max(self.num_bytes, other.num_bytes))


@dataclass(slots=True, eq=False)
class Flow:
    """One tenant in one class.

    Attributes:
        served_tokens: virtual tokens, dispatched / weight: its place in the order.
        waiting: oldest first.
        in_flight_requests, in_flight_tokens: dispatched and not settled.
    """

    tenant: str
    weight: float
    served_tokens: float
    waiting: OrderedDict[QueuedRequest, None] = field(default_factory=OrderedDict)
    waiting_bytes: int = 0
    in_flight_requests: int = 0
    in_flight_tokens: int = 0

    @property
    def head(self) -> QueuedRequest:
        """The request that has waited longest."""
        return next(iter(self.waiting))

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing waiting and nothing in flight."""
        return not self.waiting and not self.in_flight_requests


class ClassQueue:
    """Whose request goes next, within one class. It is told of every arrival, dispatch and end.

    Attributes:
        num_waiting, waiting_bytes, waiting_tokens: over all tenants.
    """

    def __init__(self, settings: ClassSettings, queue: QueueSettings) -> None:
        self.settings = settings
        self.num_waiting = 0
        self.waiting_bytes = 0
        self.waiting_tokens = 0
        self._queue = queue
        self._flows: dict[str, Flow] = {}
        self._total_weight = 0.0
        self._virtual_tokens = 0.0
        # A waiting flow is in one of these two, by its counter; `over` holds those above their fair share of the capacity.
        self._under: KeyedHeap[Flow] = KeyedHeap()
        self._over: KeyedHeap[Flow] = KeyedHeap()
        self._longest: KeyedHeap[Flow] = KeyedHeap()
        self._idle: OrderedDict[Flow, float] = OrderedDict()
        self._room = Room(0, 0.0, 0.0, 0.0, 0.0)

    @property
    def num_tenants(self) -> int:
        """Tenants that are remembered."""
        return len(self._flows)

    def flows(self) -> Iterator[Flow]:
        """Every tenant that is remembered, for reports; not to be changed."""
        return iter(self._flows.values())

    def excess(self, request: QueuedRequest) -> Excess:
        """By how much `request` would go beyond the bounds of the class."""
        return Excess(
            self.num_waiting + 1 - self.settings.max_requests,
            self.waiting_bytes + request.size_bytes - self.settings.max_bytes,
        )

    def holds(self, excess: Excess) -> bool:
        """Whether as much waits here, and more than nothing is asked for."""
        return excess.is_any and self.num_waiting >= excess.num_requests and self.waiting_bytes >= excess.num_bytes

    def add(self, request: QueuedRequest) -> None:
        """Let `request` wait at the end of its tenant's line. Mutates this queue only."""
        flow = self._flow(request)
        flow.waiting[request] = None
        self._count(flow, request, 1)
        self._file(flow)

    def see_room(self, room: Room) -> None:
        """Take in the capacity of the moment, by which shares are judged."""
        self._room = room

    def admit(self, request: QueuedRequest) -> None:
        """`add` and `dispatch` in one step, of a request that comes while nothing waits here."""
        assert not self.num_waiting, "who waits goes first"
        flow = self._flow(request)
        self._virtual_tokens = max(self._virtual_tokens, flow.served_tokens)
        self._take_off(flow, request)

    def remove(self, request: QueuedRequest, now_s: float) -> None:
        """Take a waiting request out, wherever it stands."""
        flow = self._flows[request.tenant]
        del flow.waiting[request]
        self._count(flow, request, -1)
        self._file(flow)
        self._note_idle(flow, now_s)

    def next(self, room: Room) -> QueuedRequest | None:
        """The request whose turn it is, which stays; None if there is none or it does not fit.

        It is that of the lowest counter. When it would take what those over their share leave free, it is that of the
        lowest counter among the others. One that does not fit is waited for: else a large one would wait for ever.
        """
        self._room = room
        first = self._first()
        if first is None or room.fits(first.head.tokens, leaving=self._queue.headroom):
            return None if first is None else first.head
        while (entry := self._under.first()) is not None:
            flow = entry[1]
            if not self._is_over(flow):
                return flow.head if room.fits(flow.head.tokens) else None
            self._file(flow)  # its share has shrunk since it was filed
        return None

    def head(self) -> QueuedRequest | None:
        """The request of the lowest counter, whether it fits or not."""
        first = self._first()
        return None if first is None else first.head

    def is_held_back(self, room: Room) -> bool:
        """Whether there is room for the first in turn, and only its tenant's share keeps it back."""
        head = self.head()
        return head is not None and room.fits(head.tokens)

    def dispatch(self, request: QueuedRequest, now_s: float) -> None:
        """Move a waiting request into flight and charge its tenant for the tokens reserved."""
        flow = self._flows[request.tenant]
        first = self._first()
        assert first is not None, "the flow itself is waiting"
        self._virtual_tokens = max(self._virtual_tokens, first.served_tokens)
        del flow.waiting[request]
        self._count(flow, request, -1)
        self._take_off(flow, request)
        self._file(flow)

    def settle(self, request: QueuedRequest, actual_tokens: int, now_s: float) -> None:
        """Take a request out of flight and charge its tenant for what it really was."""
        flow = self._flows[request.tenant]
        flow.in_flight_requests -= 1
        flow.in_flight_tokens -= request.tokens
        flow.served_tokens += (actual_tokens - request.tokens) / flow.weight
        self._file(flow)
        self._note_idle(flow, now_s)

    def displaceable(self, request: QueuedRequest, excess: Excess) -> list[QueuedRequest]:
        """Whom `request` may push out to make up for `excess`: the newest of the longest line, if that stays no shorter.

        Longest queue drop (Suter et al., 1998): a tenant that floods the queue loses its own requests, not those of others.
        Empty if there is nobody to push out or the room would not suffice. Mutates nothing.
        """
        entry = self._longest.first()
        own = self._flows.get(request.tenant)
        if entry is None or entry[1] is own:
            return []
        longest = entry[1]
        num_own, own_bytes = (0, 0) if own is None else (len(own.waiting), own.waiting_bytes)
        own_length = self._length(num_own + 1, own_bytes + request.size_bytes, request.weight)
        victims: list[QueuedRequest] = []
        num_left, bytes_left = len(longest.waiting), longest.waiting_bytes
        for victim in reversed(longest.waiting):
            num_left, bytes_left = num_left - 1, bytes_left - victim.size_bytes
            if self._length(num_left, bytes_left, longest.weight) < own_length:
                return []
            victims.append(victim)
            excess = Excess(excess.num_requests - 1, excess.num_bytes - victim.size_bytes)
            if not excess.is_any:
                return victims
        return []

    def newest_of_longest(self) -> QueuedRequest | None:
        """The last request in the longest line."""
        entry = self._longest.first()
        return None if entry is None else next(reversed(entry[1].waiting))

    def forget_idle(self, now_s: float) -> None:
        """Forget tenants that have been away for longer than `linger_s`, and those away longest if there are too many."""
        while self._idle:
            flow, since_s = next(iter(self._idle.items()))
            if now_s - since_s <= self._queue.linger_s and len(self._idle) <= self._queue.max_tenants:
                return
            del self._idle[flow]
            del self._flows[flow.tenant]
            self._total_weight -= flow.weight

    def check_invariants(self) -> None:
        """Assert that every count agrees with the requests it stands for."""
        flows = list(self._flows.values())
        waiting = [request for flow in flows for request in flow.waiting]
        assert self.num_waiting == len(waiting)
        assert self.waiting_bytes == sum(request.size_bytes for request in waiting)
        assert self.waiting_tokens == sum(request.tokens for request in waiting)
        assert self.num_waiting <= self.settings.max_requests
        assert self.waiting_bytes <= self.settings.max_bytes
        assert set(self._idle) == {flow for flow in flows if flow.is_idle}
        assert len(self._idle) <= self._queue.max_tenants
        assert abs(self._total_weight - sum(flow.weight for flow in flows)) <= 1e-6 * (1.0 + self._total_weight)
        for flow in flows:
            assert flow.waiting_bytes == sum(request.size_bytes for request in flow.waiting)
            assert flow.in_flight_requests >= 0
            assert flow.in_flight_tokens >= 0
            assert (flow in self._under) + (flow in self._over) == bool(flow.waiting)
            assert (flow in self._longest) == bool(flow.waiting)

    def _flow(self, request: QueuedRequest) -> Flow:
        """The flow that `request` is about to join, with the weight that it brings."""
        flow = self._flows.get(request.tenant)
        if flow is None:
            flow = self._flows[request.tenant] = Flow(request.tenant, request.weight, self._virtual_tokens)
            self._total_weight += request.weight
        elif flow.weight != request.weight:
            self._total_weight += request.weight - flow.weight
            flow.weight = request.weight
        self._idle.pop(flow, None)
        if not flow.waiting:
            flow.served_tokens = max(flow.served_tokens, self._virtual_tokens)
        return flow

    @staticmethod
    def _take_off(flow: Flow, request: QueuedRequest) -> None:
        flow.in_flight_requests += 1
        flow.in_flight_tokens += request.tokens
        flow.served_tokens += request.tokens / flow.weight

    def _first(self) -> Flow | None:
        under, over = self._under.first(), self._over.first()
        if under is None or over is None:
            either = under or over
            return None if either is None else either[1]
        return under[1] if under[0] <= over[0] else over[1]

    def _file(self, flow: Flow) -> None:
        """Put `flow` where its counter, its share and the length of its line place it."""
        if not flow.waiting:
            if flow in self._longest:
                for heap in (self._under, self._over, self._longest):
                    heap.discard(flow)
            return
        here, there = (self._over, self._under) if self._is_over(flow) else (self._under, self._over)
        there.discard(flow)
        here.rank(flow, flow.served_tokens)
        self._longest.rank(flow, -self._length(len(flow.waiting), flow.waiting_bytes, flow.weight))

    def _is_over(self, flow: Flow) -> bool:
        """Whether one more request takes a tenant above its fair share of the capacity. Its first never does."""
        if not flow.in_flight_requests:
            return False
        if len(self._flows) == 1:
            return self._queue.keeps_headroom_alone
        taken = self._room.share(flow.in_flight_requests + 1, flow.in_flight_tokens + flow.head.tokens)
        return taken > flow.weight / self._total_weight + 1e-9

    def _length(self, num_requests: int, num_bytes: int, weight: float) -> float:
        """Part of the class that a line takes, by requests or bytes, for its tenant's weight."""
        of_requests = num_requests / max(1, self.settings.max_requests)
        return max(of_requests, num_bytes / max(1, self.settings.max_bytes)) / weight

    def _count(self, flow: Flow, request: QueuedRequest, sign: int) -> None:
        self.num_waiting += sign
        self.waiting_bytes += sign * request.size_bytes
        self.waiting_tokens += sign * request.tokens
        flow.waiting_bytes += sign * request.size_bytes

    def _note_idle(self, flow: Flow, now_s: float) -> None:
        if flow.is_idle:
            self._idle[flow] = now_s
            self.forget_idle(now_s)
