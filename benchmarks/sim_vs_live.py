"""How far a simulation of this machine is from the machine: unseen traces, served live and simulated.

    python benchmarks/sim_vs_live.py                    about six minutes on an idle machine
    python benchmarks/sim_vs_live.py --seconds 8 --rounds 1
    python benchmarks/sim_vs_live.py --paced            with an executor that sleeps: all of the error but that of step times

The engine runs in this process as a server runs it: `AsyncEngine` on its thread, requests submitted in real time. The
capacity of the traces' mix is measured first. Then rounds follow, each of the loads of a calibration (as `argosy calibrate`
runs them) and of all traces, so that both see the machine in the same moods; the traces are simulated with the step times
fitted to the former. The difference between two live runs of one trace stands beside the error: it is the floor that no
simulation can beat.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from argosy import __version__
from argosy.bench.calibrate import Measured, StepLog, fit, machine_device, measure_round, warm_up
from argosy.bench.step_samples import samples_of
from argosy.cost.collectives import Topology
from argosy.cost.deployment import Deployment
from argosy.cost.device import Device, Precision
from argosy.cost.formats import WeightFormat, precisions_for
from argosy.cost.host import measure_host, processor_name
from argosy.cost.machine_calibration import ENGINE, MeasuredModel
from argosy.cost.measured_steps import attention_shares
from argosy.cost.model_spec import ModelSpec
from argosy.cost.parallel import ParallelPlan
from argosy.cost.step_time_model import StepTimeModel
from argosy.engine.args import EngineArgs
from argosy.engine.async_engine import AsyncEngine
from argosy.engine.build import EngineParts, build_parts, start_async_engine
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.core.scheduler import Scheduler
from argosy.engine.step_recorder import Record, StepRecord
from argosy.planner.model_source import find_spec
from argosy.sim.cost_executor import CostExecutor, CostTimer
from argosy.sim.event_loop import EventLoop
from argosy.sim.measured_pricer import MeasuredPricer
from argosy.sim.outcome import RequestOutcome, StepSpan
from argosy.sim.replay import first_difference, live_run, replay
from argosy.sim.replica import Replica
from argosy.sim.workload.trace_request import Segment, TraceRequest, content_id
from paced_engine import paced_parts

BARS = {"tpot_mean_s": 0.05, "tokens_per_s": 0.03, "ttft_p50_s": 0.10, "ttft_p99_s": 0.10}
RESULTS = Path(__file__).parent / "results"
MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Figures:
    """What is compared, of one run of one trace; seconds."""

    tpot_mean_s: float
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    preemptions: int
    prefix_hits_tokens: int


@dataclass(frozen=True, slots=True)
class Served:
    """One request: when it came, when its first and last token were there, and how many there were."""

    arrival_s: float
    first_s: float
    last_s: float
    tokens: int


def figures(served: Sequence[Served], scheduler_counts: tuple[int, int]) -> Figures:
    ttft = [one.first_s - one.arrival_s for one in served]
    tpot = [(one.last_s - one.first_s) / (one.tokens - 1) for one in served if one.tokens > 1]
    duration_s = max(one.last_s for one in served) - min(one.arrival_s for one in served)
    return Figures(
        statistics.fmean(tpot),
        sum(one.tokens for one in served) / duration_s,
        float(np.percentile(ttft, 50)),
        float(np.percentile(ttft, 99)),
        *scheduler_counts,
    )


# ---- traces ----


def mixed(rng: Random, number: int) -> tuple[tuple[Segment, ...], int]:
    """A prompt of 16 to 256 tokens of its own, an answer of 8 to 64."""
    return (Segment(content_id("own", number), int(16 * 16 ** rng.random())),), int(8 * 8 ** rng.random())


def prefixed(rng: Random, number: int) -> tuple[tuple[Segment, ...], int]:
    """One of four system prompts of 192 tokens, then 8 to 64 tokens of its own."""
    segments, output = mixed(rng, number)
    return (
        Segment(content_id("system", rng.randrange(4)), 192),
        Segment(segments[0].content_id, 8 + rng.randrange(56)),
    ), output


def poisson(name: str, rate: float, seconds: float, shape: Any = mixed) -> list[TraceRequest]:
    rng, now_s, requests = Random(f"{name} {shape.__name__}"), 0.0, []
    while (now_s := now_s + rng.expovariate(rate)) < seconds or len(requests) < 5:
        segments, output = shape(rng, content_id(name, len(requests)))
        requests.append(TraceRequest(f"{name}-{len(requests)}", now_s, segments, output))
    return requests


def bursts(name: str, rate: float, seconds: float) -> list[TraceRequest]:
    """The same mean rate, but a quarter of the time four times as many and none in between."""
    period_s = seconds / 4
    dense = poisson(name, 4 * rate, seconds / 4)
    return [one.arriving_at(one.arrival_s // (period_s / 4) * period_s + one.arrival_s % (period_s / 4)) for one in dense]


def traces(capacity_per_s: float, seconds: float) -> dict[str, list[TraceRequest]]:
    made = {f"poisson at {share} %": poisson(f"p{share}", share / 100 * capacity_per_s, seconds) for share in (50, 80, 95)}
    made["shared prefixes at 80 %"] = poisson("prefix", 0.8 * capacity_per_s, seconds, prefixed)
    made["bursts at 70 %"] = bursts("bursts", 0.7 * capacity_per_s, seconds)
    return made


# ---- live ----


async def serve(engine: AsyncEngine, requests: Sequence[TraceRequest], run: str) -> list[Served]:
    """Submit every request when it is due; what is late is submitted at once and counts from when it was due."""
    width = engine.info.logits_width
    prompts = [one.token_ids(width) for one in requests]
    params = [SamplingParams(temperature=0.0, max_tokens=one.output_tokens, ignore_eos=True) for one in requests]
    begin_s = time.monotonic()

    async def one(index: int) -> Served:
        arrival_s = begin_s + requests[index].arrival_s
        await asyncio.sleep(max(0.0, arrival_s - time.monotonic()))
        first_s, last_s, tokens = 0.0, 0.0, 0
        # Prefixes are not shared between runs: every run begins with a cold cache, as the simulation does.
        async for delta in engine.submit(f"{run}/{index}", prompts[index], params[index], cache_salt=run):
            last_s = time.monotonic()
            first_s = first_s or last_s
            tokens += len(delta.token_ids)
        return Served(arrival_s, first_s, last_s, tokens)

    return list(await asyncio.gather(*[one(index) for index in range(len(requests))]))


async def measured_capacity(engine: AsyncEngine, seconds: float) -> float:
    """Requests per second of the mix when everybody waits: many at once, over the time from the first to the last end."""
    requests = [replace(one, arrival_s=0.0) for one in poisson("capacity", 1.0, 24.0 + 2.0 * seconds)]
    served = await serve(engine, requests, "capacity")
    ends = sorted(one.last_s for one in served)
    # The last ends are those of a batch that runs empty.
    kept = ends[: max(2, int(0.8 * len(ends)))]
    return len(kept) / (kept[-1] - min(one.arrival_s for one in served))


def counts(scheduler: Scheduler) -> tuple[int, int]:
    return scheduler.num_preemptions, scheduler.prefix_hits_tokens


async def live_figures(engine: AsyncEngine, scheduler: Scheduler, requests: Sequence[TraceRequest], run: str) -> Figures:
    before = counts(scheduler)
    served = await serve(engine, requests, run)
    preemptions, hits = (after - b for after, b in zip(counts(scheduler), before, strict=True))
    return figures(served, (preemptions, hits))


# ---- simulated ----


class Outcomes:
    """A listener that keeps the outcomes."""

    def __init__(self) -> None:
        self.served: list[Served] = []

    def on_first_token(self, replica: Replica, request: TraceRequest, now_s: float) -> None: ...

    def on_steps(self, replica: Replica, span: StepSpan) -> None: ...

    def on_finish(self, replica: Replica, outcome: RequestOutcome) -> None:  # noqa: ARG002
        assert outcome.first_token_s is not None
        self.served.append(
            Served(outcome.request.arrival_s, outcome.first_token_s, outcome.finished_s, outcome.num_output_tokens)
        )


def simulated_figures(pricer: MeasuredPricer, config: SchedulerConfig, requests: Sequence[TraceRequest]) -> Figures:
    loop, outcomes = EventLoop(), Outcomes()
    executor = CostExecutor(CostTimer(pricer), num_blocks=config.num_blocks, kv_dtype=config.kv_dtype)
    scheduler = Scheduler(config, known_outputs=executor)
    replica = Replica("simulated", loop, scheduler, executor, listener=outcomes)
    for request in requests:
        loop.at(request.arrival_s, lambda request=request: replica.submit(request))
    loop.run()
    return figures(outcomes.served, counts(scheduler))


def pricer_of(spec: ModelSpec, device: Device, measured: MeasuredModel) -> MeasuredPricer:
    precisions = precisions_for(device, WeightFormat(measured.weights), Precision.FP16)
    deployment = Deployment(spec, ParallelPlan.for_serving(), precisions)
    constants = measured.calibration.constants(ENGINE)
    return MeasuredPricer(StepTimeModel(deployment, device, Topology.of(device), constants), measured.steps)


# ---- the comparison ----


def predicted_over_live(measured: MeasuredModel, spec: ModelSpec, steps: Sequence[StepRecord]) -> tuple[float, float]:
    """Calibrated over live seconds of steps, as the median of single ones and as the ratio of the sums: what of an error
    is of step times, and how much the machine's pace differed from that of the calibration."""
    shares = attention_shares(Deployment(spec, ParallelPlan.for_serving()))
    pairs = [
        (measured.steps.step_s(one.features), one.executor_s + one.host_s)
        for one in samples_of(steps, shares, "live")
        if one.host_s is not None
    ]
    predicted, live = zip(*pairs, strict=True)
    return statistics.median(p / s for p, s in pairs), sum(predicted) / sum(live)


