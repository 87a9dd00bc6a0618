"""Calibration of this machine: a live engine under designed loads, and the step times fitted to what it did."""

from __future__ import annotations

import asyncio
import dataclasses
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from random import Random

import numpy as np

from argosy import __version__
from argosy.bench.calibration_design import Load, design, random_prompt
from argosy.bench.step_samples import composition_of, samples_of
from argosy.cost.calibration import TimedStep, fit_steps, measurements_of_steps
from argosy.cost.calibration_file import Calibration
from argosy.cost.collectives import Topology
from argosy.cost.deployment import Deployment
from argosy.cost.device import Device, Precision
from argosy.cost.efficiency import Constants, FittedRange
from argosy.cost.formats import WeightFormat, precisions_for
from argosy.cost.host import measure_host
from argosy.cost.machine_calibration import ENGINE, MeasuredModel, shape_of
from argosy.cost.measured_steps import MeasuredSteps, StepSample, attention_shares, fit_measured_steps
from argosy.cost.model_arithmetic import parameter_count
from argosy.cost.model_spec import ModelSpec
from argosy.cost.op import StepComposition
from argosy.cost.parallel import ParallelPlan
from argosy.cost.quantity import Dimension, Grade, Quantity
from argosy.cost.step_time_model import StepTimeModel
from argosy.cost.step_time_work import Array
from argosy.engine.args import EngineArgs
from argosy.engine.async_engine import AsyncEngine
from argosy.engine.build import EngineParts, build_parts, start_async_engine
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.step_recorder import Record, StepRecord
from argosy.errors import ConfigError
from argosy.planner.model_source import find_spec

OnLoad = Callable[[str, int, int], None]
"""Called with (what is measured, loads done, loads in all)."""

# No engine reaches more of its arithmetic peak than this; the fastest step measured is taken to reach it.
_BEST_EFFICIENCY = 0.9
_TORCH_DTYPES = ("float32", "bfloat16", "float16")
_PRECISIONS = ("fp32", "bf16", "fp16", "int8", "int4")


def calibrate_machine(
    args: EngineArgs, *, rounds: int, seed: int = 0, report: OnLoad | None = None
) -> tuple[Device, MeasuredModel]:
    """This machine as a device, and the step times of the model that `args` say, served as they say.

    Raises:
        ConfigError: a model of a kind that is not costed, or too little was measured.
        ArgosyError: whatever `build_parts` raises.
    """
    log = StepLog()
    parts = build_parts(args, on_record=log)
    try:
        spec, _ = find_spec(parts.info.model_path)
        host = measure_host()
    except BaseException:
        parts.step_loop.close()
        raise
    measured = measure_loads(parts, log, rounds=rounds, seed=seed, report=report)
    device = machine_device(host, measured, spec)
    return device, fit(measured, spec, device, args=args, parts=parts)


class StepLog:
    """An `on_record` that keeps the steps."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []

    def __call__(self, record: Record) -> None:
        """Keep `record` if it is a step."""
        if isinstance(record, StepRecord):
            self.steps.append(record)


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps of one load in one round."""

    load: Load
    steps: tuple[StepRecord, ...]


def measure_loads(
    parts: EngineParts, log: StepLog, *, rounds: int, seed: int = 0, report: OnLoad | None = None
) -> list[Measured]:
    """Run every load `rounds` times, in another random order each round, after a warm-up that does not count.

    Args:
        parts: built with `log` as `on_record`; nobody else drives them. They are closed at the end.

    Raises:
        ConfigError: fewer than 1 round.
        EngineUnavailable: a step failed.
    """
    if rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}")
    rng = Random(seed)  # noqa: S311, it draws prompts, it guards nothing
    measured: list[Measured] = []

    async def run() -> None:
        engine = start_async_engine(parts)
        try:
            await warm_up(engine, log, rng, report)
            for number in range(1, rounds + 1):
                measured.extend(await measure_round(engine, log, rng, f"round {number} of {rounds}", report))
        finally:
            await engine.shutdown()

    asyncio.run(run())
    return measured


