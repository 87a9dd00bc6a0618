import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from argosy.errors import ConfigError
from argosy.fleet.policies.fair_queue import FairQueue
from argosy.fleet.policies.outcomes import Outcome
from argosy.fleet.policies.priorities import ClassSettings, Priority, QueueSettings
from argosy.fleet.policies.queued_request import QueuedRequest, QueueState
from argosy.fleet.policies.saturation import Room

CRITICAL, STANDARD, BEST_EFFORT = Priority.CRITICAL, Priority.STANDARD, Priority.BEST_EFFORT
ENDLESS = Room(1, math.inf, math.inf, math.inf, math.inf)
FULL = Room(1, 4, 0, math.inf, math.inf)


def request(name: str, tenant: str = "t", priority: Priority = STANDARD, tokens: int = 10, **fields) -> QueuedRequest:
    return QueuedRequest(name, tenant, priority, tokens, **fields)


def places(total: int, used: int = 0) -> Room:
    return Room(1, total, total - used, math.inf, math.inf)


def offer(queue: FairQueue, *requests: QueuedRequest, now_s: float = 0.0) -> None:
    for each in requests:
        assert queue.offer(each, now_s) is None


def order(queue: FairQueue, room: Room = ENDLESS, now_s: float = 0.0) -> list[str]:
    """Ids in the order of dispatch; each is settled at once for what it was expected to cost."""
    names = []
    while (each := queue.next_dispatchable(room, now_s)) is not None:
        names.append(each.request_id)
        queue.settle(each, each.tokens, now_s)
    return names


def evicted(queue: FairQueue, now_s: float = 0.0) -> dict[str, Outcome]:
    return {each.request.request_id: each.outcome for each in queue.take_evicted(now_s)}


# --- whose turn it is ------------------------------------------------------------------------------------------------


def test_one_tenant_is_served_in_order_of_arrival():
    queue = FairQueue()
    offer(queue, *(request(f"r{i}") for i in range(5)))
    assert order(queue) == ["r0", "r1", "r2", "r3", "r4"]


def test_a_flood_does_not_keep_another_tenant_waiting():
    queue = FairQueue()
    offer(queue, *(request(f"flood{i}", "flood") for i in range(50)), request("light", "light"))
    assert order(queue).index("light") <= 1


def test_tokens_are_shared_and_not_requests():
    queue = FairQueue()
    offer(queue, *(request(f"long{i}", "long", tokens=100) for i in range(10)))
    offer(queue, *(request(f"short{i}", "short", tokens=10) for i in range(100)))
    first = order(queue)[:55]
    assert sum(name.startswith("long") for name in first) == pytest.approx(5, abs=1)


def test_weights_are_kept():
    queue = FairQueue()
    offer(queue, *(request(f"a{i}", "a", weight=3.0) for i in range(90)))
    offer(queue, *(request(f"b{i}", "b") for i in range(90)))
    assert sum(name.startswith("a") for name in order(queue)[:80]) == pytest.approx(60, abs=1)


def test_an_estimate_is_put_right_when_the_true_cost_is_known():
    """a's requests cost ten times what was expected: after the first of each, b gets its share of what was really served."""
    queue, served = FairQueue(), {"a": 0, "b": 0}
    offer(queue, *(request(f"{tenant}{i}", tenant) for i in range(200) for tenant in "ab"))
    for _ in range(110):
        each = queue.next_dispatchable(ENDLESS, 0.0)
        cost = 100 if each.tenant == "a" else 10
        served[each.tenant] += cost
        queue.settle(each, cost, 0.0)
    assert served["a"] == pytest.approx(served["b"], abs=100)


def test_a_reservation_counts_before_it_is_settled():
    queue = FairQueue()
    offer(queue, *(request(f"{tenant}{i}", tenant) for tenant in "ab" for i in range(4)))
    names = [queue.next_dispatchable(ENDLESS, 0.0).tenant for _ in range(8)]
    assert names == ["a", "b"] * 4


@pytest.mark.parametrize("was_there_before", [True, False])
def test_nobody_saves_up_a_claim_by_staying_away(was_there_before):
    queue = FairQueue()
    if was_there_before:
        offer(queue, request("early", "b"))
        assert order(queue) == ["early"]
    offer(queue, *(request(f"a{i}", "a") for i in range(300)))
    for _ in range(200):
        queue.settle(queue.next_dispatchable(ENDLESS, 0.0), 10, 0.0)
    offer(queue, *(request(f"b{i}", "b") for i in range(100)))
    first = order(queue)[:20]
    assert sum(name.startswith("b") for name in first) == pytest.approx(10, abs=1)


