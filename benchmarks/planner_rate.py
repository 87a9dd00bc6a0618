"""How many serving plans a second the planner judges on one core.

    OMP_NUM_THREADS=1 python benchmarks/planner_rate.py [--json] [--plans 100000]

A plan is one layout, pair of formats, chunk size, batch limit and number of replicas, judged by its latency percentiles
under open traffic. Each question is repeated over more kinds of device until so many plans are judged. Counted is the CPU
time of the whole call, ranking, disaggregated pools and write-up included. Writes benchmarks/results/planner_rate.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace

from argosy.planner.offers import DeviceOffer
from argosy.planner.serving import plan_serving
from argosy.planner.serving_question import ServingQuestion, Slo
from argosy.planner.traffic import Traffic
from report import machine, write_result

DEVICES = ("H100 SXM", "A100 SXM 80GB", "H200 SXM", "MI300X", "L40S", "B200 SXM")


def questions() -> dict[str, ServingQuestion]:
    traffic = Traffic.of(20, 1000, 250, prompt_cv=1.0, output_cv=1.0)
    slo = Slo.of(ttft_ms=2000, tpot_ms=60)
    none: tuple[DeviceOffer, ...] = (DeviceOffer(DEVICES[0]),)
    return {
        "dense, Llama-3.1-70B": ServingQuestion("Llama-3.1-70B", traffic, slo, none),
        "experts, gpt-oss-120b": ServingQuestion("gpt-oss-120b", traffic, slo, none),
        "experts and latent attention, DeepSeek-V3": ServingQuestion("DeepSeek-V3", traffic, slo, none),
    }


def measure(question: ServingQuestion, plans: int) -> dict[str, float | int | str]:
    """Judge at least `plans` plans, over as many kinds of device as that takes."""
    for count in range(1, len(DEVICES) + 1):
        asked = replace(
            question, devices=tuple(DeviceOffer(name, low_usd_per_h=2, high_usd_per_h=3) for name in DEVICES[:count])
        )
        begin = time.process_time()
        answer = plan_serving(asked)
        spent_s = time.process_time() - begin
        if answer.evaluated >= plans or count == len(DEVICES):
            return {
                "devices": ", ".join(DEVICES[:count]),
                "plans": answer.evaluated,
                "seconds": round(spent_s, 2),
                "plans_per_s": round(answer.evaluated / spent_s),
                "seconds_per_100000": round(1e5 * spent_s / answer.evaluated, 2),
            }
    raise AssertionError("the last count returns")


def main() -> None:
    parser = argparse.ArgumentParser(description="Serving plans judged per second.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--plans", type=int, default=100_000, help="judge at least so many plans per question")
    options = parser.parse_args()
    rows = {name: measure(question, options.plans) for name, question in questions().items()}
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    path = write_result("planner_rate", {"omp_num_threads": threads, "questions": rows})
    host = machine()
    if options.json:
        print(json.dumps({"machine": host, "questions": rows}, indent=1))
        return
    print(f"{host['cpu']}; Python {host['python']}; OMP_NUM_THREADS {threads}; written to {path}")
    print(f"{'question':45} {'plans':>9} {'seconds':>8} {'plans/s':>9} {'s per 100000':>13}")
    for name, row in rows.items():
        print(f"{name:45} {row['plans']:9,} {row['seconds']:8} {row['plans_per_s']:9,} {row['seconds_per_100000']:13}")


if __name__ == "__main__":
    main()
