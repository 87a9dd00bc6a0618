"""Progress of a measurement: a bar in a terminal, a line now and then elsewhere. On stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_LINE_EVERY_S = 15.0


class Report(Protocol):
    """Called as work goes on."""

    def __call__(self, label: str, done: int, total: int) -> None:
        """So much of `total` is done of what `label` names; another label is another bar."""
        ...


@contextmanager
def progress() -> Iterator[Report]:
    """Yield a `Report`; nothing is shown until it is called."""
    if sys.stderr.isatty():
        with _bars() as report:
            yield report
    else:
        yield _lines()


@contextmanager
def _bars() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Redrawing takes time from what is measured; twice a second is enough to see that it goes on.
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as bars:
        tasks = {}

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total)
            bars.update(tasks[label], completed=done, total=total)

        yield report


def _lines() -> Report:
    last_s: dict[str, float] = {}

    def report(label: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if label not in last_s or done >= total or now_s - last_s[label] >= _LINE_EVERY_S:
            last_s[label] = now_s
            print(f"{label}: {done} of {total}", file=sys.stderr, flush=True)

    return report
