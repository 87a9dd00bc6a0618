"""A journal of usage records on the local disk: what has been recorded survives the process that recorded it.

    folder/  3fa1c2d4-000001.ndjson   a segment: one record per line, locked (flock) by the process that writes it
             3fa1c2d4-000002.ndjson   the one being written

A segment is deleted once the database has all its records. One whose owner is gone is read again by whoever finds it;
records that were committed before the owner died are recognised by their id. A line is written by one write(2), so it is
there when the process is killed; a power cut may take the last seconds. A file with a line that cannot be read is kept
under another ending.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from argosy.errors import ConfigError
from argosy.fleet.gateway.usage import UsageRecord, record_from_line
from argosy.observe.logs import log_event

logger = logging.getLogger("argosy.gateway.usage")
SUFFIX = ".ndjson"
DAMAGED = ".damaged"


@dataclass(slots=True, eq=False)
class Segment:
    """One file.

    Attributes:
        num_open: records that the database does not have yet; num_spilled: those that are kept nowhere but here.
        is_closed: nothing is added to it; is_ended: the database has all of it, and the file is gone.
    """

    path: Path
    descriptor: int
    size_bytes: int = 0
    num_open: int = 0
    num_spilled: int = 0
    is_closed: bool = False
    is_ended: bool = False


class UsageJournal:
    """The segments of one process. Thread-safe.

    Attributes:
        process_id: unique to this run; begins the names of its segments and of its requests.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = 4 * 2**20, max_bytes: int = 2**30) -> None:
        """Make `folder` if it is not there. Above `max_bytes` in all of one's segments, nothing more is written.

        Raises:
            ConfigError: the folder cannot be made or written to.
        """
        self.folder = folder
        self.process_id = secrets.token_hex(8)
        self._segment_bytes, self._max_bytes = segment_bytes, max_bytes
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        self._total_bytes = 0
        self._num_made = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the usage journal {folder} cannot be made: {error.strerror}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"the usage journal {folder} cannot be written to; give it to the user of the gateway")

    def append(self, record: UsageRecord) -> Segment:
        """Write `record` down; returns the segment that holds it.

        Raises:
            OSError: the disk is full or broken, or the journal has reached its bound; nothing was written.
        """
        line = record.line()
        with self._lock:
            if self._total_bytes + len(line) > self._max_bytes:
                raise OSError(f"the usage journal has reached its bound of {self._max_bytes} bytes")
            segment = self._current()
            written = os.write(segment.descriptor, line)
            if written != len(line):
                os.ftruncate(segment.descriptor, segment.size_bytes)
                raise OSError("the disk of the usage journal is full")
            segment.size_bytes += len(line)
            self._total_bytes += len(line)
            segment.num_open += 1
            return segment

    def spill(self, segment: Segment) -> None:
        """One more record of `segment` is kept nowhere else, and is to be read back from it."""
        with self._lock:
            segment.num_spilled += 1

    def committed(self, segment: Segment, num_records: int) -> None:
        """The database has `num_records` more of a segment's; the last one ends it."""
        with self._lock:
            if segment.is_ended:
                return
            segment.num_open -= num_records
            assert segment.num_open >= 0, "more records were committed than written"
            if segment.num_open == 0:
                self._end(segment)

    def take_spilled(self) -> tuple[Segment, list[UsageRecord]] | None:
        """The oldest segment with spilled records, closed, and all that is in it; None if there is none."""
        with self._lock:
            segment = next((segment for segment in self._segments if segment.num_spilled), None)
            if segment is None:
                return None
            segment.is_closed = True
        return segment, list(_records(segment.path))

    def finish(self, segment: Segment) -> None:
        """The database has every record of a closed segment."""
        with self._lock:
            if not segment.is_ended:
                self._end(segment)

    def orphans(self) -> Iterator[tuple[Segment, list[UsageRecord]]]:
        """Segments whose owner is gone, each locked while the caller handles it; give it to `delete` afterwards."""
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            segment = self._lock_orphan(path)
            if segment is not None:
                try:
                    yield segment, list(_records(path))
                finally:
                    os.close(segment.descriptor)

    def delete(self, orphan: Segment) -> None:
        """The database has every record of an orphan."""
        orphan.path.unlink(missing_ok=True)

    @property
    def num_open(self) -> int:
        """Records written that the database does not have yet."""
        with self._lock:
            return sum(segment.num_open for segment in self._segments)

    def close(self) -> None:
        """Leave what is not in the database to the next process. Idempotent."""
        with self._lock:
            for segment in self._segments:
                if segment.num_open == 0:
                    segment.path.unlink(missing_ok=True)
                os.close(segment.descriptor)
            self._segments.clear()

    def _current(self) -> Segment:
        if self._segments:
            last = self._segments[-1]
            if not last.is_closed and last.size_bytes < self._segment_bytes:
                return last
            last.is_closed = True
        self._num_made += 1
        path = self.folder / f"{self.process_id}-{self._num_made:06d}{SUFFIX}"
        draft = path.with_suffix(".new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(path)  # locked before it has the name under which others look for orphans
        self._segments.append(Segment(path, descriptor))
        return self._segments[-1]

    def _end(self, segment: Segment) -> None:
        self._total_bytes -= segment.size_bytes
        segment.num_open = segment.num_spilled = 0
        if segment.is_closed:
            segment.is_ended = True
            self._segments.remove(segment)
            segment.path.unlink(missing_ok=True)
            os.close(segment.descriptor)
        else:
            os.ftruncate(segment.descriptor, 0)
            segment.size_bytes = 0

    def _lock_orphan(self, path: Path) -> Segment | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink > 0:  # else its owner has just ended it
                return Segment(path, descriptor, is_closed=True)
        except BlockingIOError:
            pass
        os.close(descriptor)
        return None


def _records(path: Path) -> Iterator[UsageRecord]:
    """The records of a file. A last line without its end was never acknowledged; any other bad line is told of."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield record_from_line(line)
            except ValueError:
                log_event(logger, logging.ERROR, "usage journal: line cannot be read", file=path.name, line=number)
                with contextlib.suppress(FileExistsError):
                    os.link(path, path.with_suffix(DAMAGED))
