"""The answer to a serving question as one HTML page: plans, plots, assumptions, sources."""

from __future__ import annotations

from collections.abc import Sequence

from argosy.observe.report import page
from argosy.observe.report.figures import count, seconds, share, si, significant, usd, usd_range
from argosy.observe.report.page import Html
from argosy.observe.report.svg import Axis, Bar, Point, plot
from argosy.planner.explain import explain_plan
from argosy.planner.grades import GRADE_MARKS, GRADE_MEANINGS, grade_legend, marked
from argosy.planner.offers import resolve
from argosy.planner.report_parts import memory_bars, op_table, provenance, roofline
from argosy.planner.roofline import plan_steps
from argosy.planner.serving_answer import Infeasible, Percentile, ServingAnswer, ServingPlan
from argosy.planner.serving_question import ServingQuestion
from argosy.planner.serving_words import alternatives, headline_percentile, memory_parts, slo_words, traffic_words

_LABELLED = 5


def serving_report(question: ServingQuestion, answer: ServingAnswer) -> str:
    """A page that stands on its own; `answer` must be the answer to `question`."""
    lead = page.paragraph(f"{traffic_words(question.traffic)}. Service level: {slo_words(question.slo)}.", "lead")
    judged = page.paragraph(f"{answer.evaluated:,} plans judged. Prices are ranges, since sellers differ.", "quiet")
    parts = [lead, judged]
    if answer.best is None:
        assert answer.infeasible is not None
        parts.append(_infeasible(answer.infeasible))
    else:
        parts += _plans(question, answer, answer.best)
    if answer.pareto:
        parts.append(_pareto(answer))
    parts.append(page.section("Assumptions", page.bullets(_assumptions(question))))
    parts.append(page.section("Sources", provenance(map(resolve, question.devices), question.constants_on)))
    return page.page(f"Serving {answer.model}", *parts)


def _plans(question: ServingQuestion, answer: ServingAnswer, best: ServingPlan) -> list[Html]:
    return [
        _cards(best),
        page.section("Plans by price", _plan_table(question, answer.plans), _others(answer)),
        page.section("Why the first plan and not another", _reasons(answer.plans)),
        page.section("What the first plan runs against", _limits(best)),
        _decisions(question, best),
        page.section("Memory", memory_bars(_bars(answer.plans))),
        *_rooflines(question, best),
    ]


def _cards(plan: ServingPlan) -> Html:
    per_h, tokens = plan.cost.per_h, plan.cost.per_million_tokens
    figures = [
        ("first plan", f"{plan.devices} device{'s' * (plan.devices > 1)}"),
        ("per hour", marked(usd_range(per_h.low, per_h.high), plan.grades["price per hour"])),
        ("per 1M output tokens", marked(usd_range(tokens.low, tokens.high), plan.grades["price per token"])),
        ("mean TTFT", marked(seconds(plan.latency.ttft_mean_s), plan.grades["latency"])),
        ("mean TPOT", marked(seconds(plan.latency.tpot_mean_s), plan.grades["latency"])),
        ("of capacity", share(plan.throughput.utilisation)),
    ]
    legend = page.paragraph(grade_legend(), "quiet")
    return Html(page.paragraph(plan.describe(), "lead") + page.cards(figures) + legend)


def _plan_table(question: ServingQuestion, plans: Sequence[ServingPlan]) -> Html:
    ttft, tpot = headline_percentile(question.slo.ttft), headline_percentile(question.slo.tpot)
    columns = (
        *("#", "plan", "devices", "$/h", "$/1M out", "$/1M full", f"TTFT p{ttft:g}", f"TPOT p{tpot:g}"),
        *("load", "KV room", "batch", "chunk", "a step is mostly"),
    )
    rows = []
    for number, plan in enumerate(plans, 1):
        cost = plan.cost
        spans = (cost.per_h, cost.per_million_tokens, cost.per_million_tokens_at_full_batch)
        rows.append(
            (
                *(str(number), plan.describe(), str(plan.devices)),
                *(usd_range(span.low, span.high) for span in spans),
                *(_at(plan.latency.ttft, ttft), _at(plan.latency.tpot, tpot)),
                *(share(plan.throughput.utilisation), f"{plan.kv_cliff.margin_sequences:+.0f}"),
                " / ".join(str(pool.max_batch) for pool in plan.pools),
                " / ".join(str(pool.chunk_tokens) for pool in plan.pools),
                plan.binding.step,
            )
        )
    return page.table(columns, rows, numbers=(0, *range(2, 12)), wide=(1,), chosen=0)


