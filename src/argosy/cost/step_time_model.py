"""Step time of one deployment for many step compositions at once: the op list's templates stacked into arrays.

Equal to walking `step_time` over `forward_ops` of each step to rounding. Building a model costs about as much as one walk;
after that a thousand compositions cost about as much as one. The shapes below are [ops, steps] for rows and
[groups, steps] for attention; a step with fewer groups than others has count 0 in the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from argosy.cost.collectives import CostLine, Topology, cost_lines
from argosy.cost.deployment import Deployment
from argosy.cost.device import Device
from argosy.cost.efficiency import Constants
from argosy.cost.model_spec import Mla
from argosy.cost.op import CollectiveKind, Op, StepComposition
from argosy.cost.op_list import check_step, forward_templates, ops_of_step
from argosy.cost.op_template import CERTAIN, Exchange, GroupOp, MlaForm, RowOp
from argosy.cost.step_time import StepTime, step_time
from argosy.cost.step_time_work import KINDS, Array, ExchangeWork, StepTimes, StepWork
from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class _Steps:
    """Compositions as arrays [groups, steps], and what is derived from them once."""

    count: Array
    new: Array
    past: Array
    logit_rows: Array
    absorbs: NDArray[np.bool_]

    def active(self, op: GroupOp) -> NDArray[np.bool_]:
        """[groups, steps], which groups `op` computes."""
        present = (self.count > 0) & (self.new > 0)
        if op.form is None:
            return present
        return np.asarray(present & (self.absorbs if op.form is MlaForm.ABSORBED else ~self.absorbs))

    @property
    def rows(self) -> Array:
        """[5, steps], indexed by `Rows`."""
        new, span = self.count * self.new, self.count * (self.past + self.new)
        return np.stack(
            [
                new.sum(axis=0),
                self.logit_rows,
                self.count.sum(axis=0),
                (new * self.absorbs).sum(axis=0),
                (span * ~self.absorbs).sum(axis=0),
            ]
        )


class _RowOps:
    """Row templates without collectives as columns; see `RowOp`."""

    def __init__(self, ops: Sequence[RowOp], device: Device, stages: int) -> None:
        def column(values: list[float]) -> Array:
            return np.array(values, dtype=np.float64)[:, None]

        per_byte = 1.0 / device.memory_bandwidth.value
        self.kind = [KINDS.index(op.kind) for op in ops]
        self.repeats = _stage_weights(ops, stages)
        self.counted_in = np.array([op.counted_in for op in ops], dtype=np.intp)
        self.share = column([op.share for op in ops])
        self.compute_s = column([_compute_s_per_row(op, device) for op in ops])
        self.row_s = column([per_byte * (op.activation_bytes + op.kv_bytes + op.weight_row_bytes) for op in ops])
        self.weight_s = column([per_byte * op.weight_bytes for op in ops])
        self.sequence_s = column([per_byte * op.kv_sequence_bytes for op in ops])
        self.launches = self.repeats * np.array([op.launches for op in ops], dtype=np.float64)
        self.touched = np.array([i for i, op in enumerate(ops) if op.touched is not None], dtype=np.intp)
        visited = [op.touched for op in ops if op.touched is not None]
        self.experts = column([touched.experts for touched in visited])
        self.log_miss = column([touched.log_miss * touched.tokens_per_token for touched in visited])

    def work(self, features: Array) -> tuple[Array, Array, Array, Array]:
        """[ops, steps] each, of one repetition: seconds at peak, of one more row, at full bandwidth; and [stages, steps]
        launches."""
        rows = self.share * features[self.counted_in]
        active = (rows > 0).astype(np.float64)
        weight_share, blocks = active.copy(), active.copy()
        if self.touched.size:
            share = -np.expm1(np.maximum(CERTAIN, features[0] * self.log_miss))
            weight_share[self.touched] *= share
            blocks[self.touched] *= share * self.experts
        memory = self.row_s * rows + self.weight_s * weight_share + self.sequence_s * features[2] * active
        return self.compute_s * rows, self.compute_s * blocks, memory, self.launches @ active


def _compute_s_per_row(op: RowOp | GroupOp, device: Device) -> float:
    """Seconds per row (per pair, for attention) at peak."""
    return op.flops / device.peak_flop_per_s(op.precision) if op.flops else 0.0


class _Lines:
    """Algorithms of one collective as arrays."""

    def __init__(self, exchange: Exchange, topology: Topology) -> None:
        lines: tuple[CostLine, ...] = cost_lines(exchange.kind, exchange.ranks, exchange.stride, topology)
        self.latency_s = np.array([line.latency_s for line in lines])[:, None]
        self.unit_s = np.array([exchange.payload_bytes * line.s_per_byte for line in lines])[:, None]

    def work(self, units: Array, steps: NDArray[np.intp], repeats: Array) -> ExchangeWork:
        """Calls of `units` rows or tokens read [calls], each in its step."""
        return ExchangeWork(repeats, self.latency_s, self.unit_s * units, steps)


class StepTimeModel:
    """Step times of one deployment on one kind of device. Holds no state but what it was made from."""

    def __init__(self, deployment: Deployment, device: Device, topology: Topology, constants: Constants) -> None:
        """Stack the templates.

        Raises:
            ConfigError: the device lacks an arithmetic, or links that the plan needs.
        """
        self.deployment, self.device, self.topology, self.constants = deployment, device, topology, constants
        self.templates = forward_templates(deployment)
        self._stages = deployment.plan.pipeline
        local = [op for op in self.templates if isinstance(op, RowOp) and op.exchange is None]
        self._rows = _RowOps(local, device, self._stages)
        groups = [op for op in self.templates if isinstance(op, GroupOp)]
        self._attention = [op for op in groups if op.exchange is None]
        self._group_exchanges = [
            (op, op.exchange, _Lines(op.exchange, topology)) for op in groups if op.exchange is not None
        ]
        self._row_exchanges = self._merge_exchanges()
        layers = [[place.repeats for place, _ in deployment.runs_of_stage(stage)] for stage in range(self._stages)]
        self._layers = np.array([sum(repeats) for repeats in layers], dtype=np.float64)

    def _merge_exchanges(self) -> list[tuple[RowOp, Exchange, _Lines, Array]]:
        """Collectives that are alike but for their place, once each, with their repeats [stages]."""
        merged: dict[tuple[Exchange, int, float], tuple[RowOp, Array]] = {}
        for op in self.templates:
            if isinstance(op, RowOp) and op.exchange is not None:
                repeats = merged.setdefault((op.exchange, op.counted_in, op.share), (op, np.zeros(self._stages)))[1]
                repeats[op.place.stage] += op.place.repeats
        return [
            (op, exchange, _Lines(exchange, self.topology), repeats) for (exchange, _, _), (op, repeats) in merged.items()
        ]

    def ops(self, step: StepComposition) -> tuple[Op, ...]:
        """The op list of `step`."""
        return ops_of_step(self.deployment, self.templates, step)

    def walk(self, step: StepComposition) -> StepTime:
        """Time of `step` with its parts by kind of op, by walking its op list."""
        return step_time(self.ops(step), self.device, self.topology, self.constants, sequences=step.sequences)

    def step_s(self, step: StepComposition) -> float:
        """Latency of one step in seconds."""
        check_step(step)
        groups = np.array(step.groups, dtype=np.float64)
        return float(self.times(groups[:, 0:1], groups[:, 1:2], groups[:, 2:3], step.logit_rows).latency_s[0])

    def decode(self, sequences: ArrayLike, context: ArrayLike, *, new: ArrayLike = 1) -> StepTimes:
        """Steps in which `sequences` at `context` decode one token each, or verify `new` ones; arguments broadcast."""
        count, past, fresh = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(a, np.float64)) for a in (sequences, context, new))
        )
        return self.times(count[None], fresh[None], past[None], count * fresh)

    def prefill(self, new: ArrayLike, past: ArrayLike = 0, *, sequences: ArrayLike = 1) -> StepTimes:
        """Steps that compute `new` prompt tokens of each of `sequences` after `past`, and one logit row each."""
        fresh, before, count = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(a, np.float64)) for a in (new, past, sequences))
        )
        return self.times(count[None], fresh[None], before[None], count)

    def times(self, count: ArrayLike, new: ArrayLike, past: ArrayLike, logit_rows: ArrayLike) -> StepTimes:
        """Times of many steps.

        Args:
            count, new, past: [groups, steps]; sequences, new tokens each, context before them. Fractions are allowed, for
                mean compositions.
            logit_rows: [steps] or a scalar.

        Raises:
            ConfigError: not finite, negative, or a step without tokens.
        """
        return self.work(count, new, past, logit_rows).priced(self.constants)

    def work(self, count: ArrayLike, new: ArrayLike, past: ArrayLike, logit_rows: ArrayLike) -> StepWork:
        """What these steps ask of the devices; arguments and errors as of `times`."""
        steps = self._steps(count, new, past, logit_rows)
        features = steps.rows
        if not (features[0] > 0).all():
            raise ConfigError("a step needs at least one new token")
        compute, padding, memory, launches = self._rows.work(features)
        attention = [self._attend(op, steps) for op in self._attention]
        for op in self._attention:
            launches[op.place.stage] += op.place.repeats * op.launches * steps.active(op).any(axis=0)
        calls = [*self._row_calls(features), *self._group_calls(steps)]
        collectives, transfers = np.zeros_like(launches), np.zeros_like(launches)
        for exchange, kind, kernels in calls:
            called = np.outer(exchange.repeats, np.bincount(exchange.steps, minlength=launches.shape[1]))
            (transfers if kind is CollectiveKind.POINT_TO_POINT else collectives)[...] += called
            launches += kernels * np.minimum(called, exchange.repeats[:, None])
        groups = len(steps.count)
        kinds = self._rows.kind + [KINDS.index(op.kind) for op in self._attention for _ in range(groups)]
        attention_repeats = np.repeat(_stage_weights(self._attention, self._stages), groups, axis=1)
        return StepWork(
            kind=np.array(kinds, np.intp),
            repeats=np.hstack([self._rows.repeats, attention_repeats]),
            compute_s=np.vstack([compute, *(parts[0] for parts in attention)]),
            padding_s=np.vstack([padding, *(parts[1] for parts in attention)]),
            memory_s=np.vstack([memory, *(parts[2] for parts in attention)]),
            launches=launches,
            collectives=collectives,
            transfers=transfers,
            layers=self._layers,
            sequences=features[2],
            exchanges=[exchange for exchange, _, _ in calls],
        )

    def _row_calls(self, features: Array) -> Iterator[tuple[ExchangeWork, CollectiveKind, int]]:
        """Collectives of rows: one call a step that has such rows, its kind and its kernels."""
        for op, exchange, lines, repeats in self._row_exchanges:
            rows = op.share * features[op.counted_in]
            active = np.flatnonzero(rows > 0)
            yield lines.work(rows[active], active, repeats), exchange.kind, op.launches

    def _group_calls(self, steps: _Steps) -> Iterator[tuple[ExchangeWork, CollectiveKind, int]]:
        """Collectives of attention: one call for each group, one kernel for all groups of a step."""
        for op, exchange, lines in self._group_exchanges:
            active = steps.active(op)
            units = (steps.count * _span(op, steps))[active]
            repeats = _stage_weights([op], self._stages)[:, 0]
            yield lines.work(units, np.nonzero(active)[1], repeats), exchange.kind, op.launches

    def _attend(self, op: GroupOp, steps: _Steps) -> tuple[Array, Array, Array]:
        """[groups, steps] each: seconds at peak, of one more query row per key, at full bandwidth."""
        count = np.where(steps.active(op), steps.count, 0.0)
        compute = count * _causal_pairs(steps.new, steps.past, op.limit) * _compute_s_per_row(op, self.device)
        rows = np.maximum(op.rows_per_token * steps.new, np.finfo(np.float64).tiny)
        moved = count * ((op.kv_bytes + op.span_bytes) * _span(op, steps) + op.token_bytes * steps.new)
        return compute, compute / rows, moved / self.device.memory_bandwidth.value

    def _steps(self, count: ArrayLike, new: ArrayLike, past: ArrayLike, logit_rows: ArrayLike) -> _Steps:
        counts, fresh, before = np.broadcast_arrays(*(np.atleast_2d(np.asarray(a, np.float64)) for a in (count, new, past)))
        logits = np.broadcast_to(np.asarray(logit_rows, np.float64), counts.shape[1:])
        for values in (counts, fresh, before, logits):
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise ConfigError("counts, lengths and logit rows of steps must be finite and not negative")
        mla = self.deployment.mla
        absorbs = np.zeros(counts.shape, bool) if mla is None else _absorbs(mla, fresh, before)
        return _Steps(counts, fresh, before, logits, absorbs)


def _stage_weights(ops: Sequence[RowOp | GroupOp], stages: int) -> Array:
    """[stages, ops]: repeats of each op in its stage."""
    weights = np.zeros((stages, len(ops)))
    for index, op in enumerate(ops):
        weights[op.place.stage, index] = op.place.repeats
    return weights


def _span(op: GroupOp, steps: _Steps) -> Array:
    """[groups, steps] tokens that one sequence of each group reads."""
    if op.gathers:
        return _causal_pairs(steps.new, steps.past, op.limit)
    return _tokens_read(steps.new, steps.past, op.limit)


def _causal_pairs(new: Array, past: Array, limit: int | None) -> Array:
    if limit is None:
        return new * past + new * (new + 1) / 2
    growing = np.minimum(np.maximum(limit - past, 0.0), new)
    return np.asarray(growing * past + growing * (growing + 1) / 2 + (new - growing) * limit)


def _tokens_read(new: Array, past: Array, limit: int | None) -> Array:
    return past + new if limit is None else np.minimum(past + new, limit + new - 1)


def _absorbs(mla: Mla, new: Array, past: Array) -> NDArray[np.bool_]:
    """Which groups take the absorbed form; see `mla_form`."""
    if mla.index is not None:
        return np.ones(new.shape, bool)
    pairs = _causal_pairs(new, past, None)
    up = mla.kv_lora * (mla.nope_dim + mla.v_dim)
    absorbed = new * up + pairs * (2 * mla.kv_lora + mla.rope_dim)
    expanded = (past + new) * up + pairs * (mla.nope_dim + mla.rope_dim + mla.v_dim)
    return np.asarray(absorbed <= expanded)
