"""How many tokens a second of scheduler time schedules: `schedule` and `commit`, no model.

    python benchmarks/scheduler_rate.py [--json] [--seconds 2]

Three workloads at batch 64: all sequences decode (one token each per step, the hardest per token), long prompts prefilled
in chunks beside decoding ones, and prompts that share a long cached prefix. Counted is the CPU time of the thread inside
the two calls, so that other load on the machine matters less. Writes benchmarks/results/scheduler_rate.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.plan import SequenceResult, StepPlan, StepResult
from argosy.engine.core.request import Request
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.core.scheduler import Scheduler
from report import machine, write_result

BATCH = 64


class Load:
    """A scheduler and a stream of requests that keeps it busy."""

    def __init__(self, scheduler: Scheduler, make_prompt: Callable[[int], tuple[int, ...]], max_tokens: int) -> None:
        self.scheduler = scheduler
        self.make_prompt = make_prompt
        self.params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        self.num_submitted = 0
        self.num_tokens = 0

    def refill(self) -> None:
        """Submit until as many sequences are alive as can run."""
        while self.scheduler.num_running + self.scheduler.num_waiting < BATCH:
            name = self.num_submitted
            self.num_submitted += 1
            self.scheduler.submit(Request(f"r{name}", self.make_prompt(name), self.params, float(name), seed=name))

    def step(self) -> float:
        """Run one step and return the CPU seconds spent deciding."""
        begin = time.thread_time()
        plan = self.scheduler.schedule(0.0)
        middle = time.thread_time()
        assert plan is not None
        result = answer(plan)
        resume = time.thread_time()
        self.scheduler.commit(plan, result, 0.0)
        end = time.thread_time()
        self.num_tokens += plan.num_tokens
        return (middle - begin) + (end - resume)


def answer(plan: StepPlan) -> StepResult:
    results = tuple(SequenceResult(s.sequence_id, (s.start,) if s.sample else (), (), (), "") for s in plan.sequences)
    return StepResult(plan.step, results, 0.0)


def config(**settings: int) -> SchedulerConfig:
    fields = {"num_blocks": 1 << 15, "block_size": 16, "max_model_len": 1 << 16, "max_num_seqs": BATCH, **settings}
    return SchedulerConfig(**fields)


def decode_only() -> Load:
    load = Load(Scheduler(config(max_num_batched_tokens=8192)), lambda name: (name,) * 8, max_tokens=4096)
    load.refill()
    load.step()
    return load


def mixed_prefill() -> Load:
    load = Load(Scheduler(config(max_num_batched_tokens=2048)), lambda name: tuple(range(name, name + 1024)), max_tokens=64)
    load.refill()
    return load


def shared_prefix() -> Load:
    prefix = tuple(range(1024))
    load = Load(
        Scheduler(config(max_num_batched_tokens=2048)), lambda name: (*prefix, *range(name, name + 64)), max_tokens=64
    )
    load.refill()
    return load


WORKLOADS = {
    "decode only, batch 64": decode_only,
    "prompts of 1024 in chunks, 64 output": mixed_prefill,
    "cached prefix of 1024 + 64, 64 output": shared_prefix,
}


def measure(make_load: Callable[[], Load], seconds: float) -> dict[str, float]:
    """Tokens per CPU second of deciding, over at least `seconds` of it; with and without those found in the cache."""
    load = make_load()
    num_before, hits_before = load.num_tokens, load.scheduler.prefix_hits_tokens
    num_steps, spent_s = 0, 0.0
    while spent_s < seconds:
        load.refill()
        spent_s += load.step()
        num_steps += 1
    scheduled = load.num_tokens - num_before
    cached = load.scheduler.prefix_hits_tokens - hits_before
    return {
        "scheduled_tokens_per_s": round(scheduled / spent_s),
        "served_tokens_per_s": round((scheduled + cached) / spent_s),
        "us_per_step": round(spent_s / num_steps * 1e6, 1),
        "tokens_per_step": round(scheduled / num_steps, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Scheduler rate without a model.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds of scheduling per workload")
    options = parser.parse_args()
    workloads = {name: measure(make_load, options.seconds) for name, make_load in WORKLOADS.items()}
    path = write_result("scheduler_rate", {"batch": BATCH, "workloads": workloads})
    host = machine()
    if options.json:
        print(json.dumps({"machine": host, "batch": BATCH, "workloads": workloads}, indent=1))
        return
    print(f"{host['cpu']}, {host['cores']} cores; Python {host['python']}; batch {BATCH}; written to {path}")
    print(f"{'workload':40} {'scheduled/s':>12} {'with cached/s':>14} {'us/step':>9} {'tokens/step':>12}")
    for name, row in workloads.items():
        print(
            f"{name:40} {row['scheduled_tokens_per_s']:12,} {row['served_tokens_per_s']:14,} "
            f"{row['us_per_step']:9.1f} {row['tokens_per_step']:12.1f}"
        )


if __name__ == "__main__":
    main()
