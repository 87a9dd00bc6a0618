"""Parallel layouts of one replica that a model and a device allow."""

from __future__ import annotations

from collections.abc import Iterator

from argosy.cost.deployment import Deployment
from argosy.cost.model_spec import ModelSpec, MoeFfn
from argosy.cost.parallel import ParallelPlan
from argosy.errors import ConfigError
from argosy.planner.offers import Offer
from argosy.planner.serving_question import SearchSpace

_TENSOR = (1, 2, 4, 8)
_PIPELINE = (1, 2, 4)
_DATA = (1, 2, 4, 8, 16)


def has_experts(spec: ModelSpec) -> bool:
    """Whether any layer routes to experts."""
    return any(isinstance(layer.ffn, MoeFfn) for _, layer in spec.layers)


def check_layout(spec: ModelSpec, plan: ParallelPlan) -> None:
    """Raise `ConfigError` where `plan` does not divide `spec`."""
    Deployment(spec, plan)


def layouts(spec: ModelSpec, offer: Offer, space: SearchSpace, cap: int | None = None) -> Iterator[ParallelPlan]:
    """Layouts to try, smallest first: those that divide the model, that are connected, within the devices there are.

    By default tensor parallelism stays within a node, and attention data parallelism is tried for models with experts only:
    without experts it is the same as more replicas. Experts are sharded like other matrices (expert 1) or spread whole over
    all devices of a stage.

    Raises:
        ConfigError: a degree that `space` names does not divide the model; the message says which.
    """
    experts = has_experts(spec)
    node = offer.topology.devices_per_node
    tensors = space.tensor or tuple(degree for degree in _TENSOR if degree <= node)
    datas = space.data or (_DATA if experts else (1,))
    for tensor in space.tensor or ():
        check_layout(spec, ParallelPlan.for_serving(tensor))
    for pipeline in space.pipeline or ():
        check_layout(spec, ParallelPlan.for_serving(1, pipeline))
    if not experts and space.expert and space.expert != (1,):
        raise ConfigError(f"{spec.name} has no experts; use expert parallelism 1 instead of {max(space.expert)}")
    shapes = sorted(
        ((t, p, d) for t in tensors for p in space.pipeline or _PIPELINE for d in datas),
        key=lambda s: (s[0] * s[1] * s[2], s),
    )
    for tensor, pipeline, data in shapes:
        devices = tensor * pipeline * data
        if devices > offer.most_devices(cap) or (devices > node and offer.topology.scale_out is None):
            continue
        if devices > 1 and offer.topology.scale_up is None:
            continue
        degrees = space.expert or (1, tensor * data)
        for expert in sorted(set(degrees) if experts else {1}):
            if (tensor * data) % expert:
                continue
            plan = ParallelPlan.for_serving(tensor, pipeline, data, expert)
            try:
                check_layout(spec, plan)
            except ConfigError:
                continue
            yield plan
