"""`argosy simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from argosy.cli.terminal import print_json
from argosy.errors import ConfigError

if TYPE_CHECKING:
    from argosy.sim.blueprint import Blueprint
    from argosy.sim.config.simulation import LoadedSimulation
    from argosy.sim.run import SimulationRun

EPILOG = """\
\b
Examples:
  argosy simulate --example single-70b > fleet.yaml
  argosy simulate fleet.yaml                     figures in the terminal
  argosy simulate fleet.yaml -o out              records, trace for Perfetto and an HTML report as well
  argosy simulate fleet.yaml --seed 1 --json     another seed, figures for a script
\b
Example configurations: single-70b (one replica), prefix-fleet (eight replicas, shared prefixes), autoscaling-day,
disaggregated (prefill and decode pools), failures.
"""

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="YAML file with fleet and workload.", show_default=False)
]
Example = Annotated[
    str | None,
    typer.Option("--example", help="Print an example configuration and exit.", metavar="NAME", show_default=False),
]
Seed = Annotated[int | None, typer.Option("--seed", help="In place of the configuration's seed.", show_default=False)]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Folder for records, trace, summary and report.", metavar="DIR", show_default=False),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the results of an earlier run in DIR.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a script instead.")]


def simulate(
    config: ConfigFile = None,
    example: Example = None,
    seed: Seed = None,
    output: Output = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a fleet under a workload.

    The engine's own scheduler and the fleet's own router run on a virtual clock; time comes from the cost model.
    """
    if example is not None:
        if config is not None:
            raise ConfigError("--example prints a configuration; leave CONFIG out")
        from argosy.sim.examples import example_text

        typer.echo(example_text(example), nl=False)
        return
    if config is None:
        raise ConfigError("CONFIG is needed; 'argosy simulate --example single-70b' prints one to begin with")
    if overwrite and output is None:
        raise ConfigError("--overwrite needs -o DIR")
    loaded = _load(config, seed)
    run, blueprints, files = _run(loaded, output, overwrite=overwrite)
    if as_json:
        from argosy.sim.summary import summary

        print_json(summary(run))
        return
    from argosy.cli.simulate_tables import show_run

    show_run(run, loaded.config, blueprints, files)


def _load(path: Path, seed: int | None) -> LoadedSimulation:
    import dataclasses

    from argosy.sim.config.simulation import load_simulation

    loaded = load_simulation(path)
    if seed is None:
        return loaded
    return dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, seed=seed))


def _run(
    loaded: LoadedSimulation, output: Path | None, *, overwrite: bool
) -> tuple[SimulationRun, dict[str, Blueprint], list[Path]]:
    """Run it, with its files if a folder is named. Faults of the configuration get their line."""
    from argosy.cli.simulate_progress import simulation_progress
    from argosy.planner.model_source import find_spec
    from argosy.sim.assembly import Sinks, assemble, make_blueprints
    from argosy.sim.output_folder import OutputFolder
    from argosy.sim.run import run

    def simulated(sinks: Sinks | None) -> SimulationRun:
        assembly = assemble(loaded.config, blueprints, loaded.folder, sinks=sinks)
        with simulation_progress() as report:
            return run(assembly, report)

    try:
        blueprints = make_blueprints(loaded.config, lambda name: find_spec(name)[0])
        if output is None:
            return simulated(None), blueprints, []
        folder = OutputFolder(output, loaded, overwrite=overwrite)
        with folder.sinks() as sinks:
            outcome = simulated(sinks)
        return outcome, blueprints, folder.finish(outcome, blueprints)
    except ConfigError as error:
        raise loaded.file.located(error) if error.param else error from None
