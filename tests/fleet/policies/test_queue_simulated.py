"""The queue in front of a simulated pool: who gets what over a minute of simulated time."""

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

import pytest

from argosy.fleet.policies.fair_queue import FairQueue
from argosy.fleet.policies.outcomes import REPLIES
from argosy.fleet.policies.priorities import ClassSettings, Priority, QueueSettings
from argosy.fleet.policies.queued_request import QueuedRequest
from argosy.fleet.policies.retries import RetryBudget, RetryPolicy
from argosy.fleet.policies.saturation import Room
from argosy.sim.event_loop import EventLoop

TOKENS_PER_S = 50.0  # of one running request


@dataclass
class Job:
    """One request of a simulated client: `on_end(is_served)` is called once."""

    request: QueuedRequest
    on_end: object
    tokens: int
    handle: object = None


@dataclass
class Pool:
    """So many places, each of which makes `TOKENS_PER_S`; nothing is reserved but places."""

    loop: EventLoop
    queue: FairQueue
    places: int
    jobs: dict = field(default_factory=dict)
    num_preempted: int = 0

    def send(self, job: Job) -> None:
        outcome = self.queue.offer(job.request, self.loop.now_s())
        if outcome is not None:
            job.on_end(outcome)
        else:
            self.jobs[job.request] = job
            self.loop.at(min(job.request.expires_s, 1e6), self.pump)
        self.pump()

    def pump(self) -> None:
        now_s = self.loop.now_s()
        while (one := self.queue.next_dispatchable(self.room(), now_s)) is not None:
            job = self.jobs[one]
            job.handle = self.loop.after(job.tokens / TOKENS_PER_S, lambda job=job: self.finish(job, None))
        for each in self.queue.take_evicted(now_s):
            self.jobs.pop(each.request).on_end(each.outcome)
        for victim in self.queue.preempt(self.room(), now_s):
            self.num_preempted += 1
            self.jobs[victim].handle.cancel()
            self.finish(self.jobs[victim], "preempted")

    def finish(self, job: Job, outcome) -> None:
        now_s = self.loop.now_s()
        served = job.tokens if outcome is None else int((now_s - job.request.dispatched_s) * TOKENS_PER_S)
        del self.jobs[job.request]
        self.queue.settle(job.request, served, now_s)
        job.on_end(outcome)
        self.pump()

    def room(self) -> Room:
        inf = float("inf")
        return Room(1, self.places, self.places - self.queue.num_in_flight, inf, inf)


class ClosedLoop:
    """A tenant that always has `concurrency` requests out, each followed by the next when it is answered."""

    def __init__(self, pool: Pool, tenant: str, concurrency: int, lengths, *, from_s: float = 0.0):
        self.pool, self.tenant, self.lengths = pool, tenant, lengths
        self.served, self.tokens = 0, 0
        for _ in range(concurrency):
            pool.loop.at(from_s, self.send)

    def send(self) -> None:
        tokens = self.lengths()
        expected = 200  # what the gateway guesses of every request
        request = QueuedRequest("r", self.tenant, Priority.STANDARD, expected)
        self.pool.send(Job(request, lambda outcome: self.on_end(outcome, tokens), tokens))

    def on_end(self, outcome, tokens: int) -> None:
        if outcome is None:
            self.served += 1
            self.tokens += tokens
            self.send()
        else:
            self.pool.loop.after(0.5, self.send)


def a_pool(places: int, **fields) -> Pool:
    return Pool(EventLoop(), FairQueue(QueueSettings(**fields)), places)


def solo_rate_per_s(lengths, duration_s: float) -> float:
    pool = a_pool(64)
    alone = ClosedLoop(pool, "light", 1, lengths)
    pool.loop.run(duration_s)
    return alone.served / duration_s


@pytest.mark.parametrize("flood_from_s", [0.0, 10.0])
def test_a_flood_of_long_requests_leaves_light_tenants_nine_tenths_of_their_rate(flood_from_s):
    """100 requests at once of 10 to 30 s each against nine tenants with one of 2 s, whoever is there first."""
    rng = Random(1)
    pool = a_pool(64)
    if flood_from_s == 0.0:
        flood = ClosedLoop(pool, "flood", 100, lambda: rng.randrange(500, 1500))
    light = [ClosedLoop(pool, f"light{i}", 1, lambda: 100) for i in range(9)]
    pool.loop.run(10.0)
    if flood_from_s:
        flood = ClosedLoop(pool, "flood", 100, lambda: rng.randrange(500, 1500), from_s=flood_from_s)
        before = [each.served for each in light]
    else:
        before = [0] * 9
    pool.loop.run(flood_from_s + 60.0)
    solo = solo_rate_per_s(lambda: 100, 60.0)
    for each, had in zip(light, before, strict=True):
        assert (each.served - had) / 60.0 >= 0.9 * solo
    assert flood.tokens >= 0.6 * 64 * 60.0 * TOKENS_PER_S, "and the flood gets what the others leave"
    pool.queue.check_invariants()