def test_what_was_served_is_not_forgotten_by_a_short_absence():
    queue = FairQueue(QueueSettings(linger_s=60.0))
    offer(queue, request("a0", "a", tokens=1000), request("b0", "b", tokens=10))
    assert order(queue) == ["a0", "b0"]
    offer(queue, request("a1", "a"), *(request(f"b{i}", "b") for i in range(1, 9)), now_s=1.0)
    assert order(queue, now_s=1.0)[-1] == "a1"


@pytest.mark.parametrize("capacity", [100_000, 60_000])
def test_shares_are_max_min_fair(capacity):
    """Demands of 30k, 20k and 80k tokens a second on 100k: 30k, 20k and 50k. On 60k everybody gets 20k."""
    demands = {"x": 30_000, "y": 20_000, "z": 80_000}
    expected = {"x": 30_000, "y": 20_000, "z": 50_000} if capacity == 100_000 else dict.fromkeys("xyz", 20_000)
    queue = FairQueue(QueueSettings(standard=ClassSettings(max_requests=100_000), max_requests=100_000))
    served, budget, per_request, seconds = dict.fromkeys(demands, 0), 0, 500, 30
    for step in range(seconds * 10):
        now_s = step / 10
        for tenant, rate in demands.items():
            offer(queue, *(request("r", tenant, tokens=per_request) for _ in range(rate // per_request // 10)), now_s=now_s)
        budget += capacity // 10
        while budget >= per_request and (each := queue.next_dispatchable(ENDLESS, now_s)) is not None:
            budget -= per_request
            served[each.tenant] += per_request
            queue.settle(each, per_request, now_s)
    for tenant, rate in expected.items():
        assert served[tenant] / seconds == pytest.approx(rate, rel=0.01)


@given(
    costs=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 200)), min_size=1, max_size=150),
    weights=st.fixed_dictionaries({tenant: st.sampled_from([0.5, 1.0, 3.0]) for tenant in "abcd"}),
)
@settings(max_examples=60, deadline=None)
def test_tenants_that_wait_are_never_further_apart_than_two_requests(costs, weights):
    """Start-time fair queueing's bound: |W_i / w_i - W_j / w_j| <= c_i / w_i + c_j / w_j while both are backlogged."""
    queue = FairQueue()
    offer(queue, *(request("r", tenant, tokens=tokens, weight=weights[tenant]) for tenant, tokens in costs))
    left = {tenant: sum(each == tenant for each, _ in costs) for tenant in "abcd"}
    largest = {tenant: max((t for each, t in costs if each == tenant), default=0) / weights[tenant] for tenant in "abcd"}
    served = dict.fromkeys("abcd", 0.0)
    backlogged = {tenant for tenant, count in left.items() if count}
    while (each := queue.next_dispatchable(ENDLESS, 0.0)) is not None:
        served[each.tenant] += each.tokens / weights[each.tenant]
        left[each.tenant] -= 1
        queue.settle(each, each.tokens, 0.0)
        backlogged &= {tenant for tenant, count in left.items() if count}
        for one in backlogged:
            for other in backlogged:
                assert abs(served[one] - served[other]) <= largest[one] + largest[other] + 1e-6


# --- room ------------------------------------------------------------------------------------------------------------


def test_one_that_does_not_fit_is_waited_for_and_not_passed():
    queue = FairQueue()
    offer(queue, request("large", "a", tokens=90), request("small", "b", tokens=1))
    room = Room(1, math.inf, math.inf, 100, 50)
    assert queue.next_dispatchable(room, 0.0) is None
    assert order(queue, Room(1, math.inf, math.inf, 100, 95)) == ["large", "small"]


def test_one_larger_than_everything_goes_when_nothing_else_is_there():
    queue = FairQueue()
    offer(queue, request("huge", tokens=500))
    assert order(queue, Room(1, math.inf, math.inf, 100, 99)) == []
    assert order(queue, Room(1, math.inf, math.inf, 100, 100)) == ["huge"]


def test_a_pool_without_backends_takes_nothing():
    queue = FairQueue()
    offer(queue, request("r"))
    assert order(queue, Room(0, 4, 4, math.inf, math.inf)) == []


