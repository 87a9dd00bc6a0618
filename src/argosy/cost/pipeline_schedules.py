"""Pipeline schedules as op lists: for each stage, what it runs in which order.

A stage runs its list strictly in order and waits where an input has not arrived. A model of `chunks` per stage has
stages x chunks consecutive parts; `placement` says which stage holds which part. Comments
write p for stages, m for micro-batches, v for chunks per stage.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from argosy.cost.checks import at_least_one
from argosy.errors import ConfigError


class Schedule(enum.StrEnum):
    """Known schedules and where they are from."""

    GPIPE = "gpipe"  # Huang et al. 2019
    ONE_F_ONE_B = "1f1b"  # PipeDream-Flush, Narayanan et al. 2021
    INTERLEAVED = "interleaved 1f1b"  # Narayanan et al. 2021
    ZB_H1 = "zb-h1"  # Qi et al. 2023
    ZB_V = "zb-v"  # Qi et al. 2023, section 6


class PassKind(enum.StrEnum):
    """What a stage does with one micro-batch in one chunk. `BACKWARD` is both halves in one."""

    FORWARD = "F"
    BACKWARD = "BW"
    BACKWARD_INPUT = "B"
    BACKWARD_WEIGHT = "W"


class Pass(NamedTuple):
    """One entry of a stage's list."""

    kind: PassKind
    micro_batch: int
    chunk: int


@dataclass(frozen=True, slots=True)
class PipelineProgram:
    """What every stage runs.

    Attributes:
        passes: per stage, in order.
        placement: stage that holds each of the stages x chunks model parts, in model order.
        chunk_of_part: which chunk of its stage each part is.
    """

    schedule: Schedule
    micro_batches: int
    chunks: int
    passes: tuple[tuple[Pass, ...], ...]
    placement: tuple[int, ...]
    chunk_of_part: tuple[int, ...]

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return len(self.passes)