async def warm_up(engine: AsyncEngine, log: StepLog, rng: Random, report: OnLoad | None = None) -> None:
    """Run some of the loads, so that nothing is done for the first time while it is measured."""
    loads = design(engine.info)
    await _run_loads(engine, log, rng.sample(loads, -(-len(loads) // 4)), rng, "warming up", report)


async def measure_round(
    engine: AsyncEngine, log: StepLog, rng: Random, label: str, report: OnLoad | None = None
) -> list[Measured]:
    """Run every load once, in an order that `rng` draws, on an engine that has nothing else to do and records to `log`."""
    loads = design(engine.info)
    return await _run_loads(engine, log, rng.sample(loads, len(loads)), rng, label, report)


async def _run_loads(
    engine: AsyncEngine, log: StepLog, loads: Sequence[Load], rng: Random, label: str, report: OnLoad | None
) -> list[Measured]:
    measured = []
    for done, load in enumerate(loads):
        if report is not None:
            report(label, done, len(loads))
        before = len(log.steps)
        await _run_load(engine, load, rng, f"{label}, {load.name}")
        measured.append(Measured(load, tuple(log.steps[before:])))
    if report is not None:
        report(label, len(loads), len(loads))
    return measured


async def _run_load(engine: AsyncEngine, load: Load, rng: Random, name: str) -> None:
    """Submit the prompts of `load` and wait for all answers."""
    width = engine.info.logits_width
    params = SamplingParams(temperature=0.0, max_tokens=load.output_tokens, ignore_eos=True)
    one_token = dataclasses.replace(params, max_tokens=1)
    later: list[asyncio.Task[None]] = []

    async def read(number: int, length: int, params: SamplingParams, coming: tuple[tuple[int, int], ...] = ()) -> None:
        stream = engine.submit(f"{name}-{number}", random_prompt(rng, length, width), params)
        heard = 0
        async for delta in stream:
            heard += len(delta.token_ids)
            while coming and heard >= coming[0][0]:
                later.append(asyncio.ensure_future(read(1000 + len(later), coming[0][1], one_token)))
                coming = coming[1:]

    first, *others = load.prompts
    await asyncio.gather(
        read(0, first, params, load.later), *(read(number, one, params) for number, one in enumerate(others, 1))
    )
    await asyncio.gather(*later)


def samples_of_loads(measured: Sequence[Measured], spec: ModelSpec) -> list[StepSample]:
    """Samples of all steps; what is held out together is a load."""
    shares = attention_shares(Deployment(spec, ParallelPlan.for_serving()))
    return [sample for one in measured for sample in samples_of(one.steps, shares, one.load.name)]


def machine_device(host: Device, measured: Sequence[Measured], spec: ModelSpec) -> Device:
    """`host` under its processor's name, with the arithmetic that the engine's own products reached where that is more.

    Quantised weights are multiplied in narrower types than the host's fp32 products, faster than its peak in them: the
    fastest step measured is taken to run at 0.9 of the peak. All types have the same peak, since how wide a product is
    computed is the engine's choice.
    """
    flops_per_token = 2.0 * parameter_count(spec)
    rates = [
        flops_per_token * sum(entry.num_tokens for entry in step.entries) / step.executor_s
        for one in measured
        for step in one.steps
    ]
    reached = float(np.quantile(rates, 0.99)) / _BEST_EFFICIENCY
    known = host.peak[Precision.FP32]
    peak = known
    if reached > known.value:
        source = "fastest steps of the calibrated engine over 0.9"
        peak = Quantity(reached, Dimension.FLOP_PER_S, source, Grade.MEASURED, known.as_of)
    return dataclasses.replace(host, aliases=(), peak={Precision(name): peak for name in _PRECISIONS})


def fit(
    measured: Sequence[Measured],
    spec: ModelSpec,
    device: Device,
    *,
    args: EngineArgs,
    parts: EngineParts,
    today: date | None = None,
) -> MeasuredModel:
    """Fit both forms of step times to what was measured.

    Args:
        device: as `machine_device`; parts: that were measured, built as `args` say.

    Raises:
        ConfigError: too little was measured.
    """
    as_of = (today or date.today()).isoformat()
    curve: MeasuredSteps = fit_measured_steps(samples_of_loads(measured, spec))
    weights = _weights(parts, args, spec)
    deployment = Deployment(spec, ParallelPlan.for_serving(), precisions_for(device, weights, Precision.FP16))
    roofline = StepTimeModel(deployment, device, Topology.of(device), Constants())
    timed = [
        (one.load.name, TimedStep(roofline, composition_of(step), step.executor_s + curve.host_step_s))
        for one in measured
        for step in one.steps
    ]
    found = fit_steps([step for _, step in timed], ENGINE)
    errors = _held_out(timed)
    calibration = Calibration(
        name=f"{device.name}, {args.model}",
        source=f"steps of argosy {__version__} on {platform.node() or 'this machine'} with {args.model}",
        as_of=as_of,
        rows=len(timed),
        configurations=len({one.load.name for one in measured}),
        devices=(device.name,),
        engines=(ENGINE,),
        values=found.values,
        at_bound=found.at_bound,
        held_out_median=float(np.median(errors)),
        held_out_mean=float(errors.mean()),
        fitted=_ranges([one.step for _, one in timed]),
    )
    return MeasuredModel(
        model=args.model,
        shape=shape_of(spec),
        executor=_executor_name(parts),
        weights=str(weights),
        kv_dtype=parts.info.kv_dtype,
        threads=str(args.threads or "default"),
        argosy=__version__,
        as_of=as_of,
        steps=curve,
        calibration=calibration,
    )


def _executor_name(parts: EngineParts) -> str:
    return "torch" if parts.info.dtype in _TORCH_DTYPES else "kernels"


def _weights(parts: EngineParts, args: EngineArgs, spec: ModelSpec) -> WeightFormat:
    """The format of the cost model that is nearest to the bits that a weight has in memory."""
    if args.weights == "int8":
        return WeightFormat.INT8_WEIGHT_ONLY
    path = Path(parts.info.model_path)
    if _executor_name(parts) == "torch" or not path.is_file():
        return WeightFormat.BASE
    bits = 8 * path.stat().st_size / parameter_count(spec)
    return WeightFormat.INT4_WEIGHT_ONLY if bits < 6 else WeightFormat.INT8_WEIGHT_ONLY if bits < 12 else WeightFormat.BASE


def _held_out(timed: Sequence[tuple[str, TimedStep]]) -> Array:
    """Relative errors of all steps, predicted by a fit to every second load, which are not theirs."""
    half = {name: number % 2 for number, name in enumerate(dict.fromkeys(name for name, _ in timed))}
    errors = []
    for left_out in (0, 1):
        values = fit_steps([step for name, step in timed if half[name] != left_out], ENGINE).values
        (rows,) = measurements_of_steps([step for name, step in timed if half[name] == left_out], ENGINE)
        errors.append(np.abs(np.expm1(rows.log_errors(values))))
    return np.concatenate(errors)


def _ranges(steps: Sequence[StepComposition]) -> dict[str, FittedRange]:
    tokens = [step.tokens for step in steps]
    contexts = [past + new for step in steps for _, new, past in step.groups]
    return {
        "tokens": FittedRange(float(min(tokens)), float(max(tokens))),
        "context": FittedRange(float(min(contexts)), float(max(contexts))),
    }