def fill(queue: FairQueue, total: int) -> list[QueuedRequest]:
    """Dispatch as many as go into `total` places; return those in flight."""
    inside = []
    while (each := queue.next_dispatchable(places(total, len(inside)), 0.0)) is not None:
        inside.append(each)
    return inside


def test_who_is_over_his_share_leaves_room_for_those_who_may_come_back():
    queue = FairQueue(QueueSettings(headroom=0.1))
    offer(queue, request("light0", "light"))
    assert order(queue) == ["light0"]
    offer(queue, *(request(f"flood{i}", "flood") for i in range(100)))
    assert len(fill(queue, 20)) == 18
    offer(queue, request("light1", "light"))
    assert queue.next_dispatchable(places(20, 18), 0.0).request_id == "light1"
    assert queue.next_dispatchable(places(20, 19), 0.0) is None


@pytest.mark.parametrize(("keeps", "places_taken"), [(True, 18), (False, 20)])
def test_who_is_alone_leaves_room_for_those_never_seen_unless_there_are_none(keeps, places_taken):
    queue = FairQueue(QueueSettings(headroom=0.1, keeps_headroom_alone=keeps))
    offer(queue, *(request(f"r{i}") for i in range(100)))
    assert len(fill(queue, 20)) == places_taken


def test_tenants_at_their_share_fill_the_pool():
    queue = FairQueue(QueueSettings(headroom=0.1))
    offer(queue, *(request(f"{tenant}{i}", tenant) for tenant in "abcd" for i in range(50)))
    assert len(fill(queue, 20)) == 20


def test_the_room_that_is_kept_free_is_kept_no_longer_than_the_other_may_come_back():
    queue = FairQueue(QueueSettings(headroom=0.1, linger_s=60.0, keeps_headroom_alone=False))
    offer(queue, request("light0", "light"))
    assert order(queue) == ["light0"]
    offer(queue, *(request(f"flood{i}", "flood") for i in range(100)), now_s=50.0)
    inside = [queue.next_dispatchable(places(20, used), 50.0) for used in range(18)]
    assert None not in inside
    assert queue.next_dispatchable(places(20, 18), 50.0) is None
    queue.settle(inside[0], 10, 61.0)
    assert queue.next_dispatchable(places(20, 17), 61.0) is not None
    assert queue.next_dispatchable(places(20, 18), 61.0) is not None


# --- classes ---------------------------------------------------------------------------------------------------------


def test_a_higher_class_goes_first():
    queue = FairQueue()
    offer(queue, request("b", priority=BEST_EFFORT), request("s", priority=STANDARD), request("c", priority=CRITICAL))
    assert order(queue) == ["c", "s", "b"]


def test_a_lower_class_does_not_slip_by_a_higher_one_that_waits_for_room():
    queue = FairQueue()
    offer(queue, request("c", "a", CRITICAL, tokens=90), request("s", "b", STANDARD, tokens=1))
    assert queue.next_dispatchable(Room(1, math.inf, math.inf, 100, 50), 0.0) is None


def test_a_lower_class_does_not_take_the_room_that_a_higher_one_must_leave_free():
    queue = FairQueue(QueueSettings(headroom=0.1))
    offer(queue, *(request(f"c{i}", "c", CRITICAL) for i in range(30)))
    offer(queue, *(request(f"s{i}", f"s{i}", STANDARD) for i in range(30)))
    assert [each.tenant for each in fill(queue, 20)] == ["c"] * 18


@pytest.mark.parametrize(("share", "least", "most"), [(0.1, 9, 11), (0.0, 0, 0)])
def test_a_class_gets_its_guaranteed_share_however_much_waits_above(share, least, most):
    settings_ = QueueSettings(best_effort=ClassSettings(guaranteed_share=share))
    queue = FairQueue(settings_)
    offer(queue, *(request(f"b{i}", "b", BEST_EFFORT) for i in range(50)))
    offer(queue, *(request(f"c{i}", "c", CRITICAL) for i in range(200)))
    assert least <= sum(name.startswith("b") for name in order(queue)[:110]) <= most


def test_a_low_class_whose_turn_it_is_and_that_must_leave_room_free_keeps_nobody_back():
    queue = FairQueue(QueueSettings(headroom=0.1, best_effort=ClassSettings(guaranteed_share=0.4)))
    offer(queue, *(request(f"b{i}", "b", BEST_EFFORT) for i in range(30)))
    assert len(fill(queue, 20)) == 18
    offer(queue, *(request(f"c{i}", f"c{i}", CRITICAL, tokens=50) for i in range(2)))
    assert queue.next_dispatchable(places(20, 18), 0.0).tenant == "c0"
    assert queue.next_dispatchable(places(20, 19), 0.0).tenant == "c1"