def _at(percentiles: Sequence[Percentile], wanted: float) -> str:
    return next((seconds(entry.seconds) for entry in percentiles if entry.percentile == wanted), seconds(None))


def _others(answer: ServingAnswer) -> Html:
    tokens, fast = answer.by_tokens_price[0], answer.by_latency[0]
    full = tokens.cost.per_million_tokens_at_full_batch
    speed = f"TPOT {seconds(fast.latency.tpot_mean_s)}, TTFT {seconds(fast.latency.ttft_mean_s)}"
    return page.bullets(
        (
            f"Cheapest tokens: {tokens.describe()}, {usd_range(full.low, full.high)} per 1M with every batch full.",
            f"Fastest: {fast.describe()}, {speed}.",
        )
    )


def _reasons(plans: Sequence[ServingPlan]) -> Html:
    if len(plans) == 1:
        return page.paragraph("It is the only one that keeps the service level.")
    return page.bullets(f"{number}: {plan.worse_because}" for number, plan in enumerate(plans[1:], 2))


def _limits(plan: ServingPlan) -> Html:
    cliff, throughput = plan.kv_cliff, plan.throughput
    shares = ", ".join(f"{name} {share(part)}" for name, part in plan.binding.shares.items())
    rows = [
        ("time of a step", f"{shares}"),
        ("what keeps a smaller plan out", plan.binding.limit),
        ("TTFT", _latencies(plan.latency.ttft)),
        ("TPOT", _latencies(plan.latency.tpot)),
        ("wait for a batch slot, mean", seconds(plan.latency.queue_wait_s)),
        (
            "throughput",
            f"{count(throughput.output_tokens_per_s)} tokens/s of at most {significant(throughput.capacity_requests_per_s)} "
            f"requests/s; {significant(throughput.running)} sequences run in a replica",
        ),
        (
            "KV cliff",
            f"a replica admits {cliff.admissible} sequences, its p99 is {significant(cliff.running_peak)}; the cliff is "
            f"at {significant(cliff.cliff_requests_per_s)} requests/s, {usd(cliff.margin_usd_per_h)} of each hour buys that "
            "distance",
        ),
    ]
    if plan.energy.watts is not None:
        joules = f"{significant(plan.energy.joules_per_output_token or 0)} J per output token"
        rows.append(("energy, at most", f"{si(plan.energy.watts, 'W')}, {joules}"))
    if plan.speculation is not None:
        drafts = f"{plan.speculation.drafts} drafts a round by {plan.speculation.draft}"
        rows.append(("speculation", f"{drafts}, whose KV is {share(plan.speculation.kv_share)} of a sequence's"))
    if plan.prefix_caching:
        rows.append(("prefix cache", f"{share(plan.cached_prompt_share)} of prompt tokens are found in it"))
    grades = ", ".join(f"{name} {GRADE_MARKS[grade]} {GRADE_MEANINGS[grade]}" for name, grade in plan.grades.items())
    return Html(page.table(("", ""), rows) + page.bullets(plan.notes) + page.paragraph(f"Grades: {grades}.", "quiet"))


def _decisions(question: ServingQuestion, plan: ServingPlan) -> Html:
    parts = []
    for explanation in explain_plan(question, plan):
        parts.append(page.paragraph(f"{explanation.topic}: {explanation.verdict}"))
        parts.append(page.bullets(explanation.because))
        columns, rows = alternatives(explanation)
        parts.append(page.folded("Alternatives", page.table(columns, rows, numbers=range(1, len(columns)))))
    return page.section("Decisions and their reasons", *parts)