def pipeline_program(schedule: Schedule, *, stages: int, micro_batches: int, chunks: int = 1) -> PipelineProgram:
    """The op lists of `schedule` for `stages` stages and `micro_batches` micro-batches.

    Raises:
        ConfigError: a count below one; `chunks` that the schedule does not take (ZB-V has two, interleaving any number, the
            others one); micro-batches that are not a multiple of the stages under interleaving.
    """
    at_least_one(stages=stages, micro_batches=micro_batches)
    placement = part_placement(schedule, stages=stages, chunks=chunks)
    if schedule is Schedule.INTERLEAVED:
        if micro_batches % stages:
            raise ConfigError(f"interleaved 1f1b needs micro_batches a multiple of stages, got {micro_batches} and {stages}")
        lists = tuple(_interleaved(stage, stages, micro_batches, chunks) for stage in range(stages))
    else:
        make = {
            Schedule.GPIPE: _gpipe,
            Schedule.ONE_F_ONE_B: _one_f_one_b,
            Schedule.ZB_H1: _zb_h1,
            Schedule.ZB_V: _zb_v,
        }[schedule]
        lists = tuple(make(stage, stages, micro_batches) for stage in range(stages))
    chunk_of_part = tuple(part // stages for part in range(stages * chunks))
    return PipelineProgram(schedule, micro_batches, chunks, lists, placement, chunk_of_part)


def part_placement(schedule: Schedule, *, stages: int, chunks: int = 1) -> tuple[int, ...]:
    """Stage of each of the stages x chunks model parts: round and round, or down and up again for ZB-V.

    Raises:
        ConfigError: a count below one, or `chunks` that the schedule does not take.
    """
    at_least_one(stages=stages, chunks=chunks)
    if schedule is Schedule.ZB_V:
        if chunks != 2:
            raise ConfigError(f"zb-v places 2 chunks on each stage, got chunks={chunks}")
        return (*range(stages), *reversed(range(stages)))
    if schedule is not Schedule.INTERLEAVED and chunks != 1:
        raise ConfigError(f"{schedule} has 1 chunk per stage, got chunks={chunks}; use interleaved 1f1b")
    return tuple(range(stages)) * chunks


def _gpipe(stage: int, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    del stage, stages
    forward = [Pass(PassKind.FORWARD, i, 0) for i in range(micro_batches)]
    backward = [Pass(PassKind.BACKWARD, i, 0) for i in reversed(range(micro_batches))]
    return (*forward, *backward)


def _one_f_one_b(stage: int, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    warm_up = min(stages - stage - 1, micro_batches)
    passes = [Pass(PassKind.FORWARD, i, 0) for i in range(warm_up)]
    for i in range(micro_batches):
        if warm_up + i < micro_batches:
            passes.append(Pass(PassKind.FORWARD, warm_up + i, 0))
        passes.append(Pass(PassKind.BACKWARD, i, 0))
    return tuple(passes)


def _interleaved(stage: int, stages: int, micro_batches: int, chunks: int) -> tuple[Pass, ...]:
    """1F1B over (micro-batch, chunk) pairs that advance `stages` micro-batches through one chunk, then through the next."""
    total = micro_batches * chunks

    def at(kind: PassKind, index: int) -> Pass:
        round_, within = divmod(index, stages * chunks)
        chunk, offset = divmod(within, stages)
        return Pass(kind, round_ * stages + offset, chunk if kind is PassKind.FORWARD else chunks - 1 - chunk)

    warm_up = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)
    if chunks == 1:
        warm_up = min(stages - stage - 1, total)
    passes = [at(PassKind.FORWARD, i) for i in range(warm_up)]
    for i in range(total):
        if warm_up + i < total:
            passes.append(at(PassKind.FORWARD, warm_up + i))
        passes.append(at(PassKind.BACKWARD, i))
    return tuple(passes)


def _zb_h1(stage: int, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    """1F1B whose stage r starts weight gradients r micro-batches late, which keeps at most p activations on every stage."""
    warm_up, delay = min(stages - stage - 1, micro_batches), stage
    passes = [Pass(PassKind.FORWARD, i, 0) for i in range(warm_up)]
    weights = 0
    for i in range(micro_batches):
        if warm_up + i < micro_batches:
            passes.append(Pass(PassKind.FORWARD, warm_up + i, 0))
        passes.append(Pass(PassKind.BACKWARD_INPUT, i, 0))
        if i >= delay:
            passes.append(Pass(PassKind.BACKWARD_WEIGHT, weights, 0))
            weights += 1
    passes.extend(Pass(PassKind.BACKWARD_WEIGHT, i, 0) for i in range(weights, micro_batches))
    return tuple(passes)


class _VBuilder:
    """Appends passes of one ZB-V stage, each kind and chunk counting its own micro-batches; past the last, nothing."""

    def __init__(self, micro_batches: int) -> None:
        self.micro_batches = micro_batches
        self.passes: list[Pass] = []
        self.done = {(kind, chunk): 0 for kind in PassKind for chunk in (0, 1)}

    def add(self, kind: PassKind, chunk: int) -> None:
        """Append the next micro-batch of `kind` in `chunk`."""
        count = self.done[kind, chunk]
        if count < self.micro_batches:
            self.passes.append(Pass(kind, count, chunk))
            self.done[kind, chunk] = count + 1

    def drain(self, kind: PassKind, chunk: int) -> None:
        """Append all that is left of `kind` in `chunk`."""
        while self.done[kind, chunk] < self.micro_batches:
            self.add(kind, chunk)


def _zb_v(stage: int, stages: int, micro_batches: int) -> tuple[Pass, ...]:
    """The V: chunk 0 goes down the stages, chunk 1 comes back up, so that a loss meets its backward on stage 0.

    stage 0   F0 F0 F0 | F1 B1 W1 ...     micro-batch 0 returns on chunk 1 after 2p - 1 passes
    stage p-1 F0 | F1 F0 ... | F1 B1 W1   it turns round here
    """
    forward, b, w = PassKind.FORWARD, PassKind.BACKWARD_INPUT, PassKind.BACKWARD_WEIGHT
    v = _VBuilder(micro_batches)
    for _ in range(2 * (stages - stage) - 1):
        v.add(forward, 0)
    for _ in range(stage):
        v.add(forward, 1)
        v.add(forward, 0)
    for _ in range(stages - stage):
        v.add(forward, 1)
        v.add(b, 1)
        v.add(w, 1)
    while v.done[forward, 1] < micro_batches:
        v.add(forward, 0)
        v.add(b, 0)
        v.add(w, 0)
        v.add(forward, 1)
        v.add(b, 1)
        v.add(w, 1)
    while v.done[b, 0] < micro_batches:
        v.add(b, 0)
        if v.done[b, 1] < micro_batches:
            v.add(b, 1)
        else:
            v.add(w, 0)
    v.drain(w, 1)
    v.drain(w, 0)
    return tuple(v.passes)