def error(simulated: float, live: float) -> float:
    return simulated / live - 1.0 if live else 0.0


def compare(simulated: Figures, live: Sequence[Figures]) -> dict[str, Any]:
    """Per figure: the median of the live runs, the simulated one, its error, and the largest difference of two live runs."""
    rows: dict[str, Any] = {}
    for name in BARS:
        values = [getattr(one, name) for one in live]
        middle = statistics.median(values)
        spread = max((abs(a / b - 1.0) for a, b in itertools.permutations(values, 2)), default=0.0)
        rows[name] = {
            "live": middle,
            "runs": values,
            "simulated": getattr(simulated, name),
            "error": error(getattr(simulated, name), middle),
            "live_spread": spread,
        }
    return rows


def table(compared: dict[str, dict[str, Any]], medians: dict[str, float]) -> str:
    """Markdown, for the documentation."""
    head = "| trace | mean TPOT | tokens/s | TTFT p50 | TTFT p99 |\n|---|---|---|---|---|\n"
    lines = []
    for trace, rows in compared.items():
        cells = [f"{rows[name]['error']:+.1%} (live ±{rows[name]['live_spread']:.1%})" for name in BARS]
        lines.append(f"| {trace} | {' | '.join(cells)} |")
    lines.append(f"| median of absolute errors | {' | '.join(f'{medians[name]:.1%}' for name in BARS)} |")
    lines.append(f"| bar | {' | '.join(f'{bar:.0%}' for bar in BARS.values())} |")
    return head + "\n".join(lines)


