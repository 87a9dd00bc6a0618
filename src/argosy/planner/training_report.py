"""The answer to a training question as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from argosy.observe.report import page
from argosy.observe.report.figures import count, seconds, share, si, usd, usd_range
from argosy.observe.report.page import Html
from argosy.observe.report.svg import Axis, Bar, Point, plot
from argosy.planner.grades import grade_legend, marked
from argosy.planner.offers import resolve
from argosy.planner.report_parts import memory_bars, provenance
from argosy.planner.training_answer import TrainingAnswer, TrainingInfeasible, TrainingPlanned
from argosy.planner.training_question import TrainingQuestion
from argosy.planner.training_words import question_words, training_memory_parts

_DAY_S = 86_400.0


def training_report(question: TrainingQuestion, answer: TrainingAnswer) -> str:
    """A page that stands on its own; `answer` must be the answer to `question`."""
    parts = [
        page.paragraph(f"{question_words(question)}.", "lead"),
        page.paragraph(f"{answer.evaluated:,} plans judged.", "quiet"),
    ]
    if answer.best is None:
        assert answer.infeasible is not None
        parts.append(_infeasible(answer.infeasible))
    else:
        bars = [
            Bar(f"{n}: {plan.describe()}", training_memory_parts(plan.memory), plan.memory.total_bytes)
            for n, plan in enumerate(answer.plans, 1)
        ]
        others = (f"{number}: {plan.worse_because}" for number, plan in enumerate(answer.plans[1:], 2))
        parts += [
            _cards(answer.best),
            page.section("Plans by price of the whole run", _table(answer.plans), page.bullets(others)),
            page.section("Price against time", _price_against_time(answer)),
            page.section("Memory", memory_bars(bars)),
            page.section("Assumptions", page.bullets(answer.best.notes)),
        ]
    parts.append(page.section("Sources", provenance(map(resolve, question.devices), lambda _device: question.constants)))
    return page.page(f"Training {answer.model}", *parts)


def _cards(plan: TrainingPlanned) -> Html:
    figures = [
        ("first plan", f"{plan.layout.devices} devices"),
        ("time", marked(seconds(plan.days * _DAY_S), plan.grades["time"])),
        ("price", marked(usd_range(plan.usd.low, plan.usd.high), plan.grades["price"])),
        ("MFU", marked(share(plan.mfu), plan.grades["time"])),
        ("tokens per second", marked(count(plan.tokens_per_s), plan.grades["time"])),
    ]
    if plan.energy_kwh is not None:
        figures.append(("energy, at most", marked(si(plan.energy_kwh * 1e3, "Wh"), plan.grades["energy"])))
    legend = page.paragraph(grade_legend(), "quiet")
    return Html(page.paragraph(plan.describe(), "lead") + page.cards(figures) + legend)


def _table(plans: Sequence[TrainingPlanned]) -> Html:
    columns = ("#", "plan", "devices", "time", "$", "MFU", "HFU", "step", "idle in pipeline", "end of step")
    rows = [
        (
            *(str(number), plan.describe(), str(plan.layout.devices), seconds(plan.days * _DAY_S)),
            *(usd_range(plan.usd.low, plan.usd.high), share(plan.mfu), share(plan.hfu), seconds(plan.step_s)),
            *(share(plan.bubble_share), share(plan.step_end_share)),
        )
        for number, plan in enumerate(plans, 1)
    ]
    return page.table(columns, rows, numbers=(0, *range(2, 10)), wide=(1,), chosen=0)


def _price_against_time(answer: TrainingAnswer) -> Html:
    shown = {plan.describe(): plan for plan in (*answer.plans, *answer.by_days)}.values()
    x = Axis.over("days", [plan.days for plan in shown], log=True)
    y = Axis.over("$ of the whole run", [plan.usd.middle for plan in shown], log=True, text=usd)
    points = [
        Point(
            plan.days,
            plan.usd.middle,
            f"{plan.describe()}: {usd_range(plan.usd.low, plan.usd.high)}, MFU {share(plan.mfu)}",
            label=f"{plan.layout.devices} devices",
        )
        for plan in shown
    ]
    return page.figure(
        plot("Price against days", x, y, points), "The cheapest and the fastest plans; middle of the price range."
    )


def _infeasible(why: TrainingInfeasible) -> Html:
    rows = [
        (change.what, change.plan, seconds(change.days * _DAY_S), usd_range(change.usd.low, change.usd.high))
        for change in why.changes
    ]
    changes = page.table(("change, smallest first", "leads to", "time", "$"), rows, numbers=(2, 3))
    return page.section("No plan", page.paragraph(why.reason), changes)
