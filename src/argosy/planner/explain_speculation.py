"""When speculation pays: the acceptance it needs at each batch size, and the KV it takes away."""

from __future__ import annotations

from argosy.cost.checks import at_least_one
from argosy.cost.deployment import Deployment
from argosy.cost.formats import WeightFormat, precisions_for
from argosy.cost.model_spec import ModelSpec
from argosy.cost.parallel import ParallelPlan
from argosy.cost.speculation import SpeculativeRound, break_even_acceptance, speculative_round
from argosy.errors import ConfigError
from argosy.planner.explanation import Case, Explanation, Row, largest

_BATCHES = (1, 4, 16, 64, 256)
_MOST_SEQUENCES = 4096


def explain_speculation(
    case: Case,
    plan: ParallelPlan,
    draft: ModelSpec,
    *,
    drafts: int,
    acceptance: float,
    weights: WeightFormat = WeightFormat.BASE,
) -> Explanation:
    """Speed-up, break-even acceptance and KV tax of `drafts` tokens a round by `draft`.

    Raises:
        ConfigError: an acceptance outside 0 to 1, or a plan that does not divide the models.
    """
    at_least_one(drafts=drafts)
    target = case.deployment(plan, weights)
    small = _beside(case, draft, plan)
    target_model, draft_model = case.model(target), case.model(small)

    def at(count: int) -> SpeculativeRound:
        return speculative_round(
            target_model, draft_model, sequences=count, context=case.context, drafts=drafts, acceptance=acceptance
        )

    rows = []
    for count in _BATCHES:
        step = at(count)
        needed = break_even_acceptance(step, drafts)
        figures = {"speed-up": step.speedup, "TPOT ms": step.tpot_s * 1e3, "plain TPOT ms": step.plain_tpot_s * 1e3}
        rows.append(Row(f"batch {count}", figures | ({} if needed is None else {"break-even acceptance": needed})))
    plain = case.serving_memory(target).admissible_concurrency(case.tokens)
    taxed = case.serving_memory(target, draft=small).admissible_concurrency(case.tokens)
    up_to = largest(1, _MOST_SEQUENCES, lambda count: at(count).speedup > 1)
    because = [_of_row(row, acceptance) for row in rows]
    because.append(f"the draft's weights and KV leave room for {taxed} sequences of {case.tokens} tokens instead of {plain}")
    if up_to is None:
        verdict = f"does not pay at acceptance {acceptance:g}, whatever the batch"
    elif up_to == _MOST_SEQUENCES:
        verdict = f"pays at every batch up to {_MOST_SEQUENCES} at acceptance {acceptance:g}"
    else:
        verdict = f"pays up to {up_to} sequences of a data rank at acceptance {acceptance:g}"
    return Explanation(f"{drafts} drafts by {draft.name} for {case.spec.name}", verdict, tuple(because), tuple(rows))


def _beside(case: Case, draft: ModelSpec, plan: ParallelPlan) -> Deployment:
    precisions = precisions_for(case.offer.device, WeightFormat.BASE, case.base)
    try:
        return Deployment(draft, ParallelPlan.for_serving(plan.tensor), precisions)
    except ConfigError:
        return Deployment(draft, ParallelPlan.for_serving(1), precisions)


def _of_row(row: Row, acceptance: float) -> str:
    needed = row.figures.get("break-even acceptance")
    if needed is None:
        return f"at {row.label} a round takes longer than all of its tokens decoded one by one: no acceptance is enough"
    pays = "pays" if acceptance > needed else "does not pay"
    return (
        f"at {row.label} it needs an acceptance above {needed:.2f} and {pays}: {row.figures['speed-up']:.2f} times as fast"
    )
