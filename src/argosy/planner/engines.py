"""Engines: layout and formats of one replica on a device, with its memory and step times; what does not fit is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from argosy.cost.deployment import Deployment
from argosy.cost.device import Device, Precision
from argosy.cost.formats import WeightFormat, check_supported, kv_type, precisions_for, supported_kv, supported_weights
from argosy.cost.model_spec import ModelSpec
from argosy.cost.parallel import ParallelPlan
from argosy.cost.serving_memory import ServingMemory, StageMemory, serving_memory
from argosy.cost.speculation import Speculation
from argosy.cost.step_time_model import StepTimeModel
from argosy.errors import ConfigError
from argosy.planner.layouts import layouts
from argosy.planner.offers import Offer
from argosy.planner.serving_question import ServingQuestion
from argosy.planner.traffic import Traffic

# Sequences of a data rank at most: step buffers and captured graphs of servers end about here.
MAX_SEQUENCES_PER_RANK = 512
# Share of KV that a prefix cache may take from running requests.
_CACHE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Admission:
    """What memory admits.

    Attributes:
        sequences: of the whole replica; hit_share: of prompt tokens found in the prefix cache.
        resident_tokens: kept by the prefix cache of a data rank; shared_tokens: of a request, found there.
    """

    sequences: int
    hit_share: float = 0.0
    resident_tokens: float = 0.0
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Engine:
    """One kind of replica. `memories` by chunk size, of those under which at least one request fits."""

    offer: Offer
    deployment: Deployment
    weights: WeightFormat
    model: StepTimeModel
    memories: Mapping[int, ServingMemory]
    draft: Deployment | None = None
    speculation: Speculation | None = None
    caching: bool = False

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.deployment.plan.devices

    @property
    def step_width(self) -> int:
        """Tokens that a sequence computes in a decode step."""
        return 1 if self.speculation is None else self.speculation.drafts + 1

    def admission(self, traffic: Traffic, chunk_tokens: int) -> Admission:
        """Sequences that fit at once; a plan with more would let them wait or preempt them.

        A prefix that stays cached is stored once per data rank, and its tokens do not count again in the requests that
        share it. Where it would take more than half of the KV only a part is kept, and hits shrink in proportion.
        """
        memory, tokens, prefix = self.memories[chunk_tokens], request_tokens(traffic), traffic.prefix
        if not self.caching:
            return Admission(memory.admissible_concurrency(tokens))
        kept = min(_cacheable_share(stage, prefix.resident_tokens) for stage in memory.stages)
        hit_share, resident = kept * prefix.share, kept * prefix.resident_tokens
        shared = math.floor(hit_share * traffic.prompt.mean)
        fits = []
        for stage in memory.stages:
            prefix_bytes = stage.sequence_bytes(shared, memory.block_tokens) - stage.state_bytes
            own = stage.sequence_bytes(tokens, memory.block_tokens) - prefix_bytes
            fits.append(max(0, math.floor((stage.usable_kv_bytes - resident * stage.token_bytes) / max(own, 1.0))))
        return Admission(memory.data * min(fits), hit_share, resident, shared)


def _cacheable_share(stage: StageMemory, tokens: float) -> float:
    wanted = tokens * stage.token_bytes
    return 1.0 if wanted <= 0 else min(1.0, max(0.0, _CACHE_SHARE * stage.usable_kv_bytes / wanted))


def request_tokens(traffic: Traffic) -> int:
    """Tokens that a running request comes to hold, on average over those that run at a moment."""
    return math.ceil(traffic.prompt.mean + traffic.output.resident_mean)


@dataclass(frozen=True, slots=True)
class Misfit:
    """A replica that cannot hold one request: what is missing per device, and the line that says so."""

    shortfall_bytes: float
    devices: int
    device: str
    why: str


@dataclass(frozen=True, slots=True)
class _Body:
    """A target and perhaps a draft, before speculation depth and caching are chosen."""

    deployment: Deployment
    weights: WeightFormat
    draft: Deployment | None


def engines(question: ServingQuestion, spec: ModelSpec, draft: ModelSpec | None, offer: Offer) -> Iterator[Engine | Misfit]:
    """Every engine of the search space on one offer, and what was left out for want of memory.

    Raises:
        ConfigError: a degree or format that the question names is impossible here.
    """
    formats = question.space.weights or supported_weights(offer.device)
    kvs = tuple(dict.fromkeys(kv_type(offer.device, kv) for kv in question.space.kv or supported_kv(offer.device)))
    usable = [weights for weights in formats if _is_supported(offer.device, weights)]
    if not usable:
        check_supported(offer.device, formats[0])
    for plan in layouts(spec, offer, question.space, question.max_devices):
        for weights in usable:
            for kv in kvs:
                target = Deployment(spec, plan, precisions_for(offer.device, weights, kv), question.expert_imbalance)
                yield from _of_body(question, offer, _Body(target, weights, None))
                if draft is not None and question.traffic.output.tokens > 1:
                    body = _Body(target, weights, draft_beside(draft, offer.device, plan.tensor, kv))
                    yield from _of_body(question, offer, body)


def _is_supported(device: Device, weights: WeightFormat) -> bool:
    try:
        check_supported(device, weights)
    except ConfigError:
        return False
    return True


def draft_beside(draft: ModelSpec, device: Device, tensor: int, kv: Precision) -> Deployment:
    """The draft under the target's tensor parallelism where its heads divide, whole on every device otherwise."""
    precisions = precisions_for(device, WeightFormat.BASE, kv)
    try:
        return Deployment(draft, ParallelPlan.for_serving(tensor), precisions)
    except ConfigError:
        return Deployment(draft, ParallelPlan.for_serving(1), precisions)