def test_a_large_request_of_a_low_class_saves_up_for_its_turn():
    queue = FairQueue(QueueSettings(best_effort=ClassSettings(guaranteed_share=0.1)))
    offer(queue, request("large", "b", BEST_EFFORT, tokens=300))
    offer(queue, *(request(f"c{i}", "c", CRITICAL) for i in range(500)))
    assert order(queue).index("large") == pytest.approx(300, abs=2)


# --- bounds and displacement -----------------------------------------------------------------------------------------


def small(max_requests: int = 4, max_bytes: int = 1000) -> QueueSettings:
    one = ClassSettings(max_requests, max_bytes)
    return QueueSettings(one, one, one, max_requests=10, max_bytes=2000)


def test_a_class_is_bounded_by_count():
    queue = FairQueue(small())
    offer(queue, *(request(f"r{i}") for i in range(4)))
    late = request("late")
    assert queue.offer(late, 0.0) is Outcome.REJECTED_CAPACITY
    assert late.state is QueueState.OUTSIDE
    assert queue.offer(request("other class", priority=CRITICAL), 0.0) is None


def test_a_class_is_bounded_by_bytes():
    queue = FairQueue(small())
    offer(queue, request("r0", size_bytes=600), request("r1", size_bytes=400))
    assert queue.offer(request("late", size_bytes=1), 0.0) is Outcome.REJECTED_CAPACITY
    assert queue.offer(request("empty"), 0.0) is None
    assert FairQueue(small()).offer(request("huge", size_bytes=1001), 0.0) is Outcome.REJECTED_CAPACITY


def test_a_flood_that_fills_the_class_loses_its_own_requests():
    queue = FairQueue(small())
    offer(queue, *(request(f"flood{i}", "flood") for i in range(4)))
    offer(queue, request("light", "light"))
    assert evicted(queue) == {"flood3": Outcome.EVICTED_QUEUE_PRESSURE}
    assert set(order(queue)) == {"flood0", "flood1", "flood2", "light"}


def test_nobody_is_pushed_out_by_one_with_as_long_a_line():
    queue = FairQueue(small())
    offer(queue, *(request(f"{tenant}{i}", tenant) for tenant in "ab" for i in range(2)))
    assert queue.offer(request("a2", "a"), 0.0) is Outcome.REJECTED_CAPACITY
    assert evicted(queue) == {}


def test_as_many_are_pushed_out_as_the_bytes_take_and_none_if_that_is_not_enough():
    queue = FairQueue(small(max_requests=10))
    offer(queue, *(request(f"flood{i}", "flood", size_bytes=100) for i in range(10)))
    assert queue.offer(request("large", "large", size_bytes=900), 0.0) is Outcome.REJECTED_CAPACITY
    assert evicted(queue) == {}
    offer(queue, request("medium", "medium", size_bytes=250))
    assert list(evicted(queue)) == ["flood9", "flood8", "flood7"]


def test_a_critical_request_displaces_queued_best_effort_ones_of_the_longest_line():
    queue = FairQueue(QueueSettings(max_requests=5))
    offer(queue, request("b", "b", BEST_EFFORT), *(request(f"a{i}", "a", BEST_EFFORT) for i in range(4)))
    assert queue.offer(request("s", "s", STANDARD), 0.0) is Outcome.REJECTED_CAPACITY
    offer(queue, request("c", "c", CRITICAL))
    assert evicted(queue) == {"a3": Outcome.EVICTED_PRIORITY}


def test_a_full_queue_without_best_effort_requests_refuses_a_critical_one():
    queue = FairQueue(QueueSettings(max_requests=2))
    offer(queue, request("s0"), request("s1"))
    assert queue.offer(request("c", "c", CRITICAL), 0.0) is Outcome.REJECTED_CAPACITY
    assert evicted(queue) == {}


def test_a_flood_that_fills_the_whole_queue_loses_its_own_requests():
    queue = FairQueue(QueueSettings(max_requests=3))
    offer(queue, *(request(f"flood{i}", "flood") for i in range(3)), request("light", "light"))
    assert evicted(queue) == {"flood2": Outcome.EVICTED_QUEUE_PRESSURE}


