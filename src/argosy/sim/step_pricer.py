"""Seconds of single steps, one after the other, at a few microseconds each.

The vectorised `StepTimeModel` prices a thousand steps in about the time it prices one; a simulation needs the next step
only, or a run of decode steps that differ in nothing but context. Here the same templates are folded into a few lines of
plain arithmetic: what rows cost depends on three counts and is remembered, what attention costs is linear in the tokens
that are looked at. Equal to `StepTimeModel.times` to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from argosy.cost.collectives import cost_lines
from argosy.cost.op import CollectiveKind
from argosy.cost.op_template import (
    Exchange,
    GroupOp,
    MlaForm,
    RowOp,
    Rows,
    Touched,
    causal_pairs,
    mla_form,
    tokens_read,
)
from argosy.cost.step_time_model import StepTimeModel

Number = TypeVar("Number", float, NDArray[np.float64])


class Chunk(NamedTuple):
    """`new` tokens of one sequence after `past` of context; `samples` counts one logit row."""

    new: int
    past: int
    samples: bool


class StepShape(NamedTuple):
    """What a step computes, as far as its time depends on it.

    Attributes:
        num_decoding: sequences that compute `width` tokens each, every one of them a logit row.
        seen: per entry of `StepPricer.limits`, over the decoding ones: sum of min(tokens seen by a new token, limit) over
            their new tokens; read: the same for distinct tokens read. Equal to each other at width 1.
        chunks: the other sequences.
    """

    num_decoding: int
    width: int
    seen: tuple[int, ...]
    read: tuple[int, ...]
    chunks: tuple[Chunk, ...] = ()


class _Line(NamedTuple):
    """One collective algorithm: seconds of a call, and per row of payload."""

    latency_s: float
    row_s: float


class _RowCost(NamedTuple):
    """A row template under constants; seconds of all its repetitions."""

    counted_in: Rows
    share: float
    compute_s: float
    padding_s: float
    row_s: float
    weight_s: float
    sequence_s: float
    overhead_s: float
    touched: Touched | None
    lines: tuple[_Line, ...]


class _GroupCost(NamedTuple):
    """An attention template under constants; seconds of all its repetitions."""

    limit: int | None
    limit_index: int
    gathers: bool
    form: MlaForm | None
    compute_s: float
    padding_s: float
    read_s: float
    token_s: float
    overhead_s: float
    call_s: float
    lines: tuple[_Line, ...]


class _StageTime(NamedTuple):
    """Seconds of the rows of one stage: on its device, on the network, and overheads."""

    device_s: float
    network_s: float
    overhead_s: float


class StepPricer:
    """Step times of one deployment. Remembers what rows cost; otherwise without state.

    Pipeline stages are kept busy by splitting the sequences of a step into as many micro-batches: the step takes the longer
    of one micro-batch's latency and its interval times their number, as in `cost.serving_time`. Attention-data-parallel
    ranks are taken to hold equal shares of the sequences.

    Attributes:
        limits: the distinct `GroupOp.limit`s of the model, None (no limit) among them where it occurs.
    """

    _MOST_REMEMBERED = 1 << 16

    def __init__(self, model: StepTimeModel) -> None:
        self.model = model
        groups = [op for op in model.templates if isinstance(op, GroupOp)]
        self.limits: tuple[int | None, ...] = tuple(dict.fromkeys(op.limit for op in groups))
        plan = model.deployment.plan
        self._data = plan.data
        self._stages = plan.pipeline
        self._mla = model.deployment.mla
        stages = range(self._stages)
        self._rows = [
            [self._row_cost(op) for op in model.templates if isinstance(op, RowOp) and op.place.stage == stage]
            for stage in stages
        ]
        self._groups = [[self._group_cost(op) for op in groups if op.place.stage == stage] for stage in stages]
        constants = model.constants
        self._layer_overhead_s = [
            constants.layer_s * sum(place.repeats for place, _ in model.deployment.runs_of_stage(stage)) for stage in stages
        ]
        self._remembered: dict[tuple[float, ...], tuple[_StageTime, ...]] = {}

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step. It must compute at least one token."""
        chunks = shape.chunks
        batches = min(self._stages, shape.num_decoding + len(chunks))
        share = 1.0 / (batches * self._data)
        features = self._features(shape, share)
        rows = self._rows_of(features)
        latency_s = slowest_s = 0.0
        for stage, row_time in enumerate(rows):
            device_s, network_s, overhead_s = row_time
            for op in self._groups[stage]:
                work_s, sent_s, fixed_s = self._attention(op, shape, share)
                device_s += work_s
                network_s += sent_s
                overhead_s += fixed_s
            stage_s = self._overlapped(device_s, network_s) + overhead_s
            latency_s += stage_s
            slowest_s = max(slowest_s, stage_s)
        return self._cadence(latency_s, slowest_s, features[Rows.SEQUENCES], batches)

    def decode_run_s(self, num_decoding: int, seen: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """[steps] seconds of steps in which `num_decoding` sequences decode one token each.

        Equal bit for bit to `step_s` of each.

        Args:
            seen: per entry of `limits` [steps], as `StepShape.seen`.
        """
        batches = min(self._stages, num_decoding)
        share = 1.0 / (batches * self._data)
        shape = StepShape(num_decoding, 1, (), ())
        features = self._features(shape, share)
        steps = len(seen[0]) if seen else 0
        latency_s, slowest_s = np.zeros(steps), np.zeros(steps)
        for stage, row_time in enumerate(self._rows_of(features)):
            device_s = np.full(steps, row_time.device_s)
            network_s = np.full(steps, row_time.network_s)
            overhead_s = row_time.overhead_s
            for op in self._groups[stage]:
                if op.form is not MlaForm.EXPANDED:
                    tokens = seen[op.limit_index]
                    work_s = _device_s(op, tokens, tokens, num_decoding, 1, share)
                    device_s = device_s + work_s
                    if op.lines:
                        network_s = network_s + _network_s(op.lines, tokens * share)
                    overhead_s += op.overhead_s + (op.call_s if op.lines else 0.0)
            stage_s = self._overlapped(device_s, network_s) + overhead_s
            latency_s = latency_s + stage_s
            slowest_s = np.maximum(slowest_s, stage_s)
        return self._cadence(latency_s, slowest_s, features[Rows.SEQUENCES], batches)

    def _features(self, shape: StepShape, share: float) -> tuple[float, ...]:
        """Row counts of one micro-batch of one data rank, indexed by `Rows`."""
        num_decoding, width, chunks = shape.num_decoding, shape.width, shape.chunks
        tokens, logits, sequences = num_decoding * width, num_decoding * width, num_decoding
        absorbed, expanded = (tokens if self._mla is not None else 0), 0
        for new, past, samples in chunks:
            tokens += new
            logits += samples
            sequences += 1
            if self._mla is not None:
                if mla_form(self._mla, new, past) is MlaForm.ABSORBED:
                    absorbed += new
                else:
                    expanded += past + new
        return (tokens * share, logits * share, sequences * share, absorbed * share, expanded * share)

    def _rows_of(self, features: tuple[float, ...]) -> tuple[_StageTime, ...]:
        known = self._remembered.get(features)
        if known is None:
            if len(self._remembered) >= self._MOST_REMEMBERED:
                self._remembered.clear()
            known = tuple(_rows_time(ops, features, self._layer_overhead_s[stage]) for stage, ops in enumerate(self._rows))
            self._remembered[features] = known
        return known

    def _attention(self, op: _GroupCost, shape: StepShape, share: float) -> tuple[float, float, float]:
        """(seconds on the device, on the network, of overheads) of one attention template."""
        device_s = network_s = overhead_s = 0.0
        runs = False
        if shape.num_decoding and op.form is not MlaForm.EXPANDED:
            seen, read = float(shape.seen[op.limit_index]), float(shape.read[op.limit_index])
            if op.gathers:
                read = seen
            device_s += _device_s(op, seen, read, shape.num_decoding, shape.width, share)
            if op.lines:
                network_s += _network_s(op.lines, read * share)
                overhead_s += op.call_s
            runs = True
        for new, past, _ in shape.chunks:
            if op.form is not None and self._mla is not None and mla_form(self._mla, new, past) is not op.form:
                continue
            seen = causal_pairs(new, past, op.limit)
            read = seen if op.gathers else tokens_read(new, past, op.limit)
            device_s += _device_s(op, seen, read, 1, new, share)
            if op.lines:
                network_s += _network_s(op.lines, read * share)
                overhead_s += op.call_s
            runs = True
        return device_s, network_s, overhead_s + (op.overhead_s if runs else 0.0)

    def _overlapped(self, device_s: Number, network_s: Number) -> Number:
        hidden = self.model.constants.overlap_fraction
        if not hidden:
            return device_s + network_s
        if isinstance(device_s, float):
            return device_s + network_s - hidden * min(device_s, network_s)
        return device_s + network_s - hidden * np.minimum(device_s, network_s)

    def _cadence(self, latency_s: Number, slowest_s: Number, sequences: float, batches: int) -> Number:
        overhead_s = self.model.constants.step_s + self.model.constants.sequence_s * sequences
        latency_s = latency_s + overhead_s
        if batches == 1:
            return latency_s
        interval_s = (slowest_s + overhead_s) * batches
        if isinstance(latency_s, float):
            return max(latency_s, interval_s)
        return np.asarray(np.maximum(latency_s, interval_s))

    def _row_cost(self, op: RowOp) -> _RowCost:
        model, constants, repeats = self.model, self.model.constants, op.place.repeats
        if op.exchange is not None:
            call_s = op.launches * constants.launch_s + _per_call_s(op.exchange, model)
            lines = _lines(op.exchange, model, repeats)
            return _RowCost(op.counted_in, op.share, 0.0, 0.0, 0.0, 0.0, 0.0, repeats * call_s, None, lines)
        efficiency = constants.efficiencies[op.kind]
        peak_s = op.flops / model.device.peak_flop_per_s(op.precision) if op.flops else 0.0
        byte_s = repeats / (model.device.memory_bandwidth.value * efficiency.memory)
        compute_s = repeats * peak_s / efficiency.compute
        return _RowCost(
            counted_in=op.counted_in,
            share=op.share,
            compute_s=compute_s,
            padding_s=compute_s * efficiency.half_rows,
            row_s=byte_s * (op.activation_bytes + op.kv_bytes + op.weight_row_bytes),
            weight_s=byte_s * op.weight_bytes,
            sequence_s=byte_s * op.kv_sequence_bytes,
            overhead_s=repeats * op.launches * constants.launch_s,
            touched=op.touched,
            lines=(),
        )

    def _group_cost(self, op: GroupOp) -> _GroupCost:
        model, constants, repeats = self.model, self.model.constants, op.place.repeats
        efficiency = constants.efficiencies[op.kind]
        launch_s = repeats * op.launches * constants.launch_s
        index = self.limits.index(op.limit)
        if op.exchange is not None:
            call_s = repeats * _per_call_s(op.exchange, model)
            lines = _lines(op.exchange, model, repeats)
            return _GroupCost(op.limit, index, op.gathers, op.form, 0.0, 0.0, 0.0, 0.0, launch_s, call_s, lines)
        peak_s = op.flops / model.device.peak_flop_per_s(op.precision) if op.flops else 0.0
        byte_s = repeats / (model.device.memory_bandwidth.value * efficiency.memory)
        compute_s = repeats * peak_s / efficiency.compute
        return _GroupCost(
            limit=op.limit,
            limit_index=index,
            gathers=op.gathers,
            form=op.form,
            compute_s=compute_s,
            padding_s=compute_s * efficiency.half_rows / op.rows_per_token,
            read_s=byte_s * (op.kv_bytes + op.span_bytes),
            token_s=byte_s * op.token_bytes,
            overhead_s=launch_s,
            call_s=0.0,
            lines=(),
        )


def _per_call_s(exchange: Exchange, model: StepTimeModel) -> float:
    point_to_point = exchange.kind is CollectiveKind.POINT_TO_POINT
    return model.constants.point_to_point_s if point_to_point else model.constants.collective_s


def _lines(exchange: Exchange, model: StepTimeModel, repeats: int) -> tuple[_Line, ...]:
    efficiency = model.constants.link_efficiency
    return tuple(
        _Line(repeats * line.latency_s, repeats * exchange.payload_bytes * line.s_per_byte / efficiency)
        for line in cost_lines(exchange.kind, exchange.ranks, exchange.stride, model.topology)
    )


def _rows_time(ops: Sequence[_RowCost], features: tuple[float, ...], overhead_s: float) -> _StageTime:
    device_s = network_s = 0.0
    for op in ops:
        rows = op.share * features[op.counted_in]
        if rows <= 0:
            continue
        overhead_s += op.overhead_s
        if op.lines:
            network_s += min(line.latency_s + line.row_s * rows for line in op.lines)
            continue
        weights = blocks = 1.0
        if op.touched is not None:
            weights = op.touched.share(features[Rows.TOKENS])
            blocks = weights * op.touched.experts
        compute_s = op.compute_s * rows + op.padding_s * blocks
        memory_s = op.row_s * rows + op.weight_s * weights + op.sequence_s * features[Rows.SEQUENCES]
        device_s += max(compute_s, memory_s)
    return _StageTime(device_s, network_s, overhead_s)


def _device_s(op: _GroupCost, seen: Number, read: Number, count: int, new: int, share: float) -> Number:
    """Seconds of `count` sequences with `new` tokens each, that see `seen` and read `read` tokens in all."""
    compute_s = (op.compute_s + op.padding_s / new) * seen * share
    memory_s = (op.read_s * read + op.token_s * (count * new)) * share
    if isinstance(compute_s, float) and isinstance(memory_s, float):
        return max(compute_s, memory_s)
    return np.maximum(compute_s, memory_s)


def _network_s(lines: tuple[_Line, ...], payload: Number) -> Number:
    """Seconds of the fastest algorithm for `payload` rows or tokens."""
    if isinstance(payload, float):
        return min(line.latency_s + line.row_s * payload for line in lines)
    best = lines[0].latency_s + lines[0].row_s * payload
    for line in lines[1:]:
        best = np.minimum(best, line.latency_s + line.row_s * payload)
    return best
