"""Step time of one deployment for many step compositions at once: the op list's templates stacked into arrays.

Equal to walking `step_time` over `forward_ops` of each step to rounding. Building a model costs about as much as one walk;
after that a thousand compositions cost about as much as one. The shapes below are [ops, steps] for rows and
[groups, steps] for attention; a step with fewer groups than others has count 0 in the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from argosy.cost.step_time import Binding, StepTime, step_time
from argosy.errors import ConfigError

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of many steps.

    Attributes:
        stage_s: [stages, steps].
        overhead_s: [steps], once per step and not of a stage.
        by_binding: [steps] each; they sum to `latency_s`.
    """

    stage_s: Array
    overhead_s: Array
    by_binding: dict[Binding, Array]

    @property
    def latency_s(self) -> Array:
        """[steps], from the first stage's start to the last one's end."""
        return np.asarray(self.stage_s.sum(axis=0) + self.overhead_s)

    @property
    def interval_s(self) -> Array:
        """[steps], between the ends of successive steps when all stages are kept busy."""
        return np.asarray(self.stage_s.max(axis=0) + self.overhead_s)


@dataclass(frozen=True, slots=True)
class _Steps:
    """Compositions as arrays [groups, steps], and what is derived from them once."""

    count: Array
    new: Array
    past: Array
    logit_rows: Array
    absorbs: NDArray[np.bool_]

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
    """Row templates of one kind of resource as columns; see `RowOp`."""

    def __init__(self, ops: Sequence[RowOp], device: Device, constants: Constants) -> None:
        def column(values: list[float]) -> Array:
            return np.array(values, dtype=np.float64)[:, None]

        bandwidth = device.memory_bandwidth.value
        per_byte = [1.0 / (constants.efficiencies[op.kind].memory * bandwidth) for op in ops]
        self.counted_in = np.array([op.counted_in for op in ops], dtype=np.intp)
        self.share = column([op.share for op in ops])
        self.compute_s = column([_compute_s_per_row(op, device, constants) for op in ops])
        self.half_rows = column([constants.efficiencies[op.kind].half_rows for op in ops])
        moved = [op.activation_bytes + op.kv_bytes + op.weight_row_bytes for op in ops]
        self.row_s = column([s * b for s, b in zip(per_byte, moved, strict=True)])
        self.weight_s = column([s * op.weight_bytes for s, op in zip(per_byte, ops, strict=True)])
        self.sequence_s = column([s * op.kv_sequence_bytes for s, op in zip(per_byte, ops, strict=True)])
        self.overhead_s = column([op.launches * constants.launch_s for op in ops])
        self.touched = np.array([i for i, op in enumerate(ops) if op.touched is not None], dtype=np.intp)
        visited = [op.touched for op in ops if op.touched is not None]
        self.experts = column([touched.experts for touched in visited])
        self.log_miss = column([touched.log_miss * touched.tokens_per_token for touched in visited])

    def times(self, features: Array) -> tuple[Array, Array, Array]:
        """(compute, memory, overhead) seconds [ops, steps] of one repetition of each."""
        rows = self.share * features[self.counted_in]
        active = rows > 0
        weight_share, blocks = active.astype(np.float64), active.astype(np.float64)
        if self.touched.size:
            share = -np.expm1(np.maximum(CERTAIN, features[0] * self.log_miss))
            weight_share[self.touched] *= share
            blocks[self.touched] *= share * self.experts
        compute = self.compute_s * (rows + self.half_rows * blocks)
        memory = self.row_s * rows + self.weight_s * weight_share + self.sequence_s * features[2] * active
        return compute, memory, self.overhead_s * active


def _compute_s_per_row(op: RowOp | GroupOp, device: Device, constants: Constants) -> float:
    """Seconds per row (per pair, for attention) at the efficiency of many rows."""
    if not op.flops:
        return 0.0
    return op.flops / (constants.efficiencies[op.kind].compute * device.peak_flop_per_s(op.precision))


class _Lines:
    """Algorithms of one collective as arrays; the fastest is taken at every payload."""

    def __init__(self, exchange: Exchange, topology: Topology, constants: Constants) -> None:
        lines: tuple[CostLine, ...] = cost_lines(exchange.kind, exchange.ranks, exchange.stride, topology)
        self.latency_s = np.array([line.latency_s for line in lines])[:, None]
        pace = [exchange.payload_bytes * line.s_per_byte / constants.link_efficiency for line in lines]
        self.unit_s = np.array(pace)[:, None]
        point_to_point = exchange.kind is CollectiveKind.POINT_TO_POINT
        self.overhead_s = constants.point_to_point_s if point_to_point else constants.collective_s

    def seconds(self, units: Array) -> Array:
        """[...] seconds for `units` rows or tokens read, of any shape."""
        flat = units.reshape(1, -1)
        return np.asarray((self.latency_s + self.unit_s * flat).min(axis=0)).reshape(units.shape)


