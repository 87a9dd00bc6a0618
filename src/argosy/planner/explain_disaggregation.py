"""When to separate prefill from decode: the cheapest plan of each kind, under the same targets."""

from __future__ import annotations

import dataclasses

from argosy.planner.disaggregated_plan import disaggregated_plan
from argosy.planner.disaggregated_search import pool_pairs
from argosy.planner.explanation import Explanation, Row, ms
from argosy.planner.model_source import find_spec
from argosy.planner.offers import resolve
from argosy.planner.serving_answer import ServingPlan
from argosy.planner.serving_plan import serving_plan
from argosy.planner.serving_question import ServingQuestion
from argosy.planner.serving_search import candidates_of, search


def explain_disaggregation(question: ServingQuestion) -> Explanation:
    """Compare one pool with two for the question's traffic and targets.

    Raises:
        ConfigError: as `plan_serving`.
    """
    spec, grade = find_spec(question.model)
    wanted = dataclasses.replace(question, space=dataclasses.replace(question.space, disaggregate=True))
    found = search(wanted, spec, None, tuple(resolve(offer) for offer in wanted.devices))
    single = [serving_plan(c, wanted, grade) for c in candidates_of(found.grids, wanted)[:1]]
    double = [disaggregated_plan(pair, wanted, grade) for pair in pool_pairs(found.grids, wanted, spec)[:1]]
    rows = [_row("one pool", plan) for plan in single] + [_row("two pools", plan) for plan in double]
    topic = f"prefill and decode of {spec.name} in one pool or two"
    because = [plan.describe() for plan in (*single, *double)]
    if not single and not double:
        return Explanation(topic, "neither keeps the targets", (), ())
    if not single:
        return Explanation(topic, "two pools: no single pool keeps the targets", tuple(because), tuple(rows))
    if not double:
        return Explanation(topic, "one pool: no pair of pools keeps the targets", tuple(because), tuple(rows))
    one, two = single[0], double[0]
    saving = 1 - two.cost.per_h.middle / one.cost.per_h.middle
    because.append(
        f"two pools cost ${two.cost.per_h.middle:.2f}/h, one costs ${one.cost.per_h.middle:.2f}/h; a token takes "
        f"{ms(two.latency.tpot_mean_s or 0.0)} and {ms(one.latency.tpot_mean_s or 0.0)} on average"
    )
    because.extend(two.notes[:1])
    verdict = f"two pools: {saving:.0%} cheaper" if saving > 0 else f"one pool: two cost {-saving:.0%} more"
    return Explanation(topic, verdict, tuple(because), tuple(rows))


def _row(label: str, plan: ServingPlan) -> Row:
    return Row(
        label,
        {
            "$/h": plan.cost.per_h.middle,
            "devices": float(plan.devices),
            "mean TTFT ms": plan.latency.ttft_mean_s * 1e3,
            "mean TPOT ms": (plan.latency.tpot_mean_s or 0.0) * 1e3,
            "p99 TPOT ms": plan.latency.tpot[-1].seconds * 1e3 if plan.latency.tpot else 0.0,
        },
    )
