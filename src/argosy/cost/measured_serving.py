"""Measured rows as measurements to calibrate on: possible ones, by configuration, with the steps that each stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from argosy.cost.calibration import Measurements
from argosy.cost.collectives import Topology
from argosy.cost.efficiency import Constants
from argosy.cost.measured_layout import Configuration, configuration_of
from argosy.cost.measured_rows import MeasuredRow
from argosy.cost.physical_check import ServedLatency, check_possible
from argosy.cost.serving_engines import find_engine
from argosy.cost.serving_memory import ServingMemory, serving_memory
from argosy.cost.serving_time import ClosedLoop, ServingEstimate, closed_loops, steady_steps
from argosy.cost.step_time_model import StepTimeModel
from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that is not used, and why."""

    row: MeasuredRow
    reason: str


@dataclass(frozen=True, slots=True)
class MeasuredConfiguration:
    """One configuration with all its rows."""

    configuration: Configuration
    rows: tuple[MeasuredRow, ...]

    @property
    def loads(self) -> list[ClosedLoop]:
        """What the clients did in each row."""
        return [ClosedLoop(row.input_tokens, row.output_tokens, row.concurrency or 1) for row in self.rows]

    def memory(self) -> ServingMemory:
        """Memory as the engine uses it."""
        engine, configuration = find_engine(self.configuration.engine), self.configuration
        return serving_memory(
            configuration.deployment, configuration.device, step_tokens=engine.step_tokens, constants=engine.memory
        )

    def model(self, constants: Constants) -> StepTimeModel:
        """Step times under `constants`."""
        device = self.configuration.device
        return StepTimeModel(self.configuration.deployment, device, Topology.of(device), constants)

    def estimates(self, constants: Constants) -> list[ServingEstimate]:
        """What the model says of each row."""
        engine = find_engine(self.configuration.engine)
        return closed_loops(self.model(constants), self.loads, step_tokens=engine.step_tokens, memory=self.memory())

    def measurements(self) -> Measurements:
        """TPOT of each row, to be fitted."""
        engine = find_engine(self.configuration.engine)
        steps = steady_steps(self.model(Constants()), self.loads, step_tokens=engine.step_tokens, memory=self.memory())
        return Measurements(self.configuration, engine.name, steps, np.array([row.tpot_s for row in self.rows]))


def by_configuration(rows: Sequence[MeasuredRow]) -> tuple[list[MeasuredConfiguration], list[Refused]]:
    """Possible aggregated rows by configuration, and those refused: not laid out as recorded, beyond physics or memory."""
    kept: dict[Configuration, list[MeasuredRow]] = {}
    refused = []
    for row in rows:
        try:
            configuration = configuration_of(row)
            _check(row, configuration)
        except ConfigError as error:
            refused.append(Refused(row, str(error)))
        else:
            kept.setdefault(configuration, []).append(row)
    return [MeasuredConfiguration(configuration, tuple(of)) for configuration, of in kept.items()], refused


def _check(row: MeasuredRow, configuration: Configuration) -> None:
    """Raise `ConfigError` naming the line of a row that is impossible, or of which the model's memory holds no request."""
    latency = ServedLatency(row.input_tokens, row.output_tokens, row.concurrency or 1, row.ttft_s, row.tpot_s)
    measured = MeasuredConfiguration(configuration, (row,))
    try:
        check_possible(latency, configuration.deployment, configuration.device)
        measured.memory().require(1, row.input_tokens + row.output_tokens)
    except ConfigError as error:
        raise ConfigError(f"line {row.line}: {error}") from None
