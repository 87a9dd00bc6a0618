"""How fast the simulator runs: simulated seconds per CPU second.

    OMP_NUM_THREADS=1 python benchmarks/sim_speed.py [--json] [--seconds 600] [--fleet-seconds 600]

One replica of Llama-3.1-70B on four H100 under Poisson arrivals at 80 % of its capacity, which is what it completes when
more wait than can run; prompts and outputs are log-normal (sigma 0.5) around the named lengths. Each workload also runs with
every step an event and every sequence listed in every plan, on the same requests: the records are the same, and compared.
Then 100 replicas behind round robin at 1 request/s each, with the resident memory before and after. Counted is the CPU time
of the thread, recording included; beside it stands what one addition in a Python loop took before and after, since CPU
seconds on a machine that others use are slower ones. Writes benchmarks/results/sim_speed.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import orjson

from argosy.cost.calibration_file import constants_for
from argosy.cost.catalogue import find_device, find_model
from argosy.cost.collectives import Topology
from argosy.cost.deployment import Deployment
from argosy.cost.parallel import ParallelPlan
from argosy.cost.serving_memory import serving_memory
from argosy.cost.step_time_model import StepTimeModel
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.scheduler import Scheduler
from argosy.sim.cost_executor import CostExecutor, CostTimer
from argosy.sim.event_loop import EventLoop
from argosy.sim.feeder import Feeder
from argosy.sim.outcome import RequestOutcome, StepSpan
from argosy.sim.recorder import Recorder
from argosy.sim.replica import Replica
from argosy.sim.step_pricer import StepPricer
from argosy.sim.workload.trace_request import OpenLoop, Segment, TraceRequest
from report import machine, write_result

MODEL, DEVICE, TENSOR, LOAD = "Llama-3.1-70B", "H100 SXM", 4, 0.8
MAX_PROMPT, MAX_OUTPUT = 6000, 4000


@dataclass(frozen=True)
class Workload:
    """Mean-ish lengths and settings of one row."""

    prompt: int
    output: int
    prefix_caching: bool = False
    block_size: int = 16

    @property
    def name(self) -> str:
        caching = "prefix cache" if self.prefix_caching else "no prefix cache"
        return f"{self.prompt} in, {self.output} out, {caching}, blocks of {self.block_size}"


WORKLOADS = (
    Workload(1000, 250),
    Workload(1000, 250, prefix_caching=True),
    Workload(1000, 250, block_size=64),
    Workload(500, 1500),
    Workload(500, 1500, block_size=64),
)


class Digest:
    """Passes reports to a recorder, and hashes every step and every end."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.hash = hashlib.sha256()

    def on_first_token(self, replica: Replica, request: TraceRequest, now_s: float) -> None:
        self.recorder.on_first_token(replica, request, now_s)

    def on_finish(self, replica: Replica, outcome: RequestOutcome) -> None:
        self.recorder.on_finish(replica, outcome)
        self.hash.update(repr((outcome.request.request_id, outcome.first_token_s, outcome.finished_s)).encode())

    def on_steps(self, replica: Replica, span: StepSpan) -> None:
        self.recorder.on_steps(replica, span)
        for step, end_s in enumerate(span.ends_s, span.first_step):
            self.hash.update(orjson.dumps((step, end_s, span.num_tokens, span.kv_blocks_held, span.num_running)))


def model() -> StepTimeModel:
    device = find_device(DEVICE)
    deployment = Deployment(find_model(MODEL), ParallelPlan.for_serving(TENSOR))
    return StepTimeModel(deployment, device, Topology.of(device), constants_for(DEVICE, "vllm"))


def make_replica(name: str, loop: EventLoop, pricer: StepPricer, workload: Workload, *, together: bool) -> Replica:
    memory = serving_memory(pricer.model.deployment, pricer.model.device)
    assert memory.kv_blocks is not None
    num_blocks = memory.kv_blocks * memory.block_tokens // workload.block_size
    config = SchedulerConfig(
        num_blocks=num_blocks,
        block_size=workload.block_size,
        max_model_len=MAX_PROMPT + MAX_OUTPUT,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_waiting=100_000,
        enable_prefix_caching=workload.prefix_caching,
        kv_dtype="bfloat16",
    )
    executor = CostExecutor(CostTimer(pricer), num_blocks=num_blocks)
    scheduler = Scheduler(config, known_outputs=executor if together else None)
    return Replica(name, loop, scheduler, executor, one_by_one=not together)


def requests(workload: Workload, rate: float, seconds: float) -> Iterator[TraceRequest]:
    rng, now_s = Random(1), 0.0
    for number in count():
        now_s += rng.expovariate(rate)
        if now_s > seconds:
            return
        prompt = min(MAX_PROMPT, max(1, round(workload.prompt * rng.lognormvariate(0, 0.5))))
        output = min(MAX_OUTPUT, max(1, round(workload.output * rng.lognormvariate(0, 0.5))))
        yield TraceRequest(f"q{number}", now_s, (Segment(number, prompt),), output)


def run(replicas: list[Replica], loop: EventLoop, listener: Recorder | Digest, offered: Iterator[TraceRequest]) -> float:
    """CPU seconds of everything until the last request has ended."""
    recorder = listener.recorder if isinstance(listener, Digest) else listener
    for replica in replicas:
        recorder.add_replica(replica)
        replica.listener = listener
    turn = count()

    def offer(request: TraceRequest) -> None:
        recorder.on_arrival(request)
        replicas[next(turn) % len(replicas)].submit(request)

    feeder = Feeder(loop, OpenLoop(offered), offer)
    begin = time.thread_time()
    feeder.start()
    loop.run()
    return time.thread_time() - begin


