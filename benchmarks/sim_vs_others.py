"""The simulator beside Vidur (MLSys 2024), on the same requests with the same step times.

    python -m venv /path/of/vidur && /path/of/vidur/bin/pip install vidur
    OMP_NUM_THREADS=1 python benchmarks/sim_vs_others.py --vidur /path/of/vidur/bin/python [--requests 2000] [--rounds 3]

Vidur predicts step times from profiles that it downloads; here both take them from Argosy's cost model, Llama-3.1-8B on one
H100 SXM, so that what is compared is the simulation itself: chunked prefill of 2,048 tokens, at most 128 sequences, the same
KV blocks, no prefix cache. Vidur runs its Sarathi scheduler with metrics and traces off; Argosy runs the engine's scheduler
with its records of requests, steps and time series. Rounds alternate; counted is CPU time of building and running, without
imports. Writes benchmarks/results/sim_vs_others.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import argosy
from argosy.settings.yaml_file import parse_yaml
from argosy.sim.assembly import Sinks, assemble, make_blueprints
from argosy.sim.config.simulation import parse_simulation
from argosy.sim.outcome import RequestOutcome, StepSpan
from argosy.sim.run import run
from argosy.sim.workload.recorded_trace import header_line
from report import machine, write_result

MODEL, DEVICE = "Llama-3.1-8B", "H100 SXM"
CHUNK, SEQUENCES, BLOCK, MAX_LEN = 2048, 128, 16, 8192
RATES = {"light": 4.0, "moderate": 12.0, "heavy": 20.0}
CONFIG = """
model: {model}
replicas:
  - name: r
    count: {replicas}
    device: {device}
    engine:
      block_size: {block}
      max_model_len: {max_len}
      max_num_seqs: {sequences}
      max_num_batched_tokens: {chunk}
      max_waiting: 1_000_000
      prefill_share: 1.0
      enable_prefix_caching: false
