"""A simulated run in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from argosy.cli.plan_tables import facts, heading, plan_console, print_table
from argosy.observe.report.figures import UNKNOWN, count, seconds, share, significant, usd
from argosy.sim.blueprint import Blueprint
from argosy.sim.config.simulation import SimulationConfig
from argosy.sim.results import Distribution, ReplicaResults
from argosy.sim.run import SimulationRun

_MOST_REPLICAS = 12


def show_run(
    run: SimulationRun, config: SimulationConfig, blueprints: Mapping[str, Blueprint], files: Sequence[Path]
) -> None:
    """Print what came out of `run`, and where its files are."""
    console = plan_console()
    results = run.results
    console.print(f"{config.model} on {_fleet(config)}, seed {run.seed}", style="bold")
    console.print(
        f"{seconds(results.duration_s)} simulated in {seconds(run.wall_s)}, {significant(run.times_real_time)} times real "
        f"time; {run.end}",
        style="dim",
    )
    console.print()
    console.print(str(results.stability), style="red" if results.stability.is_unstable else "")
    heading(console, "Latency")
    _latencies(console, run)
    heading(console, "Requests and what they cost")
    facts(console, [*_requests(run), *_resources(run)])
    heading(console, "Replicas")
    _replicas(console, results.replicas)
    carried = [one.pricer.model for one in blueprints.values() if one.pricer.model.constants.held_out_error is None]
    if carried:
        names = ", ".join(dict.fromkeys(model.device.name for model in carried))
        console.print(f"\nnote: step times of {names} stand on measurements of other devices", style="dim")
    if files:
        console.print()
        for path in files:
            console.print(f"{path}", soft_wrap=True)


def _fleet(config: SimulationConfig) -> str:
    return ", ".join(
        f"{group.count} x {group.name} ({group.parallelism.plan().devices} x {group.device or group.node})"
        for group in config.replicas
    )


def _latencies(console: Console, run: SimulationRun) -> None:
    results = run.results
    named = (
        ("TTFT", results.ttft),
        ("TPOT", results.tpot),
        ("gap between tokens", results.itl),
        ("E2E", results.e2e),
        ("wait before the batch", results.queueing),
    )
    columns = ("", "MEAN", "P50", "P90", "P95", "P99", "LONGEST")
    print_table(console, columns, [(name, *_row(one)) for name, one in named], right=columns[1:], indent=2)


def _row(one: Distribution) -> tuple[str, ...]:
    return tuple(seconds(value) for value in (one.mean_s, one.p50_s, one.p90_s, one.p95_s, one.p99_s, one.greatest_s))


def _requests(run: SimulationRun) -> list[tuple[str, str]]:
    results, counters = run.results, run.counters
    ends = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in results.outcomes.items() if number)
    in_flight = f", {results.in_flight:,} in flight at the end" if results.in_flight else ""
    rows = [
        ("requests", f"{results.submitted:,} arrived: {ends or 'none ended'}{in_flight}"),
        (
            "throughput",
            f"{significant(results.requests_per_s)} requests/s, {count(results.output_tokens_per_s)} output tokens/s",
        ),
    ]
    if results.slo_share is not None:
        goodput = significant(results.goodput_per_s or 0.0)
        rows.append(("service level", f"kept by {share(results.slo_share)}; goodput {goodput} requests/s"))
    if results.prefix_hit_rate is not None:
        rows.append(("prefix cache", f"{share(results.prefix_hit_rate)} of prompt tokens found"))
    if results.corrupted:
        rows.append(("corrupted", f"{results.corrupted:,} answers by a replica that computed nonsense"))
    trouble = [
        f"{number:,} {what}"
        for number, what in (
            (results.preemptions, "preemptions"),
            (counters.retries, "tried again by the gateway"),
            (run.num_sent_again, "sent again by clients"),
            (run.num_skipped_faults, "faults of replicas that were not there"),
        )
        if number
    ]
    return [*rows, ("trouble", ", ".join(trouble))] if trouble else rows


def _resources(run: SimulationRun) -> list[tuple[str, str]]:
    results, rows = run.results, []
    if results.usd is not None:
        per_token = usd(results.usd_per_million_output_tokens)
        rows.append(("cost", f"{usd(results.usd)} in all, {per_token} per 1M output tokens"))
    if results.energy_j is not None:
        rows.append(("energy", f"at most {significant(results.energy_j / 3.6e6)} kWh, at board power while busy"))
    return rows


def _replicas(console: Console, replicas: Sequence[ReplicaResults]) -> None:
    columns = ("REPLICA", "BUSY", "STEPS", "TOKENS", "BATCH", "KV", "KV PEAK", "HITS", "COST")
    rows = [
        (
            one.name,
            share(one.busy_share),
            count(one.steps),
            count(one.tokens),
            UNKNOWN if one.mean_running is None else significant(one.mean_running),
            share(one.mean_kv_used),
            share(one.peak_kv_used),
            share(one.prefix_hit_tokens / one.prefix_query_tokens) if one.prefix_query_tokens else UNKNOWN,
            usd(one.usd),
        )
        for one in replicas[:_MOST_REPLICAS]
    ]
    print_table(console, columns, rows, right=columns[1:], drops=("STEPS", "KV PEAK", "COST"), indent=2)
    if len(replicas) > _MOST_REPLICAS:
        console.print(f"  and {len(replicas) - _MOST_REPLICAS} more; --json and the report have them all", style="dim")
