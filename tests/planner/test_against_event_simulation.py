"""The queueing approximation against an event by event simulation of continuous batching with the same step times."""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from argosy.cost.catalogue import find_model
from argosy.cost.formats import WeightFormat
from argosy.cost.step_time_model import StepTimeModel
from argosy.planner.engines import engines
from argosy.planner.lengths import Lengths
from argosy.planner.offers import resolve
from argosy.planner.open_loop import open_loop
from argosy.planner.serving_question import SearchSpace, Slo
from argosy.planner.serving_search import evaluate, variability_of
from argosy.planner.traffic import Traffic

REQUESTS, WARM_UP = 3000, 500


@dataclass
class Job:
    arrival_s: float
    prompt: int
    output: int
    computed: int = 0
    generated: int = 0
    first_s: float = 0.0
    last_s: float = 0.0


@dataclass
class Replica:
    """First come, first served: every running sequence decodes, prompts take what the budget leaves, in order."""

    model: StepTimeModel
    chunk: int
    batch: int
    running: list[Job] = field(default_factory=list)

    def step(self, now: float) -> float:
        """Run one step and return when it ends."""
        decoding = [job for job in self.running if job.computed == job.prompt]
        groups = [(1.0, 1.0, float(job.prompt + job.generated)) for job in decoding]
        budget, logits, chunks = self.chunk - len(decoding), len(decoding), []
        for job in self.running:
            if job.computed < job.prompt and budget > 0:
                new = min(budget, job.prompt - job.computed)
                groups.append((1.0, float(new), float(job.computed)))
                chunks.append((job, new))
                logits += job.computed + new == job.prompt
                budget -= new
        count, new_tokens, past = np.array(groups).T[:, :, None]
        now += float(self.model.times(count, new_tokens, past, float(logits)).latency_s[0])
        for job in decoding:
            job.generated += 1
        for job, new in chunks:
            job.computed += new
            if job.computed == job.prompt:
                job.generated, job.first_s = 1, now
        for job in self.running:
            job.last_s = now
        self.running = [job for job in self.running if job.generated < job.output]
        return now


def draw(lengths: Lengths, rng: random.Random) -> int:
    if lengths.cv == 0:
        return lengths.tokens
    variance = math.log1p(lengths.cv**2)
    return max(1, round(math.exp(rng.gauss(math.log(lengths.mean) - variance / 2, math.sqrt(variance)))))


def simulate(replica: Replica, rate: float, traffic: Traffic) -> list[Job]:
    rng, at, jobs = random.Random(1), 0.0, []
    for _ in range(REQUESTS):
        at += rng.expovariate(rate)
        jobs.append(Job(at, draw(traffic.prompt, rng), draw(traffic.output, rng)))
    waiting, now = list(reversed(jobs)), 0.0
    while waiting or replica.running:
        if not replica.running:
            now = max(now, waiting[-1].arrival_s)
        while waiting and waiting[-1].arrival_s <= now and len(replica.running) < replica.batch:
            replica.running.append(waiting.pop())
        now = replica.step(now)
    return jobs[WARM_UP:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spread", "chunk", "batch", "load"),
    [(0.0, 1024, 64, 0.7), (1.0, 512, 256, 0.7), (1.0, 1024, 64, 0.8), (0.5, 2048, 64, 0.5)],
)
def test_latencies_are_those_of_a_simulation(ask, spread: float, chunk: int, batch: int, load: float):
    space = SearchSpace((1,), (1,), weights=(WeightFormat.BASE,), chunk_tokens=(chunk,), max_batch=(batch,))
    question = ask(traffic=Traffic.of(1, 1000, 100, prompt_cv=spread, output_cv=spread), slo=Slo(), space=space)
    engine = next(iter(engines(question, find_model("Llama-3.1-8B"), None, resolve(question.devices[0]))))
    grid = evaluate(engine, question)
    rate = load * float(grid.curve.rate[0, grid.batches[0]])
    loop = open_loop(grid.curve, np.array([rate]), grid.batches, variability_of(question.traffic))
    jobs = simulate(Replica(engine.model, chunk, batch), rate, question.traffic)
    ttft = np.array([job.first_s - job.arrival_s for job in jobs])
    tpot = np.array([(job.last_s - job.first_s) / (job.output - 1) for job in jobs if job.output > 1])
    tokens = np.array([job.output - 1 for job in jobs if job.output > 1])
    assert loop.tpot_s.item() == pytest.approx(np.average(tpot, weights=tokens), rel=0.10)
    assert loop.ttft_mean_s.item() == pytest.approx(ttft.mean(), rel=0.25)
    assert loop.tpot_quantile(0.99) == pytest.approx(np.quantile(tpot, 0.99), rel=0.3)
    assert loop.ttft_quantile(0.99) == pytest.approx(np.quantile(ttft, 0.99), rel=0.35)


def test_the_simulation_of_one_request_is_its_prompt_and_its_steps(ask):
    """Guards the yardstick itself: nothing queues, so TTFT is one prompt step and the rest are decode steps."""
    question = ask()
    engine = next(iter(engines(question, find_model("Llama-3.1-8B"), None, resolve(question.devices[0]))))
    replica = Replica(engine.model, 2048, 8)
    job = Job(0.0, 1000, 3)
    replica.running.append(job)
    now = 0.0
    while replica.running:
        now = replica.step(now)
    prompt_s = float(engine.model.prefill(1000).latency_s[0])
    decode_s = engine.model.decode(1, [1001, 1002]).latency_s.sum()
    assert job.first_s == pytest.approx(prompt_s)
    assert job.last_s == pytest.approx(prompt_s + float(decode_s))
    assert dataclasses.asdict(job)["generated"] == 3