def jain(shares: list[float]) -> float:
    """(sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has all (Jain, Chiu and Hawe, 1984)."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def test_tenants_that_are_all_backlogged_are_served_alike():
    """Ten tenants with 5 to 50 requests out, of lengths that differ tenfold and that nobody guessed."""
    rng = Random(2)
    pool = a_pool(64)
    tenants = [
        ClosedLoop(pool, f"t{i}", 20 + 10 * i, lambda length=30 + 30 * i: rng.randrange(length // 2, 3 * length // 2))
        for i in range(10)
    ]
    pool.loop.run(60.0)
    assert jain([each.tokens for each in tenants]) >= 0.95
    assert sum(each.tokens for each in tenants) >= 0.9 * 64 * 60.0 * TOKENS_PER_S


def test_every_tenant_is_served_in_the_end():
    """A tenant of long requests and a small weight against twenty that never let the queue run dry."""
    rng = Random(3)
    pool = a_pool(8)
    for i in range(20):
        ClosedLoop(pool, f"busy{i}", 5, lambda: rng.randrange(20, 60))
    slow = ClosedLoop(pool, "slow", 1, lambda: 500)
    pool.loop.run(120.0)
    assert slow.served >= 2


@dataclass
class OpenLoop:
    """Requests that come whatever becomes of them; each client retries within one budget for all, and gives up in time."""

    pool: Pool
    rng: Random
    patience_s: float
    budget: RetryBudget = field(default_factory=RetryBudget)
    policy: RetryPolicy = field(default_factory=lambda: RetryPolicy(max_retries=2, backoff_s=0.2))
    num_requests: int = 0
    num_retries: int = 0
    good_tokens: int = 0
    latencies_s: dict = field(default_factory=lambda: defaultdict(list))

    def arrive(self, rate_per_s: float, until_s: float) -> None:
        now_s = self.pool.loop.now_s()
        if now_s >= until_s:
            return
        self.pool.loop.after(self.rng.expovariate(rate_per_s), lambda: self.arrive(rate_per_s, until_s))
        self.num_requests += 1
        self.budget.on_request()
        priority = self.rng.choices(list(Priority), [0.3, 0.5, 0.2])[0]
        self.attempt(f"t{self.rng.randrange(5)}", priority, self.rng.randrange(25, 75), now_s, 1)

    def attempt(self, tenant: str, priority: Priority, tokens: int, arrived_s: float, number: int) -> None:
        deadline_s = arrived_s + self.patience_s

        def on_end(outcome) -> None:
            now_s = self.pool.loop.now_s()
            if outcome is None:
                self.latencies_s[priority].append((arrived_s, now_s - arrived_s))
                if now_s <= deadline_s:
                    self.good_tokens += tokens
                return
            if outcome != "preempted" and not REPLIES[outcome].retryable:
                return
            wait_s = self.policy.wait_s(number, self.budget, self.rng, first_byte_sent=False, left_s=deadline_s - now_s)
            if wait_s is not None:
                self.num_retries += 1
                self.pool.loop.after(wait_s, lambda: self.attempt(tenant, priority, tokens, arrived_s, number + 1))

        request = QueuedRequest("r", tenant, priority, 50, deadline_s=deadline_s, min_service_s=0.5)
        self.pool.send(Job(request, on_end, tokens))


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def test_three_times_the_load_is_borne_and_forgotten():
    """60 s at three times the capacity, 0.6 of it critical, which stays within 2 s; 5 s later all is as before."""
    short = ClassSettings(ttl_s=4.0)
    queue = QueueSettings(critical=short, standard=ClassSettings(ttl_s=4.0, guaranteed_share=0.05), best_effort=short)
    pool = Pool(EventLoop(), FairQueue(queue), 32)
    capacity_tokens_per_s = 32 * TOKENS_PER_S
    clients = OpenLoop(pool, Random(4), patience_s=8.0)
    clients.arrive(3.0 * capacity_tokens_per_s / 49.5, 60.0)
    pool.loop.run(60.0)
    assert clients.good_tokens >= 0.9 * 60.0 * capacity_tokens_per_s
    assert percentile([latency_s for _, latency_s in clients.latencies_s[Priority.CRITICAL]], 0.99) <= 2.0
    assert clients.num_retries <= 0.1 * clients.num_requests + clients.budget.max_credits
    for priority in (Priority.STANDARD, Priority.CRITICAL):
        assert clients.latencies_s[priority]

    pool.loop.run(65.0)
    assert pool.queue.num_waiting == 0
    clients.arrive(0.5 * capacity_tokens_per_s / 49.5, 80.0)
    pool.loop.run(90.0)
    after_s = [latency_s for each in clients.latencies_s.values() for arrived_s, latency_s in each if arrived_s >= 65.0]
    assert len(after_s) > 100
    assert max(after_s) <= 75 / TOKENS_PER_S + 0.5
    assert not pool.jobs
    assert pool.queue.num_in_flight == 0
    pool.queue.check_invariants()
