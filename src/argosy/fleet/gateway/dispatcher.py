"""Holds requests back until the pool that answers them has room, and lets them go one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from argosy.fleet.policies.fair_queue import FairQueue
from argosy.fleet.policies.outcomes import Outcome, RequestDropped
from argosy.fleet.policies.queued_request import QueuedRequest, QueueState
from argosy.fleet.policies.saturation import Room

_MESSAGES = {
    Outcome.REJECTED_CAPACITY: "the queue of the model is full",
    Outcome.REJECTED_NO_BACKEND: "no backend of the model was ready in time",
    Outcome.REJECTED_SHUTTING_DOWN: "the gateway is shutting down",
    Outcome.EVICTED_TTL: "the request waited in the queue for as long as it may",
    Outcome.EVICTED_DEADLINE: "the request could not be answered by its deadline any more",
    Outcome.EVICTED_PRIORITY: "the request gave way to one of a higher priority",
    Outcome.EVICTED_QUEUE_PRESSURE: "the queue is full, and its tenant has the most requests in it",
    Outcome.EVICTED_CLIENT_GONE: "the client is gone",
}
_MIN_TIMER_S = 0.001


class QueueTicket:
    """A place among the requests in flight of one pool, held until `leave`."""

    __slots__ = ("_dispatcher", "_preempted", "_tell", "request")

    def __init__(self, dispatcher: PoolDispatcher, request: QueuedRequest) -> None:
        self._dispatcher = dispatcher
        self._tell: Callable[[RequestDropped], None] | None = None
        self._preempted: RequestDropped | None = None
        self.request = request

    def leave(self, served_tokens: int) -> None:
        """Give the place back, having cost so many tokens. Idempotent; lets the next one go."""
        self._dispatcher.leave(self.request, served_tokens)

    def on_preempt(self, tell: Callable[[RequestDropped], None]) -> None:
        """Call `tell` once when the request must end for one of a higher class; at once if it must already.

        The owner then ends it and leaves. Nothing happens to a request whose owner has not asked to be told.
        """
        self._tell = tell
        if self._preempted is not None:
            tell(self._preempted)

    def preempt(self, dropped: RequestDropped) -> None:
        """Tell the owner to end it; for the dispatcher alone."""
        self._preempted = dropped
        if self._tell is not None:
            self._tell(dropped)


class PoolDispatcher:
    """The queue of one pool, driven by an event loop. Its methods belong to that loop's thread.

    Something may go whenever a request arrives, ends or gives up. Each of those pumps: as many requests as there is room for
    are moved into flight, and the waiter of each, and no other, is woken. What changes a pool's room from outside (a load
    report, a backend that is back) may call `poke`; while anything waits, the room is looked at every `poll_s` in any case,
    so that nothing waits for a call that was forgotten.

    Args:
        room: what the pool can take at a time, given the requests and tokens that were let go.
        may_wait: whether it is worth waiting while no backend is ready, as while one loads its model.
    """

    def __init__(
        self,
        queue: FairQueue,
        now_s: Callable[[], float],
        room: Callable[[int, int, float], Room],
        *,
        may_wait: Callable[[float], bool] = lambda _: False,
        poll_s: float = 0.05,
    ) -> None:
        self.queue = queue
        self._now_s = now_s
        self._room = room
        self._may_wait = may_wait
        self._poll_s = poll_s
        self._waiters: dict[QueuedRequest, asyncio.Future[QueueTicket]] = {}
        self._tickets: dict[QueuedRequest, QueueTicket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def saturation(self) -> float:
        """How full the pool is, 1 is full: what was let go counts, what waits does not. For soft quotas and autoscaling."""
        return self._room_now(self._now_s()).saturation

    async def enter(self, request: QueuedRequest) -> QueueTicket:
        """Wait for a place. Cancellation takes the request out of the queue, or gives its place to the next.

        Raises:
            RequestDropped: refused, or evicted while it waited.
        """
        now_s = self._now_s()
        if self._closed:
            raise self._dropped(Outcome.REJECTED_SHUTTING_DOWN, now_s)
        room = self._room_now(now_s)
        if not room.num_ready and not self._may_wait(now_s):
            raise RequestDropped(Outcome.REJECTED_NO_BACKEND, "no backend of the model is ready", retry_after_s=1.0)
        if self.queue.admit_at_once(request, room, now_s):
            ticket = self._tickets[request] = QueueTicket(self, request)
            return ticket
        outcome = self.queue.offer(request, now_s)
        if outcome is not None:
            self._pump(now_s)
            raise self._dropped(outcome, now_s)
        waiter: asyncio.Future[QueueTicket] = asyncio.get_running_loop().create_future()
        self._waiters[request] = waiter
        try:
            self._pump(now_s, room)
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # it came too late to be raised; asyncio is not to complain of it
            self._abandon(request)
            raise
        finally:
            self._waiters.pop(request, None)

    def leave(self, request: QueuedRequest, served_tokens: int) -> None:
        """A request in flight has ended. Idempotent."""
        if self._tickets.pop(request, None) is not None:
            now_s = self._now_s()
            self.queue.settle(request, served_tokens, now_s)
            if self.queue.num_waiting:
                self._pump(now_s)

    def poke(self) -> None:
        """The room may have changed."""
        self._pump(self._now_s())

    def close(self) -> None:
        """Refuse what comes and evict what waits. What is in flight stays so."""
        self._closed = True
        now_s = self._now_s()
        self.queue.evict_all(Outcome.REJECTED_SHUTTING_DOWN, now_s)
        self._tell_evicted(now_s)
        self._set_timer(now_s)

    def check_invariants(self) -> None:
        """Assert that all that waits has a waiter, and all that is in flight a ticket."""
        self.queue.check_invariants()
        waiting = [request for request in self._waiters if request.state is QueueState.WAITING]
        assert len(waiting) == self.queue.num_waiting
        assert len(self._tickets) == self.queue.num_in_flight
        assert (self._timer is not None) == bool(self.queue.num_waiting)

    def _pump(self, now_s: float, room: Room | None = None) -> None:
        """Let go what there is room for; `room` is looked at unless it is given."""
        room = room or self._room_now(now_s)
        while (request := self.queue.next_dispatchable(room, now_s)) is not None:
            room = room.less(request.tokens)
            ticket = self._tickets[request] = QueueTicket(self, request)
            waiter = self._waiters[request]
            if waiter.done():  # cancelled, and its task has not run since
                del self._tickets[request]
                self.queue.settle(request, 0, now_s)
                room = room.more(1, request.tokens)
            else:
                waiter.set_result(ticket)
        self._tell_evicted(now_s)
        for victim in self.queue.preempt(room, now_s):
            self._tickets[victim].preempt(self._dropped(Outcome.EVICTED_PRIORITY, now_s))
        self._set_timer(now_s)

    def _abandon(self, request: QueuedRequest) -> None:
        now_s = self._now_s()
        if not self.queue.withdraw(request, now_s):
            self.leave(request, 0)
        self._pump(now_s)

    def _tell_evicted(self, now_s: float) -> None:
        for eviction in self.queue.take_evicted(now_s):
            outcome = eviction.outcome
            if outcome is Outcome.EVICTED_TTL and not self._room_now(now_s).num_ready:
                outcome = Outcome.REJECTED_NO_BACKEND
            waiter = self._waiters[eviction.request]
            if not waiter.done():
                waiter.set_exception(self._dropped(outcome, now_s))

    def _room_now(self, now_s: float) -> Room:
        return self._room(self.queue.num_in_flight, self.queue.in_flight_tokens, now_s)

    def _dropped(self, outcome: Outcome, now_s: float) -> RequestDropped:
        return RequestDropped(outcome, _MESSAGES[outcome], retry_after_s=self.queue.retry_after_s(now_s))

    def _set_timer(self, now_s: float) -> None:
        """One timer while anything waits, for the nearest expiry or the next look at the room."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.queue.num_waiting:
            delay_s = min(self._poll_s, max(_MIN_TIMER_S, self.queue.next_expiry_s() - now_s))
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump(self._now_s())
