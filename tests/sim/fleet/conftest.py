"""Fleets of small replicas with invariants checked after every event."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.scheduler import Scheduler
from argosy.fleet.policies.autoscaling.autoscaler import Autoscaler, ScalingLimits
from argosy.fleet.policies.health import HealthCheck
from argosy.fleet.policies.retries import RetryBudget, RetryPolicy
from argosy.fleet.policies.routing.kv_event_index import KvEventIndex
from argosy.fleet.policies.routing.named import make_policy
from argosy.fleet.policies.routing.pair import PairRouter
from argosy.fleet.policies.routing.replica_state import ReplicaInfo
from argosy.fleet.policies.routing.router import Router
from argosy.sim.cost_executor import CostExecutor, CostTimer
from argosy.sim.event_loop import EventLoop
from argosy.sim.fleet.clients import ClientBehaviour, Clients
from argosy.sim.fleet.faults import Fault, FaultInjector
from argosy.sim.fleet.fleet import Fleet
from argosy.sim.fleet.health_checks import HealthChecks
from argosy.sim.fleet.kv_feed import kv_feed
from argosy.sim.fleet.pair import PairDispatcher
from argosy.sim.fleet.pool import Pool
from argosy.sim.fleet.prompts import RequestDescriber
from argosy.sim.fleet.scaling import AutoscaledPool, ScalingDriver
from argosy.sim.fleet.single import AttemptTimeouts, SingleDispatcher
from argosy.sim.fleet.transfer import KvLink
from argosy.sim.invariants import Ledger
from argosy.sim.outcome import Outcome, RequestOutcome, StepSpan
from argosy.sim.random_streams import RandomStreams
from argosy.sim.replica import Replica
from argosy.sim.workload.trace_request import OpenLoop, Segment, Source, TraceRequest

VOCAB = 1000


class LinearTimer(CostTimer):
    """A step takes 5 ms and 20 us per computed token."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(limits=(None,)))

    def step_s(self, plan, transferred) -> float:
        computed = sum(len(entry.token_ids) - transferred(entry) for entry in plan.sequences)
        return 0.005 + 20e-6 * (computed + plan.coasting.num_sequences)

    def foreseen_s(self, ahead) -> list[float]:
        return [0.005 + 20e-6 * ahead.num_sequences] * ahead.num_steps


class FixedTimer(CostTimer):
    """Every step takes the same time, in seconds."""

    def __init__(self, duration_s: float) -> None:
        super().__init__(SimpleNamespace(limits=(None,)))
        self.duration_s = duration_s

    def step_s(self, plan, transferred) -> float:
        return self.duration_s

    def foreseen_s(self, ahead) -> list[float]:
        return [self.duration_s] * ahead.num_steps


def make_replica(
    name: str, loop: EventLoop, *, timer=None, kv_listener=None, check_steps: bool = False, **settings: Any
) -> Replica:
    fields = {
        "num_blocks": 600,
        "max_model_len": 4096,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "max_waiting": 10_000,
        **settings,
    }
    config = SchedulerConfig(**fields)
    executor = CostExecutor(timer or LinearTimer(), num_blocks=config.num_blocks, vocab_size=VOCAB)
    scheduler = Scheduler(config, kv_listener=kv_listener, known_outputs=executor)
    return Replica(name, loop, scheduler, executor, check_invariants=check_steps)


@dataclass
class Heard:
    """Keeps every outcome; passes it on to whoever else listens."""

    outcomes: list[RequestOutcome] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    first_tokens: dict[str, float] = field(default_factory=dict)
    others: list[Callable[[RequestOutcome], None]] = field(default_factory=list)
    num_steps: int = 0

    def on_first_token(self, replica: Replica, request: TraceRequest, now_s: float) -> None:
        assert request.request_id not in self.first_tokens, "a client sees one first token"
        self.first_tokens[request.request_id] = now_s

    def on_outcome(self, outcome: RequestOutcome, num_attempts: int) -> None:
        name = outcome.request.request_id
        assert name not in self.attempts, "a request ends once"
        assert outcome.finished_s >= outcome.request.arrival_s
        if outcome.outcome is Outcome.FINISHED:
            assert outcome.num_output_tokens == outcome.request.output_tokens
            assert outcome.first_token_s == self.first_tokens[name]
            assert 0.0 <= outcome.ttft_s <= outcome.e2e_s
        self.outcomes.append(outcome)
        self.attempts[name] = num_attempts
        for other in self.others:
            other(outcome)

    def on_steps(self, replica: Replica, span: StepSpan) -> None:
        self.num_steps += 1

    def of(self, outcome: Outcome) -> list[RequestOutcome]:
        return [one for one in self.outcomes if one.outcome is outcome]

    def outcome(self, name: str) -> RequestOutcome:
        (one,) = [one for one in self.outcomes if one.request.request_id == name]
        return one


class CheckedLoop(EventLoop):
    """Calls `check` after every event."""

    check: Callable[[], None] | None = None

    def at(self, time_s, callback, *, priority=0):
        def checked() -> None:
            callback()
            if self.check is not None:
                self.check()

        return super().at(time_s, checked, priority=priority)


