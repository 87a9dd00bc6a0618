"""Replicas of a small model, traffic for them, and listeners that keep everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from argosy.cost.calibration_file import constants_for
from argosy.cost.catalogue import find_device, find_model
from argosy.cost.collectives import Topology
from argosy.cost.deployment import Deployment
from argosy.cost.parallel import ParallelPlan
from argosy.cost.step_time_model import StepTimeModel
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.scheduler import Scheduler
from argosy.sim.cost_executor import CostExecutor, CostTimer
from argosy.sim.event_loop import EventLoop
from argosy.sim.invariants import Ledger
from argosy.sim.outcome import RequestOutcome, StepSpan
from argosy.sim.replica import Replica
from argosy.sim.speculation import SpeculationProcess
from argosy.sim.step_pricer import StepPricer
from argosy.sim.workload.trace_request import Segment, TraceRequest


def model_of(name: str = "Llama-3.1-8B", device: str = "H100 SXM", **plan: int) -> StepTimeModel:
    where = find_device(device)
    deployment = Deployment(find_model(name), ParallelPlan.for_serving(**plan))
    return StepTimeModel(deployment, where, Topology.of(where), constants_for(device, "vllm"))


@dataclass
class Heard:
    """A listener that keeps every report, steps one by one."""

    outcomes: list[RequestOutcome] = field(default_factory=list)
    first_tokens: list[tuple[str, float]] = field(default_factory=list)
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    num_spans: int = 0

    def on_first_token(self, replica: Replica, request: TraceRequest, now_s: float) -> None:
        self.first_tokens.append((request.request_id, now_s))

    def on_finish(self, replica: Replica, outcome: RequestOutcome) -> None:
        self.outcomes.append(outcome)

    def on_steps(self, replica: Replica, span: StepSpan) -> None:
        self.num_spans += 1
        begin_s = span.start_s
        for offset, end_s in enumerate(span.ends_s):
            context = span.context_tokens + offset * span.num_decoding
            self.steps.append((span.first_step + offset, begin_s, end_s, context, *span[3:7], *span[8:]))
            begin_s = end_s

    def outcome(self, request_id: str) -> RequestOutcome:
        (one,) = [o for o in self.outcomes if o.request.request_id == request_id]
        return one


@dataclass
class Bench:
    """One replica on a loop, with a ledger before the listener."""

    loop: EventLoop
    replica: Replica
    ledger: Ledger
    heard: Heard
    executor: CostExecutor

    def submit(self, request: TraceRequest, **options: int) -> None:
        self.replica.submit(request, **options)
        self.ledger.on_submit(self.replica, request)

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        self.loop.at(time_s, act)

    def feed(self, requests: Iterable[TraceRequest]) -> None:
        for request in requests:
            self.at(request.arrival_s, lambda request=request: self.submit(request))

    def finish(self) -> Heard:
        self.loop.run()
        self.ledger.check_end(self.replica)
        assert self.executor.num_expected == 0, "the executor forgets whoever has ended"
        return self.heard


def make_bench(
    *,
    coasts: bool = True,
    one_by_one: bool = False,
    check_invariants: bool = True,
    speculation: SpeculationProcess | None = None,
    model: StepTimeModel | None = None,
    loop: EventLoop | None = None,
    name: str = "r0",
    **settings: Any,
) -> Bench:
    fields = {
        "num_blocks": 400,
        "max_model_len": 2048,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 256,
        "enable_prefix_caching": True,
        **settings,
    }
    config = SchedulerConfig(**fields)
    timer = CostTimer(StepPricer(model or model_of()), speculation)
    executor = CostExecutor(timer, num_blocks=config.num_blocks, vocab_size=1000)
    loop = loop or EventLoop()
    heard = Heard()
    ledger = Ledger(heard)
    replica = Replica(
        name,
        loop,
        Scheduler(config, known_outputs=executor if coasts else None),
        executor,
        listener=ledger,
        one_by_one=one_by_one,
        check_invariants=check_invariants,
    )
    return Bench(loop, replica, ledger, heard, executor)


def request(name: str, arrival_s: float = 0.0, prompt: int = 100, output: int = 20, **fields: Any) -> TraceRequest:
    segments = fields.pop("segments", None) or (Segment(abs(hash_of(name)), prompt),)
    return TraceRequest(name, arrival_s, segments, output, **fields)


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode()[-8:], "big")


def poisson(seed: int, *, rate: float, count: int, prompt: int, output: int, shared: int = 0) -> list[TraceRequest]:
    """Requests of varied lengths; half of them begin with `shared` tokens of one content."""
    rng = Random(seed)
    now_s, requests = 0.0, []
    for number in range(count):
        now_s += rng.expovariate(rate)
        own = Segment(1000 + number, rng.randint(1, 2 * prompt))
        segments = (Segment(7, shared), own) if shared and rng.random() < 0.5 else (own,)
        requests.append(TraceRequest(f"q{number}", now_s, segments, rng.randint(1, 2 * output)))
    return requests


@pytest.fixture(scope="session")
def sim() -> SimpleNamespace:
    """Makers of what the tests of this folder need."""
    return SimpleNamespace(bench=make_bench, model=model_of, request=request, poisson=poisson, Heard=Heard)
