"""Progress of a simulation: how much, how fast, how many requests; a bar in a terminal, else a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argosy.sim.run import Progress

Report = Callable[["Progress"], None]
_LINE_EVERY_S = 15.0


@contextmanager
def simulation_progress() -> Iterator[Report]:
    """Yield what is to be told of progress; nothing is shown until it is called."""
    if sys.stderr.isatty():
        with _bar() as report:
            yield report
    else:
        yield _lines()


def describe(progress: Progress) -> str:
    """Such as `12 min of 30 min simulated, 154 times real time, 3,210 requests`."""
    from argosy.observe.report.figures import seconds, significant

    until = "" if progress.until_s is None else f" of {seconds(progress.until_s)}"
    if progress.until_s is not None and progress.now_s > progress.until_s:
        until = f" ({progress.num_arrived - progress.num_ended:,} requests still in flight)"
    speed = significant(progress.now_s / progress.wall_s) if progress.wall_s else "0"
    return f"{seconds(progress.now_s)}{until} simulated, {speed} times real time, {progress.num_arrived:,} requests"


@contextmanager
def _bar() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (BarColumn(bar_width=30), TextColumn("{task.description}"))
    with Bars(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bars:
        task = bars.add_task("", total=None)

        def report(progress: Progress) -> None:
            total = progress.until_s
            done = progress.now_s if total is None else min(progress.now_s, total)
            bars.update(task, description=describe(progress), total=total, completed=done)

        yield report


def _lines() -> Report:
    last_s = 0.0

    def report(progress: Progress) -> None:
        nonlocal last_s
        if progress.wall_s - last_s >= _LINE_EVERY_S:
            last_s = progress.wall_s
            print(describe(progress), file=sys.stderr, flush=True)

    return report
