"""Progress of a fetch: a bar in a terminal, two lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int | None, str], None]


@contextmanager
def fetch_progress() -> Iterator[Report]:
    """Yield a callback (bytes done, bytes in all or None, label); nothing is shown until it is called."""
    if sys.stderr.isatty():
        with _bar() as report:
            yield report
    else:
        yield _lines()


@contextmanager
def _bar() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks = {}

        def report(done: int, total: int | None, label: str) -> None:
            if label not in tasks:
                tasks[label] = progress.add_task(_describe(label), total=total)
            progress.update(tasks[label], completed=done, total=total)

        yield report


def _lines() -> Report:
    from argosy.models.cache import format_bytes

    begun: set[str] = set()
    ended: set[str] = set()

    def report(done: int, total: int | None, label: str) -> None:
        if label not in begun:
            begun.add(label)
            size = f" ({format_bytes(total)})" if total is not None else ""
            print(f"{_describe(label)}{size} …", file=sys.stderr, flush=True)
        if total is not None and done >= total and label not in ended:
            ended.add(label)
            print(f"fetched {label}", file=sys.stderr, flush=True)

    return report


def _describe(label: str) -> str:
    return label if label.startswith("waiting") else f"fetching {label}"
