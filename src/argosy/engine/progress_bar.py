"""A progress bar for offline generation."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressBar:
    """Counts finished requests on stderr while the block runs; does nothing unless `shown`."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._progress: Progress | None = None
        if shown:
            columns = (TextColumn("generating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._task = self._progress.add_task("", total=total)

    def advance_to(self, num_finished: int) -> None:
        """Show that so many requests have ended."""
        if self._progress is not None:
            self._progress.update(self._task, completed=num_finished)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