def _of_body(question: ServingQuestion, offer: Offer, body: _Body) -> Iterator[Engine | Misfit]:
    tokens = request_tokens(question.traffic)
    memories = {chunk: _memory(question, offer, body, chunk) for chunk in sorted(set(question.space.chunk_tokens))}
    fitting = {chunk: memory for chunk, memory in memories.items() if memory.admissible_concurrency(tokens) >= 1}
    if not fitting:
        yield _misfit(next(iter(memories.values())), body, offer, tokens)
        return
    model = StepTimeModel(body.deployment, offer.device, offer.topology, question.constants_on(offer.device.name))
    speculations: tuple[Speculation | None, ...] = (None,)
    if body.draft is not None and question.draft is not None:
        small = StepTimeModel(body.draft, offer.device, offer.topology, question.constants_on(offer.device.name))
        speculations = tuple(Speculation(small, k, question.draft.acceptance) for k in question.draft.drafts)
    cachings = question.space.prefix_caching if question.traffic.prefix.share > 0 else (False,)
    for speculation in speculations:
        for caching in sorted(set(cachings)):
            yield Engine(offer, body.deployment, body.weights, model, fitting, body.draft, speculation, caching)


def _memory(question: ServingQuestion, offer: Offer, body: _Body, chunk_tokens: int) -> ServingMemory:
    return serving_memory(
        body.deployment,
        offer.device,
        step_tokens=chunk_tokens,
        step_sequences=min(chunk_tokens, MAX_SEQUENCES_PER_RANK),
        constants=question.memory,
        draft=body.draft,
    )


def _misfit(memory: ServingMemory, body: _Body, offer: Offer, tokens: int) -> Misfit:
    missing = max(stage.sequence_bytes(tokens, memory.block_tokens) - stage.usable_kv_bytes for stage in memory.stages)
    try:
        memory.require(1, tokens)
    except ConfigError as error:
        return Misfit(missing, body.deployment.plan.devices, offer.device.name, error.message)
    raise AssertionError("a deployment that admits no request lacks memory for one")