class Bench:
    """A fleet under test. `policy` is the name of a routing policy; `settings` go to it."""

    def __init__(
        self,
        *,
        replicas: int = 2,
        policy: str = "least_load",
        settings: dict[str, Any] | None = None,
        seed: int = 0,
        timeouts: AttemptTimeouts | None = None,
        retry: RetryPolicy | None = None,
        budget: RetryBudget | None = None,
        check: HealthCheck | None = None,
        faults: Iterable[Fault] = (),
        decode: int = 0,
        link: KvLink | None = None,
        checked: bool = True,
        block_tokens: int = 16,
        **engine: Any,
    ) -> None:
        self.loop = CheckedLoop() if checked else EventLoop()
        self.streams = RandomStreams(seed)
        self.engine = engine
        self.heard = Heard()
        self.replicas: list[Replica] = []
        self.router = Router(make_policy(policy, settings), self.streams.python("router"))
        self.describer = RequestDescriber(block_tokens if self.router.policy.prefix_matcher else 0, VOCAB)
        self.pool = Pool("pool", self.loop)
        self.checks = HealthChecks(self.loop, self.pool, check) if check is not None else None
        refused = self.checks.on_refused if self.checks is not None else None
        if decode:
            self.decode_pool = Pool("decode", self.loop)
            pair = PairRouter(
                self.router, Router(make_policy("least_load", {"load": "tokens"}), self.streams.python("decode"))
            )
            self.dispatcher = PairDispatcher(
                self.loop, self.pool, self.decode_pool, pair, self.describer, link or KvLink(1e9, 1e5), timeouts
            )
        else:
            self.dispatcher = SingleDispatcher(
                self.loop, self.pool, self.router, self.describer, timeouts, on_refused=refused
            )
        self.fleet = Fleet(
            self.loop,
            self.dispatcher,
            rng=self.streams.python("retries"),
            retry=retry,
            budget=budget,
            listener=self.heard,
        )
        for number in range(replicas):
            self.pool.add(*self.make(f"r{number}"))
        for number in range(decode):
            self.decode_pool.add(*self.make(f"d{number}"))
        self.injector = FaultInjector(self.loop, self.pool, faults)
        if checked:
            self.loop.check = self.fleet.check_invariants

    def make(self, name: str) -> tuple[Replica, ReplicaInfo]:
        matcher = self.router.policy.prefix_matcher
        listener = kv_feed(matcher, name) if isinstance(matcher, KvEventIndex) else None
        replica = make_replica(name, self.loop, kv_listener=listener, **self.engine)
        self.replicas.append(replica)
        config = replica.scheduler.config
        return replica, ReplicaInfo(
            name,
            kv_capacity_tokens=config.num_blocks * config.block_size,
            max_model_len=config.max_model_len,
            usd_per_hour=3.6,
        )

    def autoscale(self, policy, limits: ScalingLimits, **driver: float) -> AutoscaledPool:
        fields = {"every_s": 1.0, "cold_start_s": 0.0, "concurrency": 16.0, **driver}
        scaled = AutoscaledPool(
            self.loop, self.pool, self.fleet, Autoscaler(policy, limits), self.make, ScalingDriver(**fields)
        )
        self.heard.others.append(scaled.on_outcome)
        return scaled

    def offer(self, source: Source | Iterable[TraceRequest], behaviour: ClientBehaviour | None = None) -> Clients:
        if isinstance(source, list):
            source = OpenLoop(source)
        clients = Clients(self.loop, source, self.fleet.submit, behaviour, rng=self.streams.python("clients"))
        self.heard.others.append(clients.on_outcome)
        return clients

    def run(self, until_s: float | None = None) -> Heard:
        if self.checks is not None and until_s is None:
            until_s = 1000.0
        self.loop.run(until_s)
        return self.heard

    def assert_nothing_left(self) -> None:
        """All requests have ended and nobody holds anything for them."""
        self.fleet.check_invariants()
        assert self.fleet.num_alive == 0
        assert self.dispatcher.num_in_flight == 0
        for replica in self.replicas:
            Ledger().check_end(replica)
        for pool in [self.pool, *([self.decode_pool] if hasattr(self, "decode_pool") else [])]:
            for state in pool.states:
                assert (state.booked.requests, state.booked.tokens, state.booked.prefill_tokens) == (0, 0, 0)


def poisson(
    seed: int, *, rate: float, count: int, prompt: int = 100, output: int = 20, timeout_s: float | None = None
) -> list[TraceRequest]:
    rng, now_s, requests = Random(seed), 0.0, []
    for number in range(count):
        now_s += rng.expovariate(rate)
        segments = (Segment(1000 + number, rng.randint(1, 2 * prompt)),)
        requests.append(TraceRequest(f"q{number}", now_s, segments, rng.randint(1, 2 * output), timeout_s=timeout_s))
    return requests


def request(name: str, arrival_s: float = 0.0, prompt: int = 100, output: int = 20, **fields: Any) -> TraceRequest:
    segments = fields.pop("segments", (Segment(abs(hash_of(name)), prompt),))
    return TraceRequest(name, arrival_s, segments, output, **fields)


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode()[-8:], "big")


@pytest.fixture(scope="session")
def fleet() -> SimpleNamespace:
    """Makers of what the tests of this folder need."""
    return SimpleNamespace(Bench=Bench, poisson=poisson, request=request, replica=make_replica, FixedTimer=FixedTimer)
