"""Pipeline time and memory, by running a schedule's op lists pass by pass, and the closed forms of the same.

The bubble has two measures. `bubble_fraction` is idle time over all of the step, of stages that all wait for the last one:
with F and B times of one micro-batch on one stage it is (p-1)/(v*m+p-1) for GPipe (v = 1), 1F1B (v = 1) and interleaved
1F1B (Narayanan et al. 2021, section 2.2, there as overhead (p-1)/(v*m) over the ideal). `span_bubble_fraction` lets every
stage begin its optimizer step, and the next step, when its own passes are done (Qi et al. 2023, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.checks import at_least_one, not_negative, positive
from argosy.cost.pipeline_schedules import Pass, PassKind, PipelineProgram, Schedule, part_placement
from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of one micro-batch on one whole stage (all of its chunks), and of moving its activations to another stage."""

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    transfer_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for times that cannot be."""
        positive(forward_s=self.forward_s)
        not_negative(
            backward_input_s=self.backward_input_s, backward_weight_s=self.backward_weight_s, transfer_s=self.transfer_s
        )

    @property
    def micro_batch_s(self) -> float:
        """Work of one micro-batch on one stage."""
        return self.forward_s + self.backward_input_s + self.backward_weight_s


@dataclass(frozen=True, slots=True)
class TimedPass:
    """A pass as it ran."""

    stage: int
    work: Pass
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """What running a program gave.

    Attributes:
        timeline: all passes, by start time.
        peak_in_flight: per stage, most micro-batches whose activations it held at once, in units of one whole stage; a
            chunk counts 1/chunks. Activations are held from the start of the forward pass to the end of the backward pass,
            or of the weight gradient where that runs apart.
        ideal_s: work of one stage without any wait.
    """

    timeline: tuple[TimedPass, ...]
    makespan_s: float
    ideal_s: float
    span_s: tuple[float, ...]
    peak_in_flight: tuple[float, ...]

    @property
    def bubble_s(self) -> float:
        """Idle seconds of each stage when all wait for the last (a sum of many times may round to just below the ideal)."""
        return max(0.0, self.makespan_s - self.ideal_s)

    @property
    def bubble_fraction(self) -> float:
        """Idle share of the whole step."""
        return self.bubble_s / self.makespan_s

    @property
    def span_bubble_fraction(self) -> float:
        """Idle share of the longest time between a stage's first pass and its last."""
        longest = max(self.span_s)
        return max(0.0, longest - self.ideal_s) / longest


def run_pipeline(program: PipelineProgram, times: PassTimes) -> PipelineRun:
    """Run every stage's list in order; a pass starts when its stage is free and its input has arrived.

    Transfers overlap with passes of both stages, and cost nothing within a stage.

    Raises:
        ConfigError: the lists wait for one another in a circle; the message names the passes that are stuck.
    """
    finished: dict[tuple[PassKind, int, int], float] = {}
    position = [0] * program.stages
    free_s = [0.0] * program.stages
    timeline: list[TimedPass] = []
    parts = _parts(program)
    seconds = _durations(program, times)
    total = sum(len(passes) for passes in program.passes)
    while len(timeline) < total:
        progressed = False
        for stage, passes in enumerate(program.passes):
            while position[stage] < len(passes):
                work = passes[position[stage]]
                part = parts[stage, work.chunk]
                arrived_s = _arrival(program, finished, work, part, times.transfer_s)
                if arrived_s is None:
                    break
                start_s = max(free_s[stage], arrived_s)
                end_s = start_s + seconds[work.kind]
                _finish(finished, work, part, end_s)
                timeline.append(TimedPass(stage, work, start_s, end_s))
                free_s[stage], position[stage], progressed = end_s, position[stage] + 1, True
        if not progressed:
            stuck = [f"stage {s}: {p[position[s]]}" for s, p in enumerate(program.passes) if position[s] < len(p)]
            raise ConfigError(f"the schedule waits for itself: {'; '.join(stuck)}")
    timeline.sort(key=lambda entry: (entry.start_s, entry.stage))
    return _summary(program, times, tuple(timeline))


def _parts(program: PipelineProgram) -> dict[tuple[int, int], int]:
    """Model part by (stage, chunk)."""
    return {(s, c): part for part, (s, c) in enumerate(zip(program.placement, program.chunk_of_part, strict=True))}


def _durations(program: PipelineProgram, times: PassTimes) -> dict[PassKind, float]:
    """Seconds of each kind of pass in one chunk."""
    stage = {
        PassKind.FORWARD: times.forward_s,
        PassKind.BACKWARD: times.backward_input_s + times.backward_weight_s,
        PassKind.BACKWARD_INPUT: times.backward_input_s,
        PassKind.BACKWARD_WEIGHT: times.backward_weight_s,
    }
    return {kind: seconds / program.chunks for kind, seconds in stage.items()}


def _finish(finished: dict[tuple[PassKind, int, int], float], work: Pass, part: int, end_s: float) -> None:
    finished[work.kind, work.micro_batch, part] = end_s
    if work.kind is PassKind.BACKWARD:  # what the part before waits for
        finished[PassKind.BACKWARD_INPUT, work.micro_batch, part] = end_s


def _arrival(
    program: PipelineProgram,
    finished: dict[tuple[PassKind, int, int], float],
    work: Pass,
    part: int,
    transfer_s: float,
) -> float | None:
    """When the input of `work` is there; None while what makes it has not run."""
    last = len(program.placement) - 1
    if work.kind is PassKind.FORWARD:
        source, kind = part - 1, PassKind.FORWARD
    elif work.kind is PassKind.BACKWARD_WEIGHT:
        source, kind = part, PassKind.BACKWARD_INPUT
    else:
        source, kind = (part, PassKind.FORWARD) if part == last else (part + 1, PassKind.BACKWARD_INPUT)
    if source < 0:
        return 0.0
    done_s = finished.get((kind, work.micro_batch, source))
    if done_s is None:
        return None
    return done_s + (transfer_s if program.placement[source] != program.placement[part] else 0.0)


