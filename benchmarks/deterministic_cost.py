"""What `--deterministic` costs: seconds for the same greedy work with and without it, alternating in one run.

usage: python benchmarks/deterministic_cost.py [--threads 1] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import time

from rich.console import Console
from rich.table import Table

from argosy import LLM, SamplingParams
from report import machine, write_result

# Sequences, prompt tokens, generated tokens of each.
LOADS = ((1, 8, 24), (8, 8, 24), (1, 512, 1))


def main() -> None:
    """Measure, print a table, write benchmarks/results/deterministic_cost.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    common = {"threads": options.threads, "num_blocks_override": 256, "enable_prefix_caching": False}
    modes = {
        name: LLM("smollm2-135m", deterministic=name == "deterministic", **common) for name in ("default", "deterministic")
    }
    table = Table("load", *(f"{name}, s" for name in modes), "ratio")
    rows = []
    for sequences, prompt_tokens, new_tokens in LOADS:
        prompts = [[100 + i + j % 500 for j in range(prompt_tokens)] for i in range(sequences)]
        params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
        seconds: dict[str, list[float]] = {name: [] for name in modes}
        for _ in range(options.rounds):
            for name, llm in modes.items():
                begin = time.perf_counter()
                llm.generate(prompts, params)
                seconds[name].append(time.perf_counter() - begin)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        ratio = statistics.median(d / p for p, d in zip(*seconds.values(), strict=True))
        rows.append(
            {"sequences": sequences, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "ratio": ratio, **medians}
        )
        label = f"{sequences} x ({prompt_tokens} + {new_tokens}) tokens"
        table.add_row(label, *(f"{value:.2f}" for value in medians.values()), f"{ratio:.1f}")
    Console().print(table)
    path = write_result("deterministic_cost", {"threads": options.threads, "rows": rows})
    print(f"wrote {path} on {machine()['cpu']}")


if __name__ == "__main__":
    main()
