"""Which request is admitted, which waits, which goes next, and which must give way."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from argosy.errors import ConfigError
from argosy.fleet.policies.class_queue import ClassQueue, Excess
from argosy.fleet.policies.drain_rate import DrainRate
from argosy.fleet.policies.keyed_heap import KeyedHeap
from argosy.fleet.policies.outcomes import Outcome
from argosy.fleet.policies.priorities import Priority, QueueSettings
from argosy.fleet.policies.queued_request import QueuedRequest, QueueState
from argosy.fleet.policies.saturation import Room

_DESCENDING = tuple(sorted(Priority, reverse=True))


@dataclass(frozen=True, slots=True)
class Eviction:
    """A request that left the queue without being dispatched, and why."""

    request: QueuedRequest
    outcome: Outcome


class FairQueue:
    """The requests of one pool, from offer to settlement. Not thread-safe: calls must not overlap.

        offer -> waiting -> next_dispatchable -> in flight -> settle
                    |                                |
                    +-> take_evicted, withdraw       +-> preempt names it; its owner ends it, and settles

    Between classes priority is strict, but for each class's guaranteed share. Within one, tenants share by weighted max-min
    fairness over tokens (`class_queue.py`). Every method first evicts what has expired by its `now_s`; `take_evicted` gives
    each eviction out once. All operations but `preempt` are O(log n), amortized.
    """

    def __init__(self, settings: QueueSettings | None = None) -> None:
        self.settings = settings if settings is not None else QueueSettings()
        self._classes: Mapping[Priority, ClassQueue] = {
            priority: ClassQueue(self.settings.of(priority), self.settings) for priority in Priority
        }
        self._credit_tokens = dict.fromkeys(Priority, 0.0)
        self._expiry: KeyedHeap[QueuedRequest] = KeyedHeap()
        self._evicted: list[Eviction] = []
        self._in_flight: dict[Priority, OrderedDict[QueuedRequest, None]] = {each: OrderedDict() for each in Priority}
        self._in_flight_tokens = 0
        self._yielding_requests = 0
        self._yielding_tokens = 0
        self._drain = DrainRate()

    @property
    def num_waiting(self) -> int:
        """Requests that wait, in all classes."""
        return sum(each.num_waiting for each in self._classes.values())

    @property
    def waiting_bytes(self) -> int:
        """Bytes that they hold."""
        return sum(each.waiting_bytes for each in self._classes.values())

    @property
    def waiting_tokens(self) -> int:
        """Tokens that they are expected to cost."""
        return sum(each.waiting_tokens for each in self._classes.values())

    @property
    def num_in_flight(self) -> int:
        """Requests dispatched and not settled."""
        return sum(len(each) for each in self._in_flight.values())

    @property
    def in_flight_tokens(self) -> int:
        """Tokens reserved for them."""
        return self._in_flight_tokens

    def class_queue(self, priority: Priority) -> ClassQueue:
        """One class, for reports; not to be changed."""
        return self._classes[priority]

    def offer(self, request: QueuedRequest, now_s: float) -> Outcome | None:
        """Let `request` wait. Return None if it does, or the outcome with which it is refused.

        In a full class a tenant with a shorter line pushes out the newest of the longest line; in a full queue a critical
        request pushes out best-effort ones. Those are in `take_evicted`.

        Raises:
            ConfigError: the request has been offered before.
        """
        if request.state is not QueueState.OUTSIDE:
            raise ConfigError(f"request {request.request_id!r} is {request.state.value} already: offer it once")
        self._expire(now_s)
        queue = self._classes[request.priority]
        ttl_s = queue.settings.ttl_s if request.ttl_s is None else min(request.ttl_s, queue.settings.ttl_s)
        if request.last_start_s <= now_s:
            return Outcome.EVICTED_DEADLINE
        if not self._make_place(request, queue, now_s):
            return Outcome.REJECTED_CAPACITY
        request.state, request.arrived_s = QueueState.WAITING, now_s
        request.expires_s = min(now_s + ttl_s, request.last_start_s)
        queue.add(request)
        if request.expires_s < math.inf:
            self._expiry.rank(request, request.expires_s)
        return None

    def admit_at_once(self, request: QueuedRequest, room: Room, now_s: float) -> bool:
        """Whether `request` went into flight without waiting: as `offer` and `next_dispatchable` would have it, in one step.

        That is so where nothing waits and it fits beside the headroom, which is most requests of a fleet that is not full.
        False otherwise, and nothing has been done.
        """
        queue = self._classes[request.priority]
        bounds = queue.settings
        if (
            request.state is not QueueState.OUTSIDE
            or self.num_waiting
            or min(bounds.max_requests, self.settings.max_requests) < 1
            or request.size_bytes > min(bounds.max_bytes, self.settings.max_bytes)
            or request.last_start_s <= now_s
            or not room.fits(request.tokens, leaving=self.settings.headroom)
        ):
            return False
        for each in self._classes.values():
            each.forget_idle(now_s)
            each.see_room(room)
        credit = self._credit_tokens[request.priority]
        is_due = credit > 0.0 and credit >= request.tokens
        request.arrived_s = now_s
        queue.admit(request)
        self._set_in_flight(request, now_s)
        request.is_preemptible = request.priority is Priority.BEST_EFFORT and not is_due
        for priority in self._credit_tokens:
            self._credit_tokens[priority] = 0.0
        return True

    def next_dispatchable(self, room: Room, now_s: float) -> QueuedRequest | None:
        """Move the request whose turn it is into flight and return it; None if none waits or the next does not fit `room`.

        The caller owns it from here on, and ends it with `settle`.
        """
        self._expire(now_s)
        for priority, is_due in self._order():
            queue = self._classes[priority]
            request = queue.next(room)
            if request is not None:
                self._dispatch(request, now_s)
                request.is_preemptible = priority is Priority.BEST_EFFORT and not is_due
                return request
            if queue.num_waiting and not (is_due and queue.is_held_back(room)):
                return None  # what is free is kept for this class: for the first in turn, or for who may come
        return None

    def settle(self, request: QueuedRequest, actual_tokens: int, now_s: float) -> None:
        """A request in flight has ended, having cost `actual_tokens`: 0 if no backend did anything for it. Idempotent."""
        if request.state is not QueueState.IN_FLIGHT:
            return
        request.state = QueueState.OUTSIDE
        del self._in_flight[request.priority][request]
        self._in_flight_tokens -= request.tokens
        if request.is_yielding:
            self._yielding_requests -= 1
            self._yielding_tokens -= request.tokens
        self._classes[request.priority].settle(request, actual_tokens, now_s)
        self._drain.add(actual_tokens, now_s)

    def withdraw(self, request: QueuedRequest, now_s: float) -> bool:
        """Take a request out that waits, because its client is gone; False if it does not wait. No eviction is recorded."""
        if request.state is not QueueState.WAITING:
            return False
        self._take_out(request, now_s)
        return True

    def preempt(self, room: Room, now_s: float) -> tuple[QueuedRequest, ...]:
        """Best-effort requests in flight that must end so that the critical request whose turn it is fits.

        Those dispatched last, which have the least to lose. Each is named once, and counts as room to come until it is
        settled. Empty if no critical request waits, if it fits or gets room from those named before, or if ending all of
        them would not make room.
        """
        self._expire(now_s)
        head = self._classes[Priority.CRITICAL].head()
        if head is None or room.num_ready == 0:
            return ()
        freed = room.more(self._yielding_requests, self._yielding_tokens)
        victims: list[QueuedRequest] = []
        for request in reversed(self._in_flight[Priority.BEST_EFFORT]):
            if freed.fits(head.tokens):
                break
            if request.is_preemptible and not request.is_yielding:
                victims.append(request)
                freed = freed.more(1, request.tokens)
        if not victims or not freed.fits(head.tokens):
            return ()
        for request in victims:
            request.is_yielding = True
            self._yielding_requests += 1
            self._yielding_tokens += request.tokens
        return tuple(victims)

    def evict_all(self, outcome: Outcome, now_s: float) -> None:
        """Evict everything that waits, as when the gateway stops."""
        self._expire(now_s)
        for queue in self._classes.values():
            while (request := queue.head()) is not None:
                self._evict(request, outcome, now_s)

    def take_evicted(self, now_s: float) -> tuple[Eviction, ...]:
        """What was evicted since the last call, in order. Whoever waits for one of them must be told."""
        self._expire(now_s)
        evicted, self._evicted = tuple(self._evicted), []
        return evicted

    def next_expiry_s(self) -> float:
        """When the next request expires if it still waits; infinity if none will."""
        first = self._expiry.first()
        return math.inf if first is None else first[0]

    def retry_after_s(self, now_s: float) -> float:
        """About when there will be a place: the tokens that wait over the rate of late, within [1, 60] s."""
        rate = self._drain.tokens_per_s(now_s)
        return min(60.0, max(1.0, self.waiting_tokens / rate)) if rate > 0.0 else 1.0

    def check_invariants(self) -> None:
        """Assert that every request is in one place, and every count agrees with the requests it stands for."""
        for priority, queue in self._classes.items():
            queue.check_invariants()
            flows = list(queue.flows())
            assert sum(flow.in_flight_requests for flow in flows) == len(self._in_flight[priority])
            for request in (request for flow in flows for request in flow.waiting):
                assert request.state is QueueState.WAITING
                assert (request in self._expiry) == (request.expires_s < math.inf)
        in_flight = [request for each in self._in_flight.values() for request in each]
        assert all(request.state is QueueState.IN_FLIGHT for request in in_flight)
        assert self._in_flight_tokens == sum(request.tokens for request in in_flight)
        yielding = [request for request in in_flight if request.is_yielding]
        assert self._yielding_requests == len(yielding)
        assert self._yielding_tokens == sum(request.tokens for request in yielding)
        assert self.num_waiting <= self.settings.max_requests
        assert self.waiting_bytes <= self.settings.max_bytes
        assert len(self._expiry) <= self.num_waiting

    def _order(self) -> list[tuple[Priority, bool]]:
        """Classes that have earned a turn by their guaranteed share, lowest first, then all from the highest down."""
        in_turn = [(each, False) for each in _DESCENDING]
        due = [(each, True) for each in reversed(_DESCENDING) if self._is_due(each)]
        return due + in_turn

    def _is_due(self, priority: Priority) -> bool:
        credit = self._credit_tokens[priority]
        return credit > 0.0 and credit >= self._turn_tokens(self._classes[priority])

    @staticmethod
    def _turn_tokens(queue: ClassQueue) -> float:
        """What the next turn of a class costs."""
        head = queue.head()
        return math.inf if head is None else head.tokens

    def _dispatch(self, request: QueuedRequest, now_s: float) -> None:
        queue = self._classes[request.priority]
        queue.dispatch(request, now_s)
        self._expiry.discard(request)
        self._set_in_flight(request, now_s)
        for priority, each in self._classes.items():
            if not each.num_waiting:
                self._credit_tokens[priority] = 0.0
            elif priority is request.priority:
                self._credit_tokens[priority] = max(0.0, self._credit_tokens[priority] - request.tokens)
            elif each.settings.guaranteed_share:
                earned = self._credit_tokens[priority] + each.settings.guaranteed_share * request.tokens
                self._credit_tokens[priority] = min(earned, max(self._turn_tokens(each), self._credit_tokens[priority]))

    def _set_in_flight(self, request: QueuedRequest, now_s: float) -> None:
        request.state, request.dispatched_s, request.is_yielding = QueueState.IN_FLIGHT, now_s, False
        self._in_flight[request.priority][request] = None
        self._in_flight_tokens += request.tokens

    def _make_place(self, request: QueuedRequest, queue: ClassQueue, now_s: float) -> bool:
        """Whether there is a place, making one if `request` may; evicts nothing unless that makes one."""
        class_over = queue.excess(request)
        total_over = Excess(
            self.num_waiting + 1 - self.settings.max_requests,
            self.waiting_bytes + request.size_bytes - self.settings.max_bytes,
        )
        below_gives_way = request.priority is Priority.CRITICAL and self._classes[Priority.BEST_EFFORT].holds(total_over)
        needed = class_over if below_gives_way else class_over.at_least(total_over)
        if needed.is_any:
            victims = queue.displaceable(request, needed)
            if not victims:
                return False
            for victim in victims:
                self._evict(victim, Outcome.EVICTED_QUEUE_PRESSURE, now_s)
        while self._excess(request).is_any:
            newest = self._classes[Priority.BEST_EFFORT].newest_of_longest()
            assert newest is not None, "the best-effort class was found to hold enough"
            self._evict(newest, Outcome.EVICTED_PRIORITY, now_s)
        return True

    def _excess(self, request: QueuedRequest) -> Excess:
        """By how much `request` would go beyond the bounds of the whole queue."""
        return Excess(
            self.num_waiting + 1 - self.settings.max_requests,
            self.waiting_bytes + request.size_bytes - self.settings.max_bytes,
        )

    def _expire(self, now_s: float) -> None:
        while (first := self._expiry.first()) is not None and first[0] <= now_s:
            request = first[1]
            in_time = request.last_start_s > now_s
            self._evict(request, Outcome.EVICTED_TTL if in_time else Outcome.EVICTED_DEADLINE, now_s)
        for queue in self._classes.values():
            queue.forget_idle(now_s)

    def _evict(self, request: QueuedRequest, outcome: Outcome, now_s: float) -> None:
        self._take_out(request, now_s)
        self._evicted.append(Eviction(request, outcome))

    def _take_out(self, request: QueuedRequest, now_s: float) -> None:
        request.state = QueueState.OUTSIDE
        self._expiry.discard(request)
        self._classes[request.priority].remove(request, now_s)