def test_a_request_is_offered_once():
    queue, twice = FairQueue(), request("r")
    offer(queue, twice)
    with pytest.raises(ConfigError, match="waiting already"):
        queue.offer(twice, 0.0)
    assert queue.offer(request("r"), 0.0) is None, "another request may bear the same id"


# --- preemption ------------------------------------------------------------------------------------------------------


def preemptible(queue: FairQueue, *names: str) -> list[QueuedRequest]:
    offer(queue, *(request(name, name, BEST_EFFORT) for name in names))
    return [queue.next_dispatchable(ENDLESS, 0.0) for _ in names]


def test_a_critical_request_preempts_the_youngest_of_the_running_best_effort_ones():
    queue = FairQueue()
    _old, young = preemptible(queue, "old", "young")
    offer(queue, request("s", "s", STANDARD))
    assert queue.preempt(FULL, 0.0) == ()
    offer(queue, request("c", "c", CRITICAL))
    assert queue.preempt(FULL, 0.0) == (young,)
    assert queue.preempt(FULL, 0.0) == (), "the room to come is counted on"
    queue.settle(young, 3, 0.0)
    assert queue.next_dispatchable(places(4, 3), 0.0).request_id == "c"
    queue.check_invariants()


def test_as_many_are_preempted_as_are_needed_and_none_if_that_is_not_enough():
    queue = FairQueue()
    running = preemptible(queue, "a", "b", "c")
    offer(queue, request("large", "x", CRITICAL, tokens=25))
    assert queue.preempt(Room(1, math.inf, math.inf, 100, 5), 0.0) == (running[2], running[1])
    queue = FairQueue()
    preemptible(queue, "a", "b", "c")
    offer(queue, request("large", "x", CRITICAL, tokens=60))
    assert queue.preempt(Room(1, math.inf, math.inf, 100, 5), 0.0) == ()


def test_nothing_is_preempted_while_there_is_room():
    queue = FairQueue()
    preemptible(queue, "a")
    offer(queue, request("c", "c", CRITICAL))
    assert queue.preempt(places(4, 1), 0.0) == ()


def test_what_runs_by_its_guaranteed_share_is_not_preempted():
    queue = FairQueue(QueueSettings(best_effort=ClassSettings(guaranteed_share=0.4)))
    offer(queue, request("b", "b", BEST_EFFORT), *(request(f"c{i}", "c", CRITICAL) for i in range(9)))
    running = [queue.next_dispatchable(ENDLESS, 0.0).request_id for _ in range(4)]
    assert "b" in running
    assert queue.preempt(FULL, 0.0) == ()


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_wait_ends_with_the_ttl_to_the_instant_also_for_the_head():
    queue = FairQueue(QueueSettings(standard=ClassSettings(ttl_s=5.0)))
    offer(queue, request("head"), now_s=1.0)
    assert queue.next_expiry_s() == 6.0
    assert evicted(queue, math.nextafter(6.0, 0.0)) == {}
    assert queue.next_dispatchable(ENDLESS, 6.0) is None
    assert evicted(queue, 6.0) == {"head": Outcome.EVICTED_TTL}
    assert evicted(queue, 7.0) == {}, "each eviction is given out once"
    assert queue.next_expiry_s() == math.inf


def test_a_request_may_wait_shorter_than_its_class_and_not_longer():
    queue = FairQueue(QueueSettings(standard=ClassSettings(ttl_s=5.0)))
    offer(queue, request("short", ttl_s=1.0), request("long", ttl_s=100.0))
    assert evicted(queue, 1.0) == {"short": Outcome.EVICTED_TTL}
    assert evicted(queue, 5.0) == {"long": Outcome.EVICTED_TTL}


def test_one_that_cannot_be_whole_by_its_deadline_is_given_up():
    queue = FairQueue()
    offer(queue, request("r", deadline_s=10.0, min_service_s=2.0))
    assert evicted(queue, 7.9) == {}
    assert evicted(queue, 8.0) == {"r": Outcome.EVICTED_DEADLINE}
    assert queue.offer(request("late", deadline_s=10.0, min_service_s=2.0), 8.0) is Outcome.EVICTED_DEADLINE


def test_what_has_expired_takes_no_place():
    queue = FairQueue(QueueSettings(standard=ClassSettings(max_requests=1, ttl_s=5.0)))
    offer(queue, request("old"))
    offer(queue, request("new"), now_s=5.0)
    assert evicted(queue, 5.0) == {"old": Outcome.EVICTED_TTL}


