"""The answer to `argosy plan serve` in a terminal: ranked plans, the first one in full, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from argosy.cli.plan_tables import bar_cells, bar_key, facts, heading, legend, memory_bar, plan_console, print_table
from argosy.cli.plan_verify_tables import show_verifications
from argosy.cost.quantity import Grade
from argosy.observe.report.figures import count, seconds, share, si, significant, usd, usd_range
from argosy.planner.explanation import Explanation
from argosy.planner.grades import marked
from argosy.planner.serving_answer import (
    Infeasible,
    Percentile,
    ServingAnswer,
    ServingPlan,
)
from argosy.planner.serving_question import ServingQuestion, Slo
from argosy.planner.serving_words import alternatives, headline_percentile, memory_parts, slo_words, traffic_words
from argosy.planner.verify import Verification

_STEP_FILLS = {
    "compute": ("█", "blue"),
    "memory bandwidth": ("▓", "yellow"),
    "network": ("▒", "magenta"),
    "overhead": ("░", "red"),
}


def show_serving(
    question: ServingQuestion,
    answer: ServingAnswer,
    reasons: Sequence[Explanation] = (),
    verified: Sequence[Verification] = (),
) -> None:
    """Print `answer` on standard output, `reasons` behind its first plan, and how its plans fared in the simulator."""
    console = plan_console()
    console.print(f"{answer.model}: {traffic_words(question.traffic)}", style="bold")
    console.print(f"service level: {slo_words(question.slo)}; {answer.evaluated:,} plans judged", style="dim")
    if answer.best is None:
        assert answer.infeasible is not None
        _show_infeasible(console, answer.infeasible)
    else:
        heading(console, "Plans by price")
        _plan_table(console, answer.plans, question.slo)
        _show_other_orders(console, answer)
        _show_plan(console, answer.best)
        _show_reasons(console, answer.plans)
        for reason in reasons:
            _show_explanation(console, reason)
        if verified:
            show_verifications(console, verified)
    legend(console)


def _plan_table(console: Console, plans: Sequence[ServingPlan], slo: Slo) -> None:
    ttft, tpot = headline_percentile(slo.ttft), headline_percentile(slo.tpot)
    figures = ("GPUS", "$/H", "$/1M OUT", f"TTFT P{ttft:g}", f"TPOT P{tpot:g}", "LOAD", "KV ROOM")
    rows = []
    for number, plan in enumerate(plans, 1):
        price = plan.cost.per_million_tokens
        row = (
            str(number),
            plan.describe(),
            str(plan.devices),
            usd_range(plan.cost.per_h.low, plan.cost.per_h.high),
            usd_range(price.low, price.high),
            _at(plan.latency.ttft, ttft),
            _at(plan.latency.tpot, tpot),
            share(plan.throughput.utilisation),
            f"{plan.kv_cliff.margin_sequences:+.0f}",
        )
        rows.append(row)
    columns = ("#", "PLAN", *figures)
    print_table(console, columns, rows, right=("#", *figures), folds="PLAN", drops=("LOAD", "KV ROOM", "$/1M OUT"))
    console.print(
        "$/1M OUT: output tokens, at this traffic. LOAD: of capacity. KV ROOM: sequences a replica still admits at its p99.",
        style="dim",
    )


def _at(percentiles: Sequence[Percentile], wanted: float) -> str:
    return next((seconds(entry.seconds) for entry in percentiles if entry.percentile == wanted), seconds(None))


def _show_other_orders(console: Console, answer: ServingAnswer) -> None:
    tokens, fast = answer.by_tokens_price[0], answer.by_latency[0]
    full = tokens.cost.per_million_tokens_at_full_batch
    lines = [
        ("cheapest tokens", f"{tokens.describe()}: {usd_range(full.low, full.high)} per 1M with every batch full"),
        (
            "fastest",
            f"{fast.describe()}: TPOT {seconds(fast.latency.tpot_mean_s)}, TTFT {seconds(fast.latency.ttft_mean_s)}",
        ),
    ]
    heading(console, "In other orders")
    facts(console, lines)


def _show_plan(console: Console, plan: ServingPlan) -> None:
    heading(console, f"Plan 1: {plan.describe()}")
    facts(console, [*_speed_facts(plan), *_price_facts(plan), *_limit_facts(plan)])
    _step_bar(console, plan)
    for breakdown in plan.memory:
        pool = "" if len(plan.memory) == 1 else f"{breakdown.pool} pool, "
        label = marked(f"{pool}memory of the fullest device", plan.grades["memory"])
        memory_bar(console, label, memory_parts(breakdown), breakdown.total_bytes)
    for note in plan.notes:
        console.print(Padding(f"note: {note}", (0, 0, 0, 2)))


def _speed_facts(plan: ServingPlan) -> list[tuple[str, str, Grade]]:
    latency, throughput, grades = plan.latency, plan.throughput, plan.grades
    flow = (
        f"{count(throughput.output_tokens_per_s)} tokens/s; {share(throughput.utilisation)} of the capacity of "
        f"{significant(throughput.capacity_requests_per_s)} requests/s; {significant(throughput.running)} sequences run "
        "in a replica"
    )
    return [
        ("TTFT", _latencies(latency.ttft_mean_s, latency.ttft), grades["latency"]),
        ("TPOT", _latencies(latency.tpot_mean_s, latency.tpot), grades["latency"]),
        ("throughput", flow, grades["throughput"]),
    ]


def _price_facts(plan: ServingPlan) -> list[tuple[str, str, Grade]]:
    cost, grades = plan.cost, plan.grades
    per_h, tokens, full = cost.per_h, cost.per_million_tokens, cost.per_million_tokens_at_full_batch
    per_token = f"{usd_range(tokens.low, tokens.high)}; with every batch full {usd_range(full.low, full.high)}"
    rows = [
        ("per hour", usd_range(per_h.low, per_h.high), grades["price per hour"]),
        ("per 1M out", per_token, grades["price per token"]),
    ]
    if plan.energy.watts is not None:
        joules = f"{significant(plan.energy.joules_per_output_token or 0)} J per output token"
        rows.append(("energy", f"at most {si(plan.energy.watts, 'W')}, {joules}", grades["energy"]))
    return rows


def _limit_facts(plan: ServingPlan) -> list[tuple[str, str]]:
    cliff = plan.kv_cliff
    room = "part of it waits" if cliff.margin_sequences < 0 else f"room for {cliff.margin_sequences:.0f} more"
    rows = [
        ("binds", f"a step is mostly {plan.binding.step}; what keeps a smaller plan out: {plan.binding.limit}"),
        (
            "KV cliff",
            f"a replica admits {cliff.admissible} sequences, its p99 is {significant(cliff.running_peak)}: {room}; cliff at "
            f"{significant(cliff.cliff_requests_per_s)} requests/s, {usd(cliff.margin_usd_per_h)} of each hour buys that "
            "distance",
        ),
    ]
    if plan.speculation is not None:
        drafts = f"{plan.speculation.drafts} drafts a round by {plan.speculation.draft}"
        tax = f"{share(plan.speculation.acceptance)} accepted, {share(plan.speculation.kv_share)} of a sequence's KV"
        rows.append(("speculation", f"{drafts}: {tax}"))
    if plan.prefix_caching:
        rows.append(("prefixes", f"{share(plan.cached_prompt_share)} of prompt tokens are found in the prefix cache"))
    batches = "; ".join(
        ("" if pool.role == "serve" else f"{pool.role}: ")
        + f"at most {pool.max_batch} sequences a replica, {pool.chunk_tokens} tokens a step"
        for pool in plan.pools
    )
    return [*rows, ("set", batches)]


def _latencies(mean_s: float | None, percentiles: Sequence[Percentile]) -> str:
    if mean_s is None:
        return "undefined for answers of one token"
    parts = [f"mean {seconds(mean_s)}"]
    for entry in percentiles:
        asked = "" if entry.target_s is None else f" (asked {seconds(entry.target_s)})"
        parts.append(f"p{entry.percentile:g} {seconds(entry.seconds)}{asked}")
    return ", ".join(parts)


def _step_bar(console: Console, plan: ServingPlan) -> None:
    """Where the time of a mean step goes."""
    console.print("  time of a step")
    shares = plan.binding.shares
    fills = [(*_STEP_FILLS[name], f"{name} {share(part)}") for name, part in shares.items()]
    bar = Text("  ")
    for (glyph, style, _), cells in zip(fills, bar_cells(list(shares.values()), 1.0, console.width - 4), strict=True):
        bar.append(glyph * cells, style=style)
    console.print(bar)
    bar_key(console, fills)


def _show_reasons(console: Console, plans: Sequence[ServingPlan]) -> None:
    if len(plans) < 2:
        return
    heading(console, "Why plan 1 and not another")
    facts(console, ((f"{number}", plan.worse_because) for number, plan in enumerate(plans[1:], 2)))


def _show_explanation(console: Console, reason: Explanation) -> None:
    heading(console, f"{reason.topic}: {reason.verdict}")
    for line in reason.because:
        console.print(Padding(f"- {line}", (0, 0, 0, 2)))
    columns, rows = alternatives(reason)
    print_table(console, columns, rows, right=columns[1:], folds=columns[0], indent=2)


def _show_infeasible(console: Console, why: Infeasible) -> None:
    heading(console, "No plan keeps this service level")
    console.print(why.reason, style="red")
    if not why.changes:
        return
    heading(console, "What would make one possible, smallest change first")
    rows = [(change.what, change.plan, usd_range(change.usd_per_h.low, change.usd_per_h.high)) for change in why.changes]
    print_table(console, ("CHANGE", "LEADS TO", "$/H"), rows, right=("$/H",))
