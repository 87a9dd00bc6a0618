"""The trade-off between price and speed: dollars per million output tokens against TPOT, every batch full."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from argosy.planner.serving_answer import ParetoPoint
from argosy.planner.serving_plan import per_million, pool_layout, usd_range
from argosy.planner.serving_search import Search

_MOST_POINTS = 40


def pareto_indices(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.intp]:
    """Entries that no other beats in both values, by ascending `first`; of equals one."""
    order = np.lexsort((second, first))
    best_before = np.concatenate([[np.inf], np.minimum.accumulate(second[order])[:-1]])
    return np.asarray(order[second[order] < best_before], np.intp)


def pareto_front(found: Search, most: int = _MOST_POINTS) -> tuple[ParetoPoint, ...]:
    """Points by ascending TPOT. They depend on lengths but not on the traffic's rate or the service level.

    Where there are more than `most` they are thinned out evenly, both ends kept.
    """
    if found.question.traffic.output.tokens == 1:
        return ()
    tpot, usd, where = [], [], []
    for number, grid in enumerate(found.grids):
        mask = grid.allowed[:, 0, :]
        price = grid.full_batch_usd / found.question.traffic.output.mean
        tpot.append(grid.curve.tpot_s[:, grid.batches][mask])
        usd.append(price[mask])
        chunks, batches = np.nonzero(mask)
        where.append(np.stack([np.full(len(chunks), number), chunks, batches]))
    if not tpot:
        return ()
    front = pareto_indices(np.concatenate(tpot), np.concatenate(usd))
    entries = np.concatenate(where, axis=1)[:, front]
    if entries.shape[1] > most:
        entries = entries[:, np.round(np.linspace(0, entries.shape[1] - 1, most)).astype(int)]
    return tuple(_point(found, *(int(i) for i in column)) for column in entries.T)


def _point(found: Search, number: int, chunk: int, batch: int) -> ParetoPoint:
    grid = found.grids[number]
    engine, at = grid.engine, grid.batches[batch]
    sequences = int(grid.curve.states[at])
    per_h = usd_range(((engine.offer, engine.devices),))
    rate = float(grid.curve.rate[chunk, at]) * found.question.traffic.output.mean
    return ParetoPoint(
        plan=pool_layout(engine, "serve", 1, sequences, grid.chunks[chunk]).describe(),
        devices=engine.devices,
        max_batch=sequences,
        tpot_s=float(grid.curve.tpot_s[chunk, at]),
        usd_per_million_tokens=per_million(per_h, rate),
    )
