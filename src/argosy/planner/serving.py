"""How to serve a model: plans that keep a service level under a traffic, ranked, with the reasons."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from argosy.cost.quantity import Grade
from argosy.planner.disaggregated_plan import capacity_requests_per_s, disaggregated_plan
from argosy.planner.disaggregated_search import PoolPair, pool_pairs
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
    room,
    search,
    stored_bytes,
)


@dataclass(frozen=True, slots=True)
class _Option:
    """A plan not yet written out, with what it is ranked by."""

    usd_per_h: float
    preference: tuple[float, ...]
    full_usd: float
    latency_s: float
    write: Callable[[], ServingPlan]


def plan_serving(question: ServingQuestion) -> ServingAnswer:
    """Search the question's space and say what was found.

    Percentiles come from the queueing approximation of `open_loop`. A plan never holds more sequences than KV admits.

    Raises:
        ConfigError: an unknown name, a price that is not known, or a degree or format that is impossible; names the field.
    """
    spec, grade = find_spec(question.model)
    draft = None if question.draft is None else find_spec(question.draft.model)[0]
    found = search(question, spec, draft, tuple(resolve(offer) for offer in question.devices))
    pairs = [_of_pair(pair, question, grade) for pair in pool_pairs(found.grids, question, spec)]

    def options(candidates: Iterable[Candidate]) -> list[_Option]:
        return [*(_of_candidate(candidate, question, grade) for candidate in candidates), *pairs]

    by_price = options(candidates_of(found.grids, question))
    by_tokens = options(_picked(found.grids, question, cheapest_when_full, lambda c: c.full_batch_usd))
    by_latency = options(_picked(found.grids, question, fastest, lambda c: c.tpot_mean_s))
    return ServingAnswer(
        model=spec.name,
        plans=_plans(by_price, question.top, lambda option: (round(option.usd_per_h, 6), *option.preference)),
        by_tokens_price=_plans(by_tokens, question.top, lambda option: (option.full_usd,)),
        by_latency=_plans(by_latency, question.top, lambda option: (option.latency_s,)),
        pareto=pareto_front(found),
        evaluated=found.evaluated,
        infeasible=None if by_price else infeasible(found, draft),
    )


def _of_candidate(candidate: Candidate, question: ServingQuestion, grade: Grade) -> _Option:
    return _Option(
        candidate.usd_per_h,
        (-stored_bytes(candidate.grid.engine), 0.0, room(candidate)),
        candidate.full_batch_usd,
        candidate.tpot_mean_s + candidate.ttft_mean_s * 1e-6,
        lambda: serving_plan(candidate, question, grade),
    )


def _of_pair(pair: PoolPair, question: ServingQuestion, grade: Grade) -> _Option:
    """At one price a single pool is preferred, since two are more to run."""
    stored = (stored_bytes(pair.prefill.worker.engine) + stored_bytes(pair.decode.engine)) / 2
    return _Option(
        pair.usd_per_h,
        (-stored, 1.0, pair.ttft_mean_s),
        pair.usd_per_h / (3600.0 * capacity_requests_per_s(pair)) * 1e6,
        pair.tpot_mean_s + pair.ttft_mean_s * 1e-6,
        lambda: disaggregated_plan(pair, question, grade),
    )


def _picked(
    grids: Iterable[Grid],
    question: ServingQuestion,
    pick: Callable[[Grid, ServingQuestion], Candidate | None],
    key: Callable[[Candidate], float],
) -> list[Candidate]:
    """One plan of every engine, best first."""
    return distinct(sorted((c for grid in grids if (c := pick(grid, question)) is not None), key=key))


def _plans(options: list[_Option], top: int, key: Callable[[_Option], tuple[float, ...]]) -> tuple[ServingPlan, ...]:
    plans = [option.write() for option in sorted(options, key=key)[:top]]
    return tuple(
        plan if index == 0 else dataclasses.replace(plan, worse_because=worse_because(plan, plans[0]))
        for index, plan in enumerate(plans)
    )