def _summary(program: PipelineProgram, times: PassTimes, timeline: tuple[TimedPass, ...]) -> PipelineRun:
    stages = program.stages
    held, peak = [0] * stages, [0] * stages
    first, last = [float("inf")] * stages, [0.0] * stages
    for entry in timeline:
        first[entry.stage] = min(first[entry.stage], entry.start_s)
        last[entry.stage] = max(last[entry.stage], entry.end_s)
        if entry.work.kind is PassKind.FORWARD:
            held[entry.stage] += 1
            peak[entry.stage] = max(peak[entry.stage], held[entry.stage])
        elif entry.work.kind in (PassKind.BACKWARD, PassKind.BACKWARD_WEIGHT):
            held[entry.stage] -= 1  # a stage runs one pass at a time, so it is over before the next begins
    return PipelineRun(
        timeline=timeline,
        makespan_s=max(last),
        ideal_s=program.micro_batches * times.micro_batch_s,
        span_s=tuple(end - start for start, end in zip(first, last, strict=True)),
        peak_in_flight=tuple(count / program.chunks for count in peak),
    )


def bubble_fraction(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """(p-1)/(v*m+p-1): idle share of the step under GPipe, 1F1B and interleaved 1F1B without transfer time.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2. The form
    (1/v)*(p-1)/(m+p-1) seen elsewhere is an approximation.

    Raises:
        ConfigError: a count below one.
    """
    at_least_one(stages=stages, micro_batches=micro_batches, chunks=chunks)
    return (stages - 1) / (chunks * micro_batches + stages - 1)


def bubble_overhead(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """(p-1)/(v*m): idle time over the ideal time, of the same schedules. A step takes 1 + this times the ideal.

    Source: Narayanan et al. 2021, section 2.2.

    Raises:
        ConfigError: a count below one.
    """
    at_least_one(stages=stages, micro_batches=micro_batches, chunks=chunks)
    return (stages - 1) / (chunks * micro_batches)


def closed_form_bubble_s(schedule: Schedule, stages: int, times: PassTimes, chunks: int = 1) -> float:
    """Idle seconds of a stage, without transfer time, with at least as many micro-batches as stages.

    (p-1)(F+B+W) for GPipe and 1F1B, 1/v of that interleaved (Narayanan et al. 2021); (p-1)(F+B-W) for ZB-H1 (Qi et al.
    2023, table 2), which holds while W is at most B and at most F; for ZB-V at F = B = W the last stage's late start
    alone, (p-1)F/2, which is no bubble in the measure of spans.

    Raises:
        ConfigError: times outside the range a form holds in.
    """
    at_least_one(stages=stages, chunks=chunks)
    f, b, w = times.forward_s, times.backward_input_s, times.backward_weight_s
    if schedule is Schedule.ZB_H1:
        if w > min(f, b):
            raise ConfigError(
                f"the closed form of zb-h1 holds for backward_weight_s up to forward_s and backward_input_s, got {w}"
            )
        return (stages - 1) * (f + b - w)
    if schedule is Schedule.ZB_V:
        if not f == b == w:
            raise ConfigError("the closed form of zb-v holds for equal times only; run the schedule instead")
        return (stages - 1) * f / 2
    return (stages - 1) * (f + b + w) / chunks


def makespan_lower_bound_s(
    schedule: Schedule, *, stages: int, micro_batches: int, times: PassTimes, chunks: int = 1
) -> float:
    """Seconds that a step takes at least, without running it: for a search that discards most plans unseen.

    Ideal time plus the closed form of the bubble; for zero-bubble schedules, whose bubble depends on all times, plus the
    late start of the last stage alone.

    Raises:
        ConfigError: a count below one, or `chunks` that the schedule does not take.
    """
    at_least_one(micro_batches=micro_batches)
    part_placement(schedule, stages=stages, chunks=chunks)
    ideal_s = micro_batches * times.micro_batch_s
    if schedule in (Schedule.ZB_H1, Schedule.ZB_V):
        return ideal_s + (stages - 1) * times.forward_s / chunks
    return ideal_s + closed_form_bubble_s(schedule, stages, times, chunks)


def in_flight_micro_batches(schedule: Schedule, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Most micro-batches whose activations `stage` holds at once, in units of one whole stage.

    m for GPipe; min(p - r, m) for 1F1B on stage r; (2(p - r - 1) + (v-1)p + 1)/v interleaved, at most m, which on stage 0
    is p(1 + (p-1)/(pv)) (Korthikanti et al. 2022, section 4.2.3); p at most for ZB-H1 and ZB-V on every stage (Qi et al.
    2023, table 2).

    Raises:
        ConfigError: a count below one, or a stage that is not there.
    """
    at_least_one(stages=stages, micro_batches=micro_batches, chunks=chunks)
    if not 0 <= stage < stages:
        raise ConfigError(f"stage {stage} is not one of {stages}")
    if schedule is Schedule.GPIPE:
        return float(micro_batches)
    if schedule is Schedule.INTERLEAVED and chunks > 1:
        warm_up = 2 * (stages - stage - 1) + (chunks - 1) * stages
        return min(warm_up + 1, micro_batches * chunks) / chunks
    if schedule in (Schedule.ZB_H1, Schedule.ZB_V):
        return float(min(stages, micro_batches))
    return float(min(stages - stage, micro_batches))
