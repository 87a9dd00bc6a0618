"""Why no plan exists, and the smallest changes of the question, one at a time, that would allow one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from argosy.cost.device import Precision
from argosy.cost.formats import WeightFormat, supported_kv, supported_weights
from argosy.cost.model_spec import ModelSpec
from argosy.planner.open_loop import least_seconds
from argosy.planner.serving_answer import Change, Infeasible
from argosy.planner.serving_plan import pool_layout, usd_range
from argosy.planner.serving_question import SearchSpace, ServingQuestion, Slo, Target
from argosy.planner.serving_search import Candidate, Grid, Search, candidates_of, search, within_budget

Array = NDArray[np.float64]
_RATE_STEPS = 7
# Targets beyond an hour are not offered.
_LONGEST_S = 3600.0


def infeasible(found: Search, draft: ModelSpec | None) -> Infeasible:
    """The reason and the changes, smallest relative change first; other formats count as none."""
    changes = sorted(_changes(found, draft), key=lambda pair: pair[0])
    return Infeasible(_reason(found), tuple(change for _, change in changes))


def _reason(found: Search) -> str:
    question = found.question
    if not found.grids:
        if not found.misfits:
            counts = ", ".join(f"{offer.limit or 'any number of'} {offer.device.name}" for offer in found.offers)
            return f"no layout of {found.spec.name} divides over {counts}"
        least = min(found.misfits, key=lambda misfit: misfit.shortfall_bytes)
        return f"{found.spec.name} does not fit on {least.devices} x {least.device}: {least.why}"
    if not any(grid.runs.any() for grid in found.grids):
        return f"no plan keeps up with {question.traffic.requests_per_s:g} requests/s on the devices there are"
    missed = [name for name, met in (("TPOT", _met(found, "tpot_miss")), ("TTFT", _met(found, "ttft_miss"))) if not met]
    if missed:
        return f"no plan keeps the {' or the '.join(missed)} target: {_closest(found, missed[0])}"
    if not any(grid.feasible.any() for grid in found.grids):
        return "some plans keep the TPOT target and others the TTFT target, but none both"
    return f"every plan that keeps the targets costs more than ${question.max_usd_per_h:g}/h"


def _met(found: Search, name: str) -> bool:
    return any(((getattr(grid, name) <= 1) & grid.runs).any() for grid in found.grids)


def _closest(found: Search, name: str) -> str:
    if name == "TPOT":
        seconds = _least(found.grids, "tpot", found.question.slo.tpot[0])
        return f"the least is {seconds * 1e3:.1f} ms at percentile {found.question.slo.tpot[0].percentile:g}"
    seconds = _least(found.grids, "ttft", found.question.slo.ttft[0])
    return f"the least is {seconds * 1e3:.1f} ms at percentile {found.question.slo.ttft[0].percentile:g}"


def _least(grids: Iterable[Grid], name: str, target: Target) -> float:
    """Least seconds at the target's percentile over all plans that run, whatever else they miss."""
    share, best = target.percentile / 100, math.inf
    for grid in grids:
        tail = grid.loop.tpot_tail if name == "tpot" else grid.loop.ttft_tail
        best = min(best, _least_of(tail, grid.runs, share, target.seconds, below=best))
    return best


def _least_of(
    tail: Callable[[float], Array], usable: NDArray[np.bool_], share: float, asked_s: float, *, below: float
) -> float:
    """Least seconds that some usable plan reaches, infinite unless less than `below`."""
    if not usable.any():
        return math.inf

    def of_usable(seconds: float) -> Array:
        return np.where(usable, tail(seconds), 1.0)

    if math.isfinite(below):
        return least_seconds(of_usable, share, below)
    high = asked_s
    while not (of_usable(high) <= 1 - share).any():
        high *= 2
        if high > _LONGEST_S:
            return math.inf
    return least_seconds(of_usable, share, high)


def _changes(found: Search, draft: ModelSpec | None) -> Iterator[tuple[float, Change]]:
    """(relative size, change) of every single change that helps."""
    question = found.question
    yield from _other_formats(found, draft)
    yield from _more_devices(found, draft)
    if found.grids and question.slo.tpot:
        yield from _longer(found, draft, "tpot", "TPOT")
    if found.grids and question.slo.ttft:
        yield from _longer(found, draft, "ttft", "TTFT")
    if question.max_usd_per_h is not None:
        yield from _larger_budget(found, draft)
    if found.grids:
        yield from _less_traffic(found, draft)


def _best(question: ServingQuestion, found: Search, draft: ModelSpec | None) -> Candidate | None:
    again = search(question, found.spec, draft, found.offers)
    candidates = candidates_of(again.grids, question)
    return candidates[0] if candidates else None


