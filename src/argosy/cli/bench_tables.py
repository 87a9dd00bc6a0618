"""What `argosy bench` prints in a terminal."""

from __future__ import annotations

from typing import Any

from argosy.bench.offline import OfflineResult, OfflineSettings
from argosy.bench.serve_report import latency_rows
from argosy.bench.serve_result import ServeResult
from argosy.cli.plan_tables import plan_console, print_table
from argosy.observe.report.figures import seconds, share, significant


def show_offline(model: str, facts: dict[str, Any], settings: OfflineSettings, result: OfflineResult) -> None:
    """Rates of prefill and decode, and what a step is made of."""
    console = plan_console()
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
    console.print(f"{model}: {told}; medians of {settings.repetitions} rounds\n")
    rows = [(f"prefill of {tokens} tokens", measured) for tokens, measured in result.prefill.items()]
    rows += [
        (f"decode, {batch} x ({settings.prompt_tokens} + {settings.output_tokens}) tokens", measured)
        for batch, measured in result.decode.items()
    ]
    columns = ("", "tokens/s", "step", "executor", "slowest step", "scheduler + Python")
    print_table(
        console,
        columns,
        [
            (
                name,
                significant(m.median_tokens_per_s),
                *map(seconds, (m.step_s, m.executor_s, m.slowest_step_s)),
                share(m.overhead_share),
            )
            for name, m in rows
        ],
        right=columns[1:],
    )


def show_serve(title: str, result: ServeResult) -> None:
    """Throughput, latencies, errors and goodput of a run under load."""
    console = plan_console()
    console.print(f"{title}\n")
    figures = [
        ("output tokens/s", significant(result.output_tokens_per_s)),
        ("requests/s", significant(result.requests_per_s)),
        ("duration", seconds(result.duration_s)),
        ("answered", f"{len(result.counted)} of {result.num_sent}"),
    ]
    if result.goodput is not None:
        kept = f"{share(result.goodput.share)} of requests, {significant(result.goodput.requests_per_s)} a second"
        figures.append(("goodput", kept))
    figures += [(f"failed, {kind}", f"{count}: {result.messages[kind]}") for kind, count in sorted(result.errors.items())]
    if result.short_outputs:
        figures.append(("short outputs", f"{result.short_outputs} answers ended before the length asked for"))
    if result.prompt_mismatches:
        figures.append(
            ("prompt lengths", f"{result.prompt_mismatches} prompts counted otherwise by the server than planned")
        )
    width = max(len(name) for name, _ in figures)
    for name, value in figures:
        console.print(f"{name:<{width}}  {value}")
    console.print()
    columns = ("", "mean", "p50", "p90", "p95", "p99", "max")
    print_table(console, columns, latency_rows(result), right=columns[1:])
    lateness = result.lateness or result.loop_lag
    if lateness is not None:
        console.print(f"\ngenerator late by {seconds(lateness.p50)} at p50, {seconds(lateness.p99)} at p99")
