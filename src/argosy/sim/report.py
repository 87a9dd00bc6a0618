"""A run as one HTML page: figures, distributions, everything over time, replicas, and what the figures stand on."""

from __future__ import annotations

from collections.abc import Mapping

from argosy.cost.quantity import Grade
from argosy.observe.report import page
from argosy.observe.report.figures import UNKNOWN, count, seconds, share, si, significant, usd
from argosy.observe.report.page import Html
from argosy.sim.blueprint import Blueprint
from argosy.sim.config.simulation import SimulationConfig
from argosy.sim.report_plots import TimePlots, cumulative_plot
from argosy.sim.results import Distribution, ReplicaResults, Slo
from argosy.sim.run import SimulationRun

_LISTED = 40


def simulation_report(
    run: SimulationRun, config: SimulationConfig, blueprints: Mapping[str, Blueprint], config_text: str = ""
) -> str:
    """A page that stands on its own; `config_text` is the configuration file as it was written."""
    results, whole = run.results, run.timeline.whole_run()
    latencies = [
        cumulative_plot("Time to first token and to the end", [("TTFT", whole.ttft), ("E2E", whole.e2e)]),
        cumulative_plot("Time per output token after the first", [("TPOT", whole.tpot)]),
    ]
    parts = [
        page.paragraph(_lead(run, config), "lead"),
        page.paragraph(f"{'Not a steady state: ' if results.stability.is_unstable else ''}{results.stability}."),
        page.cards(_cards(run)),
        page.section("Latency", _latency_table(run), page.panels(latencies)),
        page.section("Over time", page.panels(TimePlots(run).all())),
        page.section("Requests", page.table(("", ""), _ends(run, config.slo), numbers=(1,))),
        page.section("Replicas", *_replicas(results.replicas)),
        page.section("What the figures stand on", _provenance(blueprints), page.bullets(_assumptions())),
    ]
    if config_text:
        parts.append(page.section("Configuration", page.preformatted(config_text)))
    return page.page(f"Simulation of {config.model}", *parts)


def _lead(run: SimulationRun, config: SimulationConfig) -> str:
    groups = ", ".join(
        f"{group.count} x {group.name} ({group.device or group.node}"
        + (f", {group.role}" if group.role != "serve" else "")
        + ")"
        for group in config.replicas
    )
    speed = f"{significant(run.times_real_time)} times real time"
    return (
        f"{groups}; {seconds(run.results.duration_s)} simulated in {seconds(run.wall_s)}, {speed}, seed {run.seed}; "
        f"{run.end}."
    )


def _cards(run: SimulationRun) -> list[tuple[str, str]]:
    results = run.results
    cards = [
        ("TTFT, median", seconds(results.ttft.p50_s)),
        ("TTFT, p99", seconds(results.ttft.p99_s)),
        ("TPOT, mean", seconds(results.tpot.mean_s)),
        ("TPOT, p99", seconds(results.tpot.p99_s)),
        ("requests answered", f"{significant(results.requests_per_s)}/s"),
        ("output tokens", f"{count(results.output_tokens_per_s)}/s"),
    ]
    if results.slo_share is not None:
        cards.append(("kept the service level", share(results.slo_share)))
    if results.prefix_hit_rate is not None:
        cards.append(("prompt tokens cached", share(results.prefix_hit_rate)))
    if results.usd is not None:
        cards.append(("cost", usd(results.usd)))
        cards.append(("per 1M output tokens", usd(results.usd_per_million_output_tokens)))
    if results.energy_j is not None:
        cards.append(("energy at most", f"{significant(results.energy_j / 3.6e6)} kWh"))
    return cards


def _latency_table(run: SimulationRun) -> Html:
    results = run.results
    named = (
        ("TTFT", results.ttft),
        ("TPOT, mean of a request", results.tpot),
        ("gap between tokens", results.itl),
        ("E2E", results.e2e),
        ("wait before the batch", results.queueing),
    )
    columns = ("", "mean", "p50", "p90", "p95", "p99", "longest")
    rows = [(name, *_quantiles(one)) for name, one in named]
    return page.table(columns, rows, numbers=range(1, 7))