def _latencies(percentiles: Sequence[Percentile]) -> str:
    parts = [
        f"p{entry.percentile:g} {seconds(entry.seconds)}"
        + ("" if entry.target_s is None else f" (asked {seconds(entry.target_s)})")
        for entry in percentiles
    ]
    return ", ".join(parts) or "undefined for answers of one token"


def _bars(plans: Sequence[ServingPlan]) -> list[Bar]:
    return [
        Bar(f"{number}: {pool.describe()}", memory_parts(memory), memory.total_bytes)
        for number, plan in enumerate(plans, 1)
        for pool, memory in zip(plan.pools, plan.memory, strict=True)
    ]


def _rooflines(question: ServingQuestion, plan: ServingPlan) -> list[Html]:
    """One plot per kind of device of the plan."""
    steps = plan_steps(question, plan)
    parts = []
    for name in dict.fromkeys(step.device.name for step in steps):
        own = [step for step in steps if step.device.name == name]
        words = [step.step if step.pool == "serve" else f"{step.pool} pool: {step.step}" for step in own]
        caption = (
            "Each mark is an op of one device; its area is its share of the step's time. Communication has no place here."
        )
        plotted = page.figure(roofline(own), caption, page.key(words))
        tables = [
            part
            for step, word in zip(own, words, strict=True)
            for part in (page.paragraph(f"{word}: {seconds(step.seconds)}"), op_table(step))
        ]
        parts.append(page.section(f"Roofline of {name}", plotted, *tables))
    return parts


def _pareto(answer: ServingAnswer) -> Html:
    front = answer.pareto
    x = Axis.over("TPOT", [point.tpot_s for point in front], log=True, text=seconds)
    prices = [point.usd_per_million_tokens.middle for point in front]
    y = Axis.over("$ per 1M output tokens, every batch full", prices, log=True, text=usd)
    labelled = {round(index * (len(front) - 1) / (_LABELLED - 1)) for index in range(_LABELLED)}
    points = [
        Point(
            point.tpot_s,
            point.usd_per_million_tokens.middle,
            f"{point.plan}, batch {point.max_batch}: TPOT {seconds(point.tpot_s)}, "
            f"{usd_range(point.usd_per_million_tokens.low, point.usd_per_million_tokens.high)} per 1M",
            label=f"{point.devices} devices, batch {point.max_batch}" if index in labelled else "",
        )
        for index, point in enumerate(front)
    ]
    caption = (
        "Plans that no other beats in both figures, whatever the traffic and the service level. Middle of the price range."
    )
    rows = [
        (
            point.plan,
            str(point.devices),
            str(point.max_batch),
            seconds(point.tpot_s),
            usd_range(point.usd_per_million_tokens.low, point.usd_per_million_tokens.high),
        )
        for point in front
    ]
    table = page.table(("plan", "devices", "batch", "TPOT", "$/1M"), rows, numbers=(1, 2, 3, 4))
    return page.section(
        "Price against speed",
        page.figure(plot("Price against TPOT", x, y, points), caption),
        page.folded("All points", table),
    )


def _infeasible(why: Infeasible) -> Html:
    rows = [(change.what, change.plan, usd_range(change.usd_per_h.low, change.usd_per_h.high)) for change in why.changes]
    changes = page.table(("change, smallest first", "leads to", "$/h"), rows, numbers=(2,))
    return page.section("No plan keeps this service level", page.paragraph(why.reason), changes)


def _assumptions(question: ServingQuestion) -> list[str]:
    memory, traffic = question.memory, question.traffic
    lines = [
        f"Arrivals have variance {significant(traffic.burstiness)} times their mean in a window; 1 is Poisson.",
        f"KV may take {share(memory.kv_fraction)} of what weights, activations and overheads leave of "
        f"{share(memory.total_fraction)} of a device's memory, in blocks of {memory.block_tokens} tokens.",
        "A plan never holds more sequences than its KV admits.",
        "An op takes the longer of FLOPs at peak and bytes at full bandwidth, each times an efficiency, plus overheads.",
        "Energy is board power, an upper bound.",
    ]
    if question.expert_imbalance:
        lines.append(f"The busiest expert rank has {share(question.expert_imbalance)} more work than the mean.")
    return lines