def report(label: str, done: int, total: int) -> None:
    print(f"\r{label}: {done} of {total}          ", end="\n" if done >= total else "", file=sys.stderr, flush=True)


async def run_live(
    parts: EngineParts, log: StepLog, seconds: float, rounds: int
) -> tuple[float, dict[str, list[TraceRequest]], dict[str, list[Figures]], list[Measured]]:
    """(capacity, traces, live figures by trace, calibration): in each round the loads of a calibration, then all traces."""
    scheduler, engine, rng = parts.step_loop.scheduler, start_async_engine(parts), Random(0)
    try:
        await warm_up(engine, log, rng, report)
        capacity = await measured_capacity(engine, seconds)
        print(f"capacity of the mix: {capacity:.2f} requests/s", file=sys.stderr)
        made = traces(capacity, seconds)
        live: dict[str, list[Figures]] = {name: [] for name in made}
        loads: list[Measured] = []
        for number in range(1, rounds + 1):
            loads += await measure_round(engine, log, rng, f"calibration, round {number} of {rounds}", report)
            for done, (name, requests) in enumerate(made.items()):
                report(f"live, round {number} of {rounds}", done, len(made))
                live[name].append(await live_figures(engine, scheduler, requests, f"{name} {number}"))
            report(f"live, round {number} of {rounds}", len(made), len(made))
        loads += await measure_round(engine, log, rng, "calibration, last round", report)
        return capacity, made, live, loads
    finally:
        await engine.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--paced", action="store_true", help="no model: an executor that takes as long as it says")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=18.0, help="of arrivals, per trace")
    parser.add_argument("--rounds", type=int, default=2, help="how often each trace is served live")
    parser.add_argument("--results", type=Path, default=None)
    asked = parser.parse_args()
    args = EngineArgs("paced" if asked.paced else asked.model, threads=asked.threads)
    records: list[Record] = []
    log = StepLog()

    def on_record(record: Record) -> None:
        records.append(record)
        log(record)

    parts = paced_parts(on_record) if asked.paced else build_parts(args, on_record=on_record)
    spec, _ = find_spec("SmolLM2-135M" if asked.paced else parts.info.model_path)
    host = measure_host()
    config = parts.step_loop.scheduler.config
    capacity, made, live, loads = asyncio.run(run_live(parts, log, asked.seconds, asked.rounds))
    device = machine_device(host, loads, spec)
    measured = fit(loads, spec, device, args=args, parts=parts)
    print(f"calibration: {measured.steps.held_out.median:.1%} off on loads left out", file=sys.stderr)
    run = live_run(config, records)
    parity = first_difference(run.steps, replay(run))
    pricer = pricer_of(spec, device, measured)
    compared = {name: compare(simulated_figures(pricer, config, requests), live[name]) for name, requests in made.items()}
    ratios = predicted_over_live(measured, spec, run.steps)
    medians = {name: statistics.median(abs(rows[name]["error"]) for rows in compared.values()) for name in BARS}
    result = {
        "machine": processor_name(),
        "python": platform.python_version(),
        "argosy": __version__,
        "model": measured.model,
        "settings": {"seconds": asked.seconds, "rounds": asked.rounds, "threads": asked.threads or "default"},
        "capacity_requests_per_s": capacity,
        "requests": {name: len(requests) for name, requests in made.items()},
        "calibration": asdict(measured),
        "bars": BARS,
        "median_errors": medians,
        "within_bars": {name: medians[name] <= bar for name, bar in BARS.items()},
        "traces": compared,
        "step_time_predicted_over_live": {"median": ratios[0], "sum": ratios[1]},
        "replayed_steps": len(run.steps),
        "replay_difference": parity,
    }
    results = asked.results or RESULTS / ("sim_vs_live_paced.json" if asked.paced else "sim_vs_live.json")
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(table(compared, medians))
    print(f"\nlive steps took {1 / ratios[0]:.3f} of what was calibrated in the median, {1 / ratios[1]:.3f} in all")
    print(f"replay of {len(run.steps)} live steps: {parity or 'every decision equal'}")


if __name__ == "__main__":
    main()