def test_one_that_is_withdrawn_is_gone_without_an_eviction():
    queue, one = FairQueue(), request("r")
    offer(queue, one)
    assert queue.withdraw(one, 0.0)
    assert not queue.withdraw(one, 0.0)
    assert evicted(queue, 100.0) == {}
    assert order(queue) == []


def test_settling_twice_counts_once():
    queue = FairQueue()
    offer(queue, request("r"))
    each = queue.next_dispatchable(ENDLESS, 0.0)
    queue.settle(each, 10, 0.0)
    queue.settle(each, 10, 0.0)
    assert (queue.num_in_flight, queue.in_flight_tokens) == (0, 0)
    queue.check_invariants()


def test_everything_that_waits_can_be_sent_away():
    queue = FairQueue()
    offer(queue, *(request(priority.label, priority=priority) for priority in Priority))
    queue.evict_all(Outcome.REJECTED_SHUTTING_DOWN, 0.0)
    assert set(evicted(queue).values()) == {Outcome.REJECTED_SHUTTING_DOWN}
    assert queue.num_waiting == 0


def test_the_time_to_come_back_is_what_the_waiting_work_takes():
    queue = FairQueue()
    assert queue.retry_after_s(0.0) == 1.0
    for step in range(1000):  # 100 tokens a second for 100 s
        offer(queue, request("r", tokens=10), now_s=step / 10)
        queue.settle(queue.next_dispatchable(ENDLESS, step / 10), 10, step / 10)
    offer(queue, request("waiting", tokens=1000), now_s=100.0)
    assert queue.retry_after_s(100.0) == pytest.approx(10.0, rel=0.05)
    offer(queue, request("more", tokens=100_000), now_s=100.0)
    assert queue.retry_after_s(100.0) == 60.0


# --- whatever happens ------------------------------------------------------------------------------------------------


class RandomUse(RuleBasedStateMachine):
    """Any sequence of calls: every request is in one place, within the bounds, and each end is told once."""

    TOTAL_PLACES, TOTAL_TOKENS = 6, 120

    def __init__(self):
        super().__init__()
        one = ClassSettings(max_requests=5, max_bytes=60, ttl_s=4.0, guaranteed_share=0.05)
        self.queue = FairQueue(
            QueueSettings(one, one, one, max_requests=9, max_bytes=100, headroom=0.2, linger_s=3.0, max_tenants=3)
        )
        self.now_s = 0.0
        self.waiting, self.running = {}, {}  # in the order of what happened, so that a failure can be repeated

    def room(self) -> Room:
        used, tokens = self.queue.num_in_flight, self.queue.in_flight_tokens
        return Room(1, self.TOTAL_PLACES, self.TOTAL_PLACES - used, self.TOTAL_TOKENS, self.TOTAL_TOKENS - tokens)

    def take_evicted(self):
        for each in self.queue.take_evicted(self.now_s):
            del self.waiting[each.request]
            if each.outcome is Outcome.EVICTED_TTL:
                assert each.request.expires_s <= self.now_s

    @rule(
        tenant=st.sampled_from("abcdef"),
        priority=st.sampled_from(list(Priority)),
        tokens=st.integers(0, 60),
        size_bytes=st.integers(0, 70),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
        deadline_s=st.none() | st.floats(-1.0, 6.0),
    )
    def offer(self, tenant, priority, tokens, size_bytes, weight, deadline_s):
        until = None if deadline_s is None else self.now_s + deadline_s
        one = QueuedRequest("r", tenant, priority, tokens, size_bytes, weight, deadline_s=until)
        if self.queue.offer(one, self.now_s) is None:
            self.waiting[one] = None
        self.take_evicted()

    @rule()
    def dispatch(self):
        room = self.room()
        one = self.queue.next_dispatchable(room, self.now_s)
        self.take_evicted()
        if one is not None:
            assert one.expires_s > self.now_s
            assert room.fits(one.tokens)
            del self.waiting[one]
            self.running[one] = None
        elif not self.running:
            assert not self.waiting, "an idle pool takes whatever waits"

    @precondition(lambda self: self.running)
    @rule(data=st.data(), actual=st.integers(0, 100))
    def settle(self, data, actual):
        one = data.draw(st.sampled_from(list(self.running)))
        self.queue.settle(one, actual, self.now_s)
        del self.running[one]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data):
        one = data.draw(st.sampled_from(list(self.waiting)))
        assert self.queue.withdraw(one, self.now_s)
        del self.waiting[one]

    @rule()
    def preempt(self):
        victims = self.queue.preempt(self.room(), self.now_s)
        self.take_evicted()
        assert all(each in self.running and each.priority is BEST_EFFORT for each in victims)

    @rule(duration_s=st.floats(0.0, 3.0))
    def wait(self, duration_s):
        self.now_s += duration_s
        self.take_evicted()

    @invariant()
    def all_counts_agree(self):
        self.queue.check_invariants()
        assert self.queue.num_waiting == len(self.waiting)
        assert self.queue.num_in_flight == len(self.running)
        assert all(each.state is QueueState.WAITING for each in self.waiting)


