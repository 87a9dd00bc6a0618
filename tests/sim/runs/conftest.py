"""Small fleets from configurations, run to their end."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from argosy.settings.yaml_file import parse_yaml
from argosy.sim.assembly import Assembly, Sinks, assemble, make_blueprints
from argosy.sim.config.simulation import LoadedSimulation, parse_simulation
from argosy.sim.perfetto import PerfettoTrace
from argosy.sim.run import Progress, SimulationRun, run
from argosy.sim.run_log import RunLog

FLEET = """
model: llama-3.1-8b
replicas:
  - name: a
    count: {count}
    device: l4
    engine: {{num_blocks: 400, max_model_len: 2048, max_num_seqs: 16, max_num_batched_tokens: 512}}
workload:
  duration_s: {duration_s}
  sources:
    - name: u
      arrivals: {{kind: poisson, rate_per_s: {rate}}}
      requests:
        system_prompts: {{count: 3, tokens: 64}}
        user_tokens: {{kind: uniform, low: 20, high: 200}}
        output_tokens: {{kind: uniform, low: 1, high: 40}}
"""


@dataclass
class Ran:
    """A run with everything it wrote."""

    loaded: LoadedSimulation
    assembly: Assembly
    run: SimulationRun
    log: bytes
    trace: bytes
    progress: list[Progress]


def small_fleet(**fields: float) -> str:
    """The configuration of the small fleet."""
    return FLEET.format(**{"count": 2, "duration_s": 20, "rate": 3, **fields})


def simulate(
    more: str = "", *, text: str = "", folder: Path = Path(), steps: bool = True, max_events: int = 100_000, **fields
):
    """Run the small fleet with the settings of `more` appended, or all of `text`."""
    full = dedent(text) if text else small_fleet(**fields) + dedent(more)
    loaded = parse_simulation(parse_yaml(full, "fleet.yaml"), folder)
    blueprints = make_blueprints(loaded.config)
    log, trace = io.BytesIO(), io.BytesIO()
    perfetto = PerfettoTrace(trace, max_events=max_events)
    sinks = Sinks(RunLog(log, seed=loaded.config.seed, config=loaded.file.values), steps, perfetto)
    assembly = assemble(loaded.config, blueprints, loaded.folder, sinks=sinks)
    progress: list[Progress] = []
    outcome = run(assembly, progress.append)
    perfetto.close()
    assembly.fleet.check_invariants()
    return Ran(loaded, assembly, outcome, log.getvalue(), trace.getvalue(), progress)


@pytest.fixture(scope="session")
def simulated() -> Callable[..., Ran]:
    """Runs small fleets."""
    return simulate


@pytest.fixture(scope="session")
def fleet_text() -> Callable[..., str]:
    """The configuration of the small fleet, to be changed."""
    return small_fleet