def capacity_per_s(pricer: StepPricer, workload: Workload) -> float:
    """Requests per second that are completed while more wait than can run: far more come."""
    loop, recorder = EventLoop(), Recorder()
    replica = make_replica("r0", loop, pricer, workload, together=True)
    recorder.add_replica(replica)
    replica.listener = recorder
    for request in requests(workload, 50.0, 80.0):
        recorder.on_arrival(request)
        loop.at(request.arrival_s, lambda request=request: replica.submit(request))
    loop.run(120.0)
    before = sum(window.finished for window in recorder.series.windows)
    loop.run(300.0)
    assert replica.load().num_waiting, "the replica must be saturated for as long as it is measured"
    return (sum(window.finished for window in recorder.series.windows) - before) / 180.0


def single(pricer: StepPricer, workload: Workload, seconds: float) -> dict[str, Any]:
    rate = LOAD * capacity_per_s(pricer, workload)
    row: dict[str, Any] = {"requests_per_s": round(rate, 2)}
    for name, together, digest in (("together", True, False), ("compare", True, True), ("one by one", False, True)):
        loop, recorder = EventLoop(), Recorder()
        listener = Digest(recorder) if digest else recorder
        replica = make_replica("r0", loop, pricer, workload, together=together)
        length_s = seconds if name == "together" else seconds / 5
        cpu_s = run([replica], loop, listener, requests(workload, rate, length_s))
        results = recorder.results(loop.now_s())
        if name == "together":
            row |= {
                "simulated_s": round(results.duration_s, 1),
                "cpu_s": round(cpu_s, 2),
                "times_real_time": round(results.duration_s / cpu_s),
                "us_per_request": round(cpu_s / results.submitted * 1e6),
                "steps": results.replicas[0].steps,
                "mean_running": round(results.replicas[0].mean_running or 0.0, 1),
                "ttft_p50_s": results.ttft.p50_s,
                "tpot_p50_s": results.tpot.p50_s,
                "stable": not results.stability.is_unstable,
            }
        else:
            row[f"{name}_times_real_time"] = round(results.duration_s / cpu_s)
            row[f"{name}_digest"] = listener.hash.hexdigest() if isinstance(listener, Digest) else ""
    row["same_records"] = row.pop("compare_digest") == row.pop("one by one_digest")
    return row


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def fleet(pricer: StepPricer, replicas: int, seconds: float) -> dict[str, Any]:
    workload, loop = Workload(1000, 250), EventLoop()
    made = [make_replica(f"r{i}", loop, pricer, workload, together=True) for i in range(replicas)]
    resident = {}
    for share in (0.25, 1.0):
        at_s = share * seconds
        loop.at(at_s, lambda share=share: resident.__setitem__(f"resident_mib_at_{share:g}", round(resident_mib(), 1)))
    recorder = Recorder()
    cpu_s = run(made, loop, recorder, requests(workload, float(replicas), seconds))
    results = recorder.results(loop.now_s())
    return {
        "replicas": replicas,
        "simulated_s": round(results.duration_s, 1),
        "requests": results.submitted,
        "steps": sum(replica.steps for replica in results.replicas),
        "cpu_s": round(cpu_s, 1),
        "cpu_s_per_simulated_hour": round(cpu_s / results.duration_s * 3600, 1),
        **resident,
    }


def loop_ns() -> float:
    """CPU nanoseconds of one addition in a loop: what this interpreter on this machine is capable of at the moment."""
    rounds, total = 2_000_000, 0
    begin = time.thread_time()
    for number in range(rounds):
        total += number
    return round((time.thread_time() - begin) / rounds * 1e9, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the simulator.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--seconds", type=float, default=600.0, help="simulated seconds of arrivals at one replica")
    parser.add_argument("--fleet-seconds", type=float, default=600.0, help="simulated seconds of arrivals at 100 replicas")
    options = parser.parse_args()
    pricer = StepPricer(model())
    before_ns = loop_ns()
    rows = {workload.name: single(pricer, workload, options.seconds) for workload in WORKLOADS}
    many = fleet(pricer, 100, options.fleet_seconds)
    figures = {
        "model": f"{MODEL} on {TENSOR} x {DEVICE}",
        "load": LOAD,
        "python_loop_ns": [before_ns, loop_ns()],
        "workloads": rows,
        "fleet": many,
    }
    path = write_result("sim_speed", figures)
    host = machine()
    if options.json:
        print(json.dumps({"machine": host, **figures}, indent=1))
        return
    print(f"{host['cpu']}, {host['cores']} cores; Python {host['python']}, loop {figures['python_loop_ns']} ns; in {path}")
    print(f"{figures['model']} at {LOAD:.0%} of capacity; times real time, together and one by one")
    print(f"{'workload':54} {'req/s':>6} {'batch':>6} {'together':>9} {'1 by 1':>7} {'us/req':>7} {'same':>5}")
    for name, row in rows.items():
        print(
            f"{name:54} {row['requests_per_s']:6} {row['mean_running']:6} {row['times_real_time']:9,} "
            f"{row['one by one_times_real_time']:7,} {row['us_per_request']:7,} {row['same_records']!s:>5}"
        )
    print("100 replicas at 1 request/s each: " + ", ".join(f"{key} {value:,}" for key, value in many.items()))


if __name__ == "__main__":
    main()