def _quantiles(one: Distribution) -> tuple[str, ...]:
    return tuple(seconds(value) for value in (one.mean_s, one.p50_s, one.p90_s, one.p95_s, one.p99_s, one.greatest_s))


def _ends(run: SimulationRun, slo: Slo | None) -> list[tuple[str, str]]:
    results, counters = run.results, run.counters
    rows = [("arrived in the measured time", f"{results.submitted:,}")]
    rows += [(name.replace("_", " "), f"{number:,}") for name, number in results.outcomes.items() if number]
    rows += [("in flight at the end", f"{results.in_flight:,}")] if results.in_flight else []
    if slo is not None:
        bounds = [
            f"{name} within {seconds(bound)}"
            for name, bound in (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s), ("E2E", slo.e2e_s))
            if bound is not None
        ]
        rows.append((f"kept {', '.join(bounds)}", share(results.slo_share)))
        rows.append(("goodput", f"{significant(results.goodput_per_s or 0.0)}/s"))
    rows += [("answered by a replica that computed nonsense", f"{results.corrupted:,}")] if results.corrupted else []
    rows += [("preemptions", f"{results.preemptions:,}"), ("tried again by the gateway", f"{counters.retries:,}")]
    rows.append(("sent again by clients", f"{run.num_sent_again:,}"))
    if run.num_skipped_faults:
        rows.append(("faults of replicas that were not there", f"{run.num_skipped_faults:,}"))
    return rows


def _replicas(replicas: tuple[ReplicaResults, ...]) -> list[Html]:
    shown = _replica_table(replicas[:_LISTED])
    rest = replicas[_LISTED:]
    return [shown] if not rest else [shown, page.folded(f"{len(rest)} more", _replica_table(rest))]


def _replica_table(replicas: tuple[ReplicaResults, ...]) -> Html:
    columns = ("replica", "busy", "steps", "tokens", "prefill", "mean batch", "mean KV", "peak KV", "hits", "$", "kWh")
    rows = [
        (
            one.name,
            share(one.busy_share),
            f"{one.steps:,}",
            count(one.tokens),
            count(one.prefill_tokens),
            UNKNOWN if one.mean_running is None else significant(one.mean_running),
            share(one.mean_kv_used),
            share(one.peak_kv_used),
            share(one.prefix_hit_tokens / one.prefix_query_tokens) if one.prefix_query_tokens else UNKNOWN,
            usd(one.usd),
            UNKNOWN if one.energy_j is None else significant(one.energy_j / 3.6e6),
        )
        for one in replicas
    ]
    return page.table(columns, rows, numbers=range(1, 11))


def _provenance(blueprints: Mapping[str, Blueprint]) -> Html:
    rows = []
    for name, blueprint in blueprints.items():
        model, cost = blueprint.pricer.model, blueprint.cost
        constants = model.constants
        fit = constants.source or "constants common to serving engines"
        error = "" if constants.held_out_error is None else f", held-out error {share(constants.held_out_error)}"
        price = UNKNOWN if cost.usd_per_device_hour is None else f"{usd(cost.usd_per_device_hour)} per device and hour"
        power = UNKNOWN if cost.watts_per_device is None else f"{si(cost.watts_per_device, 'W')} per device"
        rows.append((name, f"{cost.devices} x {model.device.name}", f"{fit}{error}", _grade(constants.grade), price, power))
    return page.table(("group", "devices of a replica", "step times", "grade", "price", "power"), rows, wide=(2,))


def _grade(grade: Grade) -> str:
    return str(grade).replace("_", " ")


def _assumptions() -> tuple[str, ...]:
    return (
        "Requests run through the engine's own scheduler and KV manager, and through the fleet's own router, autoscaler and "
        "retry policies; only time comes from the cost model.",
        "Energy is at board power while a replica computes, without idle power. Cost is of every replica while it exists.",
        "Percentiles are within 0.5 % of the value at their rank.",
    )
