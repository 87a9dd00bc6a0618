"""The answer to `argosy plan train` in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding

from argosy.cli.plan_tables import facts, heading, legend, memory_bar, plan_console, print_table
from argosy.cost.quantity import Grade
from argosy.observe.report.figures import count, seconds, share, si, significant, usd_range
from argosy.planner.grades import marked
from argosy.planner.training_answer import TrainingAnswer, TrainingInfeasible, TrainingPlanned
from argosy.planner.training_question import TrainingQuestion
from argosy.planner.training_words import question_words, training_memory_parts

_DAY_S = 86_400.0


def show_training(question: TrainingQuestion, answer: TrainingAnswer) -> None:
    """Print `answer` on standard output."""
    console = plan_console()
    console.print(f"{answer.model}: {question_words(question)}", style="bold")
    console.print(f"{answer.evaluated:,} plans judged", style="dim")
    if answer.best is None:
        assert answer.infeasible is not None
        _show_infeasible(console, answer.infeasible)
    else:
        heading(console, "Plans by price of the whole run")
        _plan_table(console, answer.plans)
        fast = answer.by_days[0]
        heading(console, "Fastest of those judged")
        facts(console, [(seconds(fast.days * _DAY_S), f"{fast.describe()}, {usd_range(fast.usd.low, fast.usd.high)}")])
        _show_plan(console, answer.best)
        if len(answer.plans) > 1:
            heading(console, "Why plan 1 and not another")
            facts(console, ((f"{number}", plan.worse_because) for number, plan in enumerate(answer.plans[1:], 2)))
    legend(console)


def _plan_table(console: Console, plans: Sequence[TrainingPlanned]) -> None:
    figures = ("TIME", "$", "MFU", "STEP", "IDLE", "FREE GIB")
    rows = [
        (
            str(number),
            plan.describe(),
            seconds(plan.days * _DAY_S),
            usd_range(plan.usd.low, plan.usd.high),
            share(plan.mfu),
            seconds(plan.step_s),
            share(plan.bubble_share),
            significant(plan.memory.free_bytes / 2**30),
        )
        for number, plan in enumerate(plans, 1)
    ]
    columns = ("#", "PLAN", *figures)
    print_table(console, columns, rows, right=("#", *figures), folds="PLAN", drops=("STEP", "IDLE", "FREE GIB"))
    console.print("IDLE: part of a step that a stage waits for others. FREE: on the fullest device.", style="dim")


def _show_plan(console: Console, plan: TrainingPlanned) -> None:
    heading(console, f"Plan 1: {plan.describe()}")
    grades, layout = plan.grades, plan.layout
    batch = layout.micro_batch * layout.accumulation * layout.data
    step = (
        f"{seconds(plan.step_s)}, {count(plan.tokens_per_s)} tokens/s; {share(plan.bubble_share)} idle in the pipeline, "
        f"{share(plan.step_end_share)} for optimizer and gradient reduction"
    )
    rows: list[tuple[str, str] | tuple[str, str, Grade]] = [
        ("time", seconds(plan.days * _DAY_S), grades["time"]),
        ("price", usd_range(plan.usd.low, plan.usd.high), grades["price"]),
        ("step", step, grades["time"]),
        ("MFU", f"{share(plan.mfu)} of the dense peak; HFU {share(plan.hfu)}", grades["time"]),
    ]
    if plan.energy_kwh is not None:
        rows.append(("energy", f"at most {si(plan.energy_kwh * 1e3, 'Wh')}", grades["energy"]))
    rows.append(
        ("batch", f"{batch} sequences: {layout.micro_batch} x {layout.accumulation} micro-batches x {layout.data} replicas")
    )
    facts(console, rows)
    label = marked("memory of the fullest device", grades["memory"])
    memory_bar(console, label, training_memory_parts(plan.memory), plan.memory.total_bytes)
    for note in plan.notes:
        console.print(Padding(f"note: {note}", (0, 0, 0, 2)))


def _show_infeasible(console: Console, why: TrainingInfeasible) -> None:
    heading(console, "No plan")
    console.print(why.reason, style="red")
    if not why.changes:
        return
    heading(console, "What would make one possible, smallest change first")
    rows = [
        (change.what, change.plan, seconds(change.days * _DAY_S), usd_range(change.usd.low, change.usd.high))
        for change in why.changes
    ]
    print_table(console, ("CHANGE", "LEADS TO", "TIME", "$"), rows, right=("TIME", "$"))
