"""Progress of a fetch: a bar in a terminal, two lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from argosy.engine.args import EngineArgs
from argosy.models.cache import Progress, format_bytes
from argosy.models.resolve import ResolvedModel, resolve


def fetch_model(args: EngineArgs) -> ResolvedModel:
    """Find the engine's model, fetching it if need be: before torch is imported, so that a mistake is told at once.

    Raises what `resolve` raises.
    """
    with fetch_progress() as report:
        return resolve(args.model, cache_dir=args.cache_dir, offline=args.offline, progress=report)


@contextmanager
def fetch_progress() -> Iterator[Progress]:
    """Yield a callback (bytes done, bytes in all or None, label); nothing is shown until it is called."""
    if sys.stderr.isatty():
        with _bar() as report:
            yield report
    else:
        yield _lines()


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def report(done: int, total: int | None, label: str) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(_describe(label), total=total)
            bars.update(tasks[label], completed=done, total=total)

        yield report


def _lines() -> Progress:
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