routing: round_robin
workload: {{sources: [{{name: t, trace: {{path: trace.ndjson}}}}]}}
"""

Rows = list[tuple[float, int, int]]


class Keeps:
    """A log that keeps what is compared."""

    def __init__(self) -> None:
        self.requests: dict[int, tuple[float, float]] = {}

    def request(self, outcome: RequestOutcome) -> None:
        number = int(outcome.request.request_id.partition("/")[2])
        self.requests[number] = (outcome.ttft_s or 0.0, outcome.e2e_s)

    def steps(self, replica: str, span: StepSpan) -> None:
        pass


def requests(rate: float, count: int, seed: int) -> Rows:
    """(arrival, prompt, output): Poisson, log-normal lengths (sigma 0.5) around 1,000 and 250 tokens."""
    rng, now_s, rows = Random(seed), 0.0, []
    for _ in range(count):
        now_s += rng.expovariate(rate)
        prompt = min(6000, max(1, round(1000 * rng.lognormvariate(0, 0.5))))
        rows.append((now_s, prompt, min(2000, max(2, round(250 * rng.lognormvariate(0, 0.5))))))
    return rows


def write_traces(rows: Rows, folder: Path) -> None:
    """The same requests in both forms."""
    ours = [json.dumps({"id": str(i), "arrival_s": a, "prompt": p, "output": o}) for i, (a, p, o) in enumerate(rows)]
    (folder / "trace.ndjson").write_text(header_line() + "\n".join(ours) + "\n")
    theirs = [f"2026-01-01,{arrival!r},{prompt},{output}" for arrival, prompt, output in rows]
    (folder / "trace.csv").write_text("Date,Time,PromptTokenCount,CompletionTokenCount\n" + "\n".join(theirs) + "\n")


def by_argosy(folder: Path, replicas: int) -> dict[str, Any]:
    text = CONFIG.format(
        model=MODEL, device=DEVICE, block=BLOCK, max_len=MAX_LEN, sequences=SEQUENCES, chunk=CHUNK, replicas=replicas
    )
    loaded = parse_simulation(parse_yaml(text, "config"), folder)
    blueprints = make_blueprints(loaded.config)
    kept = Keeps()
    began_s = time.process_time()
    outcome = run(assemble(loaded.config, blueprints, folder, sinks=Sinks(kept)))
    cpu_s = time.process_time() - began_s
    pairs = [kept.requests[number] for number in sorted(kept.requests)]
    return {
        "cpu_s": cpu_s,
        "simulated_s": outcome.results.duration_s,
        "ttft_s": [ttft for ttft, _ in pairs],
        "e2e_s": [e2e for _, e2e in pairs],
        "num_blocks": blueprints["r"].scheduler.num_blocks,
    }


def by_vidur(python: str, folder: Path, replicas: int, num_blocks: int) -> dict[str, Any]:
    job = {
        "trace": str(folder / "trace.csv"),
        "model": MODEL,
        "device": DEVICE,
        "tensor": 1,
        "replicas": replicas,
        "max_model_len": MAX_LEN,
        "max_num_seqs": SEQUENCES,
        "chunk": CHUNK,
        "num_blocks": num_blocks,
        "block_size": BLOCK,
    }
    source = Path(argosy.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(source), "WANDB_MODE": "disabled"}
    worker = Path(__file__).parent / "peers" / "vidur_worker.py"
    done = subprocess.run(
        [python, str(worker)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )
    if done.returncode:
        sys.exit(f"vidur: {done.stderr.strip().splitlines()[-1]}")
    answer = json.loads(done.stdout)
    rows = answer["requests"]
    return {
        "cpu_s": answer["cpu_s"],
        "simulated_s": answer["simulated_s"],
        "ttft_s": [row["ttft_s"] for row in rows],
        "e2e_s": [row["e2e_s"] for row in rows],
    }


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def latencies(run: dict[str, Any], rows: Rows) -> dict[str, float]:
    tpot = [(e - t) / (output - 1) for e, t, (_, _, output) in zip(run["e2e_s"], run["ttft_s"], rows, strict=True)]
    return {
        "ttft_mean_ms": 1e3 * statistics.fmean(run["ttft_s"]),
        "ttft_p99_ms": 1e3 * quantile(run["ttft_s"], 0.99),
        "tpot_mean_ms": 1e3 * statistics.fmean(tpot),
        "tpot_p99_ms": 1e3 * quantile(tpot, 0.99),
    }


def compared(python: str, rate: float, replicas: int, count: int, rounds: int) -> dict[str, Any]:
    rows = requests(rate * replicas, count, seed=1)
    seconds: dict[str, list[float]] = {"argosy": [], "vidur": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_traces(rows, folder)
        for _ in range(rounds):
            ours = by_argosy(folder, replicas)
            theirs = by_vidur(python, folder, replicas, ours["num_blocks"])
            seconds["argosy"].append(ours["cpu_s"])
            seconds["vidur"].append(theirs["cpu_s"])
    figures = {"argosy": latencies(ours, rows), "vidur": latencies(theirs, rows)}
    for which, one in (("argosy", ours), ("vidur", theirs)):
        figures[which]["cpu_s"] = statistics.median(seconds[which])
        figures[which]["times_real_time"] = one["simulated_s"] / figures[which]["cpu_s"]
    apart = [abs(a - b) / b for a, b in zip(ours["e2e_s"], theirs["e2e_s"], strict=True)]
    return {
        "requests_per_s": rate * replicas,
        "replicas": replicas,
        "requests": count,
        **{name: {key: round(value, 3) for key, value in one.items()} for name, one in figures.items()},
        "median_difference_of_a_request": round(statistics.median(apart), 5),
        "vidur_cpu_over_argosy": round(figures["vidur"]["cpu_s"] / figures["argosy"]["cpu_s"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Argosy's simulator beside Vidur.")
    parser.add_argument("--vidur", required=True, help="Python interpreter that has vidur installed")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    version = subprocess.run(
        [options.vidur, "-c", "from importlib.metadata import version; print(version('vidur'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    rows = {name: compared(options.vidur, rate, 1, options.requests, options.rounds) for name, rate in RATES.items()}
    rows["8 replicas"] = compared(options.vidur, RATES["moderate"], 8, options.requests, options.rounds)
    figures = {"vidur": version, "model": MODEL, "device": DEVICE, "runs": rows}
    path = write_result("sim_vs_others", figures)
    host = machine()
    if options.json:
        print(json.dumps({"machine": host, **figures}, indent=1))
        return
    print(f"{host['cpu']}, {host['cores']} cores; vidur {version}; written to {path}")
    print("argosy and vidur: milliseconds, CPU seconds, CPU seconds of vidur over those of argosy")
    print(f"{'':11} {'req/s':>6} {'TTFT mean':>17} {'TTFT p99':>17} {'TPOT mean':>15} {'CPU s':>13} {'ratio':>6}")
    for name, row in rows.items():
        ours, theirs = row["argosy"], row["vidur"]
        pairs = [f"{ours[key]:8.1f} {theirs[key]:8.1f}" for key in ("ttft_mean_ms", "ttft_p99_ms")]
        pairs.append(f"{ours['tpot_mean_ms']:7.2f} {theirs['tpot_mean_ms']:7.2f}")
        cpu = f"{ours['cpu_s']:6.2f} {theirs['cpu_s']:6.2f} {row['vidur_cpu_over_argosy']:6.1f}"
        print(f"{name:11} {row['requests_per_s']:6.0f} {' '.join(pairs)} {cpu}")


if __name__ == "__main__":
    main()