def _change(what: str, candidate: Candidate) -> Change:
    engine = candidate.grid.engine
    pool = pool_layout(engine, "serve", candidate.replicas, candidate.max_batch, candidate.chunk_tokens)
    return Change(what, pool.describe(), usd_range(((engine.offer, candidate.devices),)))


def _other_formats(found: Search, draft: ModelSpec | None) -> Iterator[tuple[float, Change]]:
    space = found.question.space
    tried: list[WeightFormat | Precision] = []
    for offer in found.offers:
        tried += [value for value in supported_weights(offer.device) if space.weights and value not in space.weights]
        tried += [value for value in supported_kv(offer.device) if space.kv and value not in space.kv]
    for order, value in enumerate(dict.fromkeys(tried)):
        candidate = _best(dataclasses.replace(found.question, space=_with_format(space, value)), found, draft)
        if candidate is not None:
            label = "weights" if isinstance(value, WeightFormat) else "KV"
            yield 1e-3 * order, _change(f"{value} {label}", candidate)


def _with_format(space: SearchSpace, value: WeightFormat | Precision) -> SearchSpace:
    if isinstance(value, WeightFormat):
        return dataclasses.replace(space, weights=(value,))
    return dataclasses.replace(space, kv=(value,))


def _more_devices(found: Search, draft: ModelSpec | None) -> Iterator[tuple[float, Change]]:
    question = found.question
    for position, offer in enumerate(found.offers):
        most = offer.most_devices(question.max_devices)
        if math.isinf(most):
            continue
        unlimited = dataclasses.replace(offer, limit=None)
        wider = dataclasses.replace(question, max_devices=None)
        again = search(wider, found.spec, draft, (unlimited,))
        candidates = candidates_of(again.grids, wider)
        if candidates:
            least = min(candidates, key=lambda candidate: candidate.devices)
            more = least.devices - int(most)
            noun = "device" if more == 1 else "devices"
            yield more / most + position * 1e-6, _change(f"{more} more {offer.device.name} {noun}", least)


def _longer(found: Search, draft: ModelSpec | None, name: str, label: str) -> Iterator[tuple[float, Change]]:
    """The least target of one kind that the plans within all other limits reach."""
    question = found.question
    targets: tuple[Target, ...] = getattr(question.slo, name)
    free = dataclasses.replace(question, slo=dataclasses.replace(question.slo, **{name: ()}))
    again = search(free, found.spec, draft, found.offers)
    reached = []
    for target in targets:
        seconds = math.inf
        for grid in again.grids:
            usable = grid.feasible & within_budget(grid, free)[None, :, None]
            tail = grid.loop.tpot_tail if name == "tpot" else grid.loop.ttft_tail
            share = target.percentile / 100
            seconds = min(seconds, _least_of(tail, usable, share, target.seconds, below=seconds))
        if math.isinf(seconds):
            return
        # Rounded up, so that the changed question has an answer.
        reached.append(dataclasses.replace(target, seconds=max(target.seconds, math.ceil(seconds * 1e4 * 1.002) / 1e4)))
    slo: Slo = dataclasses.replace(question.slo, **{name: tuple(reached)})
    candidate = _best(dataclasses.replace(question, slo=slo), found, draft)
    if candidate is None:
        return
    worst = max(range(len(targets)), key=lambda index: reached[index].seconds / targets[index].seconds)
    asked, needed = targets[worst], reached[worst]
    what = f"{label} target {needed.seconds * 1e3:g} ms instead of {asked.seconds * 1e3:g} (percentile {asked.percentile:g})"
    yield needed.seconds / asked.seconds - 1, _change(what, candidate)


def _larger_budget(found: Search, draft: ModelSpec | None) -> Iterator[tuple[float, Change]]:
    question = found.question
    candidate = _best(dataclasses.replace(question, max_usd_per_h=None), found, draft)
    if candidate is not None and question.max_usd_per_h is not None:
        high = candidate.grid.engine.offer.price.high_usd_per_h * candidate.devices
        yield high / question.max_usd_per_h - 1, _change(f"a budget of ${high:.2f}/h", candidate)


def _less_traffic(found: Search, draft: ModelSpec | None) -> Iterator[tuple[float, Change]]:
    """The highest rate that has a plan, to about a hundredth; none if even a thousandth of the rate has not."""
    question, best = found.question, None
    low, high = question.traffic.requests_per_s * 1e-3, question.traffic.requests_per_s
    for step in range(_RATE_STEPS + 1):
        rate = low if step == 0 else math.sqrt(low * high)
        traffic = dataclasses.replace(question.traffic, requests_per_s=rate)
        candidate = _best(dataclasses.replace(question, traffic=traffic), found, draft)
        if candidate is None and step == 0:
            return
        if candidate is None:
            high = rate
        else:
            low, best = rate, candidate
    if best is not None:
        size = question.traffic.requests_per_s / low - 1
        yield size, _change(f"{low:.3g} requests/s instead of {question.traffic.requests_per_s:g}", best)
