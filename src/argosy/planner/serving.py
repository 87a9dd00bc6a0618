"""How to serve a model: plans that keep a service level under a traffic, ranked, with the reasons."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from argosy.cost.quantity import Grade
from argosy.planner.model_source import find_spec
from argosy.planner.offers import resolve
from argosy.planner.pareto import pareto_front
from argosy.planner.reasons import worse_because
from argosy.planner.relaxations import infeasible
from argosy.planner.serving_answer import ServingAnswer, ServingPlan
from argosy.planner.serving_plan import serving_plan
from argosy.planner.serving_question import ServingQuestion
from argosy.planner.serving_search import (
    Candidate,
    Grid,
    candidates_of,
    cheapest_when_full,
    distinct,
    fastest,
    search,
)


def plan_serving(question: ServingQuestion) -> ServingAnswer:
    """Search the question's space and say what was found.

    Percentiles come from the queueing approximation of `open_loop`. A plan never holds more sequences than KV admits.

    Raises:
        ConfigError: an unknown name, a price that is not known, or a degree or format that is impossible; names the field.
    """
    spec, grade = find_spec(question.model)
    draft = None if question.draft is None else find_spec(question.draft.model)[0]
    found = search(question, spec, draft, tuple(resolve(offer) for offer in question.devices))
    by_price = candidates_of(found.grids, question)
    by_tokens = _picked(found.grids, question, cheapest_when_full, lambda c: c.full_batch_usd)
    by_latency = _picked(found.grids, question, fastest, lambda c: c.tpot_mean_s + c.ttft_mean_s * 1e-6)
    return ServingAnswer(
        model=spec.name,
        plans=_plans(by_price, question, grade),
        by_tokens_price=_plans(by_tokens, question, grade),
        by_latency=_plans(by_latency, question, grade),
        pareto=pareto_front(found),
        evaluated=found.evaluated,
        infeasible=None if by_price else infeasible(found, draft),
    )


def _picked(
    grids: Iterable[Grid],
    question: ServingQuestion,
    pick: Callable[[Grid, ServingQuestion], Candidate | None],
    key: Callable[[Candidate], float],
) -> list[Candidate]:
    """One plan of every engine, best first."""
    return distinct(sorted((c for grid in grids if (c := pick(grid, question)) is not None), key=key))


def _plans(candidates: list[Candidate], question: ServingQuestion, grade: Grade) -> tuple[ServingPlan, ...]:
    plans = [serving_plan(candidate, question, grade) for candidate in candidates[: question.top]]
    return tuple(
        plan if index == 0 else dataclasses.replace(plan, worse_because=worse_because(plan, plans[0]))
        for index, plan in enumerate(plans)
    )
