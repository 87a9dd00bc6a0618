"""A plan as a fleet that the simulator can run: the same devices, layouts, formats, limits and constants."""

from __future__ import annotations

from collections.abc import Sequence

from argosy.cost.deployment import Deployment
from argosy.cost.device import Precision
from argosy.cost.formats import WeightFormat, precisions_for
from argosy.cost.model_spec import ModelSpec
from argosy.cost.parallel import ParallelPlan
from argosy.cost.serving_memory import serving_memory
from argosy.cost.step_time_model import StepTimeModel
from argosy.engine.core.config import SchedulerConfig
from argosy.planner.disaggregated_search import transfer_link
from argosy.planner.engines import MAX_SEQUENCES_PER_RANK, draft_beside
from argosy.planner.offers import Offer
from argosy.planner.serving_answer import PoolLayout, ServingPlan
from argosy.planner.serving_question import ServingQuestion
from argosy.sim.blueprint import Blueprint, kv_blocks
from argosy.sim.config.simulation import KvTransferSettings
from argosy.sim.results import ReplicaCost
from argosy.sim.step_pricer import StepPricer

# The planner lets requests wait as long as it takes.
_MOST_WAITING = 10_000_000


def plan_blueprint(
    question: ServingQuestion,
    plan: ServingPlan,
    pool: PoolLayout,
    offers: Sequence[Offer],
    models: tuple[ModelSpec, ModelSpec | None],
) -> Blueprint:
    """The blueprint of a replica of `pool`; `models` are the target and the draft that `question` names."""
    (spec, draft_spec), kv = models, Precision(pool.kv)
    offer = offer_of(pool, offers)
    device, constants = offer.device, question.constants_on(offer.device.name)
    weights = WeightFormat(pool.weights) if pool.weights in set(WeightFormat) else WeightFormat.BASE
    layout = ParallelPlan.for_serving(pool.tensor, pool.pipeline, pool.data, pool.expert)
    deployment = Deployment(spec, layout, precisions_for(device, weights, kv), question.expert_imbalance)
    draft, speculation = None, None
    if plan.speculation is not None and draft_spec is not None:
        draft = draft_beside(draft_spec, device, pool.tensor, kv)
        drafting = StepPricer(StepTimeModel(draft, device, offer.topology, constants))
        speculation = (plan.speculation.drafts, plan.speculation.acceptance, drafting)
    memory = serving_memory(
        deployment,
        device,
        step_tokens=pool.chunk_tokens,
        step_sequences=min(pool.chunk_tokens, MAX_SEQUENCES_PER_RANK),
        constants=question.memory,
        draft=draft,
    )
    scheduler = SchedulerConfig(
        num_blocks=kv_blocks(memory),
        block_size=question.memory.block_tokens,
        max_model_len=spec.max_positions,
        max_num_seqs=pool.max_batch,
        max_num_batched_tokens=max(pool.chunk_tokens * pool.data, pool.max_batch),
        max_waiting=_MOST_WAITING,
        # The plan's steps are filled with prompts as far as the budget goes.
        prefill_share=1.0,
        enable_prefix_caching=plan.prefix_caching,
        kv_dtype=pool.kv,
    )
    return Blueprint(
        pricer=StepPricer(StepTimeModel(deployment, device, offer.topology, constants)),
        scheduler=scheduler,
        cost=ReplicaCost(pool.devices_per_replica, offer.usd_per_h, None if device.power is None else device.power.value),
        speculation=speculation,
    )


def plan_transfer(question: ServingQuestion, plan: ServingPlan, offers: Sequence[Offer]) -> KvTransferSettings:
    """The link between the pools of a disaggregated plan, with the shards that move in parallel."""
    prefill, decode = plan.pools
    sender, receiver = offer_of(prefill, offers), offer_of(decode, offers)
    link = transfer_link(sender, receiver, plan.devices)
    assert link is not None, "a plan of two pools has a link between them"
    shards = min(pool.tensor * pool.pipeline for pool in plan.pools)
    efficiency = question.constants_on(sender.device.name).link_efficiency
    return KvTransferSettings(link.bandwidth.value * efficiency * shards, link.latency.value)


def offer_of(pool: PoolLayout, offers: Sequence[Offer]) -> Offer:
    """The offer that `pool` is made of."""
    return next(offer for offer in offers if offer.device.name == pool.device)