class StepTimeModel:
    """Step times of one deployment on one kind of device. Holds no state but what it was made from."""

    def __init__(self, deployment: Deployment, device: Device, topology: Topology, constants: Constants) -> None:
        """Stack the templates.

        Raises:
            ConfigError: the device lacks an arithmetic, or links that the plan needs.
        """
        self.deployment, self.device, self.topology, self.constants = deployment, device, topology, constants
        self.templates = forward_templates(deployment)
        local = [op for op in self.templates if isinstance(op, RowOp) and op.exchange is None]
        self._stages = deployment.plan.pipeline
        self._rows = _RowOps(local, device, constants)
        self._row_weights = _stage_weights(local, self._stages)
        self._attention = [op for op in self.templates if isinstance(op, GroupOp)]
        self._group_lines = {
            index: _Lines(op.exchange, topology, constants)
            for index, op in enumerate(self._attention)
            if op.exchange is not None
        }
        self._exchanges = self._merge_exchanges()
        layers = [[place.repeats for place, _ in deployment.runs_of_stage(stage)] for stage in range(self._stages)]
        self._layer_overhead_s = np.array([sum(repeats) * constants.layer_s for repeats in layers])

    def _merge_exchanges(self) -> list[tuple[RowOp, _Lines, Array]]:
        """Collectives that are alike but for their place, once each, with their repeats per stage [stages, 1]."""
        merged: dict[tuple[Exchange, int, float], tuple[RowOp, Array]] = {}
        for op in self.templates:
            if isinstance(op, RowOp) and op.exchange is not None:
                repeats = merged.setdefault((op.exchange, op.counted_in, op.share), (op, np.zeros((self._stages, 1))))[1]
                repeats[op.place.stage] += op.place.repeats
        return [
            (op, _Lines(exchange, self.topology, self.constants), repeats)
            for (exchange, _, _), (op, repeats) in merged.items()
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
        steps = self._steps(count, new, past, logit_rows)
        features = steps.rows
        if not (features[0] > 0).all():
            raise ConfigError("a step needs at least one new token")
        compute, memory, overhead = self._rows.times(features)
        bound = compute > memory
        compute_s = self._row_weights @ np.where(bound, compute, 0.0)
        memory_s = self._row_weights @ np.where(bound, 0.0, memory)
        overhead_s = self._row_weights @ overhead + self._layer_overhead_s[:, None]
        network_s = np.zeros_like(compute_s)
        for op, lines, repeats in self._exchanges:
            rows = op.share * features[op.counted_in]
            active = rows > 0
            network_s += repeats * np.where(active, lines.seconds(rows), 0.0)
            overhead_s += repeats * active * (lines.overhead_s + op.launches * self.constants.launch_s)
        self._add_attention(steps, compute_s, memory_s, network_s, overhead_s)
        network_s -= self.constants.overlap_fraction * np.minimum(compute_s + memory_s, network_s)
        step_overhead = self.constants.step_s + self.constants.sequence_s * features[2]
        parts = {
            Binding.COMPUTE: compute_s,
            Binding.MEMORY: memory_s,
            Binding.NETWORK: network_s,
            Binding.OVERHEAD: overhead_s,
        }
        by_binding = {binding: np.asarray(part.sum(axis=0)) for binding, part in parts.items()}
        by_binding[Binding.OVERHEAD] = by_binding[Binding.OVERHEAD] + step_overhead
        return StepTimes(compute_s + memory_s + network_s + overhead_s, step_overhead, by_binding)

    def _steps(self, count: ArrayLike, new: ArrayLike, past: ArrayLike, logit_rows: ArrayLike) -> _Steps:
        counts, fresh, before = np.broadcast_arrays(*(np.atleast_2d(np.asarray(a, np.float64)) for a in (count, new, past)))
        logits = np.broadcast_to(np.asarray(logit_rows, np.float64), counts.shape[1:])
        for values in (counts, fresh, before, logits):
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise ConfigError("counts, lengths and logit rows of steps must be finite and not negative")
        mla = self.deployment.mla
        absorbs = np.zeros(counts.shape, bool) if mla is None else _absorbs(mla, fresh, before)
        return _Steps(counts, fresh, before, logits, absorbs)

    def _add_attention(self, steps: _Steps, compute_s: Array, memory_s: Array, network_s: Array, overhead_s: Array) -> None:
        """Add attention of every group to the sums [stages, steps], in place."""
        bandwidth = self.device.memory_bandwidth.value
        for index, op in enumerate(self._attention):
            active = (steps.count > 0) & (steps.new > 0)
            if op.form is not None:
                active &= steps.absorbs if op.form is MlaForm.ABSORBED else ~steps.absorbs
            count = np.where(active, steps.count, 0.0)
            pairs = _causal_pairs(steps.new, steps.past, op.limit)
            span = pairs if op.gathers else _tokens_read(steps.new, steps.past, op.limit)
            stage, repeats = op.place.stage, op.place.repeats
            launched = active.any(axis=0)
            overhead_s[stage] += repeats * op.launches * self.constants.launch_s * launched
            if index in self._group_lines:
                lines = self._group_lines[index]
                network_s[stage] += repeats * np.where(active, lines.seconds(count * span), 0.0).sum(axis=0)
                overhead_s[stage] += repeats * lines.overhead_s * active.sum(axis=0)
                continue
            efficiency = self.constants.efficiencies[op.kind]
            rows = np.maximum(op.rows_per_token * steps.new, 1e-300)
            compute = (
                count * pairs * _compute_s_per_row(op, self.device, self.constants) * (1.0 + efficiency.half_rows / rows)
            )
            moved = count * ((op.kv_bytes + op.span_bytes) * span + op.token_bytes * steps.new)
            memory = moved / (efficiency.memory * bandwidth)
            bound = compute > memory
            compute_s[stage] += repeats * np.where(bound, compute, 0.0).sum(axis=0)
            memory_s[stage] += repeats * np.where(bound, 0.0, memory).sum(axis=0)


def _stage_weights(ops: Sequence[RowOp], stages: int) -> Array:
    """[stages, ops]: repeats of each op in its stage."""
    weights = np.zeros((stages, len(ops)))
    for index, op in enumerate(ops):
        weights[op.place.stage, index] = op.place.repeats
    return weights


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