TestRandomUse = RandomUse.TestCase
TestRandomUse.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


ARRIVALS = st.tuples(
    st.sampled_from("abc"), st.sampled_from(list(Priority)), st.integers(0, 40), st.sampled_from([0.5, 1.0, 4.0])
)
ENDS = st.integers(0, 100)
PAUSES = st.floats(0.0, 3.0)


def played(steps, *, at_once: bool):
    """What happens to requests that arrive, end and wait in the order of `steps`, and where the queue stands after it."""
    one = ClassSettings(max_requests=3, max_bytes=60, ttl_s=4.0, guaranteed_share=0.2)
    queue = FairQueue(QueueSettings(one, one, one, max_requests=6, max_bytes=100, headroom=0.2, linger_s=3.0, max_tenants=2))
    running, told, now_s, num_at_once = [], [], 0.0, 0

    def room() -> Room:
        return Room(1, 6, 6 - queue.num_in_flight, 120, 120 - queue.in_flight_tokens)

    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            tenant, priority, tokens, weight = step
            one = QueuedRequest(str(number), tenant, priority, tokens, tokens, weight)
            if at_once and queue.admit_at_once(one, room(), now_s):
                num_at_once += 1
                running.append(one)
                told.append((one.request_id, one.is_preemptible, one.dispatched_s, one.arrived_s))
            else:
                told.append(queue.offer(one, now_s))
        elif isinstance(step, int) and running:
            queue.settle(running.pop(step % len(running)), step, now_s)
        elif isinstance(step, float):
            now_s += step
        while (one := queue.next_dispatchable(room(), now_s)) is not None:
            running.append(one)
            told.append((one.request_id, one.is_preemptible, one.dispatched_s, one.arrived_s))
        told += [(each.request.request_id, each.outcome) for each in queue.take_evicted(now_s)]
        queue.check_invariants()
    flows = [
        (priority, flow.tenant, flow.served_tokens, flow.in_flight_tokens)
        for priority in Priority
        for flow in queue.class_queue(priority).flows()
    ]
    return [each for each in told if each is not None], flows, num_at_once


@settings(max_examples=300, deadline=None)
@given(st.lists(ARRIVALS | ENDS | PAUSES, max_size=40))
def test_what_is_admitted_at_once_is_what_would_not_have_waited(steps):
    told, flows, num_at_once = played(steps, at_once=True)
    assert (told, flows) == played(steps, at_once=False)[:2]
    if steps and isinstance(steps[0], tuple):
        assert num_at_once


def test_nothing_grows_with_the_number_of_tenants_seen():
    """20 000 requests, each of its own tenant, a third withdrawn: what is remembered stays within its bounds."""
    limits = QueueSettings(linger_s=5.0, max_tenants=100)
    queue, rng, running = FairQueue(limits), Random(0), []
    for number in range(20_000):
        now_s = number * 0.01
        one = request(f"r{number}", f"tenant{number}", rng.choice(list(Priority)), rng.randrange(1, 50))
        assert queue.offer(one, now_s) is None
        if rng.random() < 0.3:
            queue.withdraw(one, now_s)
        elif (each := queue.next_dispatchable(places(50, len(running)), now_s)) is not None:
            running.append(each)
        if len(running) == 50:
            for each in running:
                queue.settle(each, rng.randrange(50), now_s)
            running.clear()
        queue.take_evicted(now_s)
    queue.check_invariants()
    for priority in Priority:
        assert queue.class_queue(priority).num_tenants <= 100 + queue.num_waiting + queue.num_in_flight
    assert queue._expiry.num_entries <= 2 * queue.num_waiting + 66
