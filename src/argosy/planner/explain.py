"""All explanations that apply to a question and its best plan."""

from __future__ import annotations

from argosy.cost.device import Precision
from argosy.cost.formats import WeightFormat
from argosy.cost.parallel import ParallelPlan
from argosy.planner.explain_disaggregation import explain_disaggregation
from argosy.planner.explain_formats import explain_formats
from argosy.planner.explain_kv import explain_chunk_size, explain_kv_transfer
from argosy.planner.explain_sharding import explain_sharding
from argosy.planner.explain_speculation import explain_speculation
from argosy.planner.explanation import Case, Explanation
from argosy.planner.model_source import find_spec
from argosy.planner.offers import resolve
from argosy.planner.serving_answer import PoolLayout, ServingPlan
from argosy.planner.serving_question import ServingQuestion


def explain_plan(question: ServingQuestion, plan: ServingPlan) -> tuple[Explanation, ...]:
    """Explanations around `plan`: its layout, formats, chunk size, KV, and where they apply speculation and pools.

    Raises:
        ConfigError: as `plan_serving`.
    """
    pool = plan.pools[-1]
    names = [resolve(offer).device.name for offer in question.devices]
    case = Case.of(question, names.index(pool.device))
    layout = ParallelPlan.for_serving(pool.tensor, pool.pipeline, pool.data, pool.expert)
    weights = weight_format(pool)
    running = max(1, round(plan.throughput.running))
    found = []
    if pool.devices_per_replica > 1:
        found.append(explain_sharding(case, pool.devices_per_replica, sequences=running, weights=weights))
    found.append(explain_formats(case, layout, sequences=running))
    if question.slo.tpot:
        seconds = min(target.seconds for target in question.slo.tpot)
        found.append(explain_chunk_size(case, layout, seconds, sequences=running, weights=weights))
    found.append(explain_kv_transfer(case, layout, question.traffic.prompt.tokens, weights=weights))
    if question.draft is not None and question.traffic.output.tokens > 1:
        draft, _ = find_spec(question.draft.model)
        drafts, acceptance = question.draft.drafts[0], question.draft.acceptance
        found.append(explain_speculation(case, layout, draft, drafts=drafts, acceptance=acceptance, weights=weights))
    if question.space.disaggregate and question.traffic.output.tokens > 1:
        found.append(explain_disaggregation(question))
    return tuple(found)


def weight_format(pool: PoolLayout) -> WeightFormat:
    """The format that a pool's label names; a 16-bit type stands for the device's base type."""
    return (
        WeightFormat.BASE
        if pool.weights in set(Precision) - {Precision.FP8, Precision.INT8, Precision.FP4}
        else WeightFormat(pool.weights)
    )
