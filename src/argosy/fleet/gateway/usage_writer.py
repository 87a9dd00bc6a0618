"""The one writer of usage: a bounded queue from the request path, batches into the database, a journal beneath both."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from argosy.errors import ConfigError, StoreUnavailable
from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.prices import PriceTable
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.usage import UsageRecord, usage_of
from argosy.fleet.gateway.usage_commit import commit_usage
from argosy.fleet.gateway.usage_journal import Segment, UsageJournal
from argosy.observe.logs import log_event

logger = logging.getLogger("argosy.gateway.usage")


@dataclass(frozen=True, slots=True)
class UsageConfig:
    """How usage gets into the database.

    Attributes:
        max_queued: records in memory; more wait in the journal alone.
        max_batch: records per transaction.
        flush_interval_s: how late a record may be in the database while that answers.
        retry_s: between attempts while it does not.
        orphans_interval_s: how often the journals of processes that are gone are looked for.
    """

    max_queued: int = 10_000
    max_batch: int = 500
    flush_interval_s: float = 0.5
    retry_s: float = 1.0
    orphans_interval_s: float = 30.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if not 1 <= self.max_batch <= self.max_queued:
            raise ConfigError(f"max_batch of usage must be from 1 to max_queued, got {self.max_batch}, {self.max_queued}")
        for name in ("flush_interval_s", "retry_s", "orphans_interval_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} of usage must be above 0, got {getattr(self, name)}")


class UsageWriter:
    """Takes records from the request path and brings each to the database exactly once. `start`, then `stop`.

    A record is in the journal when `record` returns. What cannot be brought, because the database is away or this process
    is killed, is brought later, by this process or by the next one that uses the folder.

    Attributes:
        num_recorded, num_stored: records taken, and those that were new to the database.
        num_lost: records that neither disk nor memory had room for.
        is_store_lost, is_journal_lost: whether the last attempt to write to it failed. Transitions are logged.
    """

    def __init__(self, store: Store, journal: UsageJournal, config: UsageConfig | None = None) -> None:
        """`store` and `journal` are closed by their owner, after `stop`."""
        self.config = config or UsageConfig()
        self.num_recorded = self.num_stored = self.num_lost = 0
        self.is_store_lost = self.is_journal_lost = False
        self._store, self._journal = store, journal
        self._lock = threading.Lock()
        self._queue: deque[tuple[UsageRecord, Segment | None]] = deque()
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="argosy-usage", daemon=True)
        self._next_orphans_s = 0.0

    def start(self) -> None:
        """Begin to write, first what earlier processes have left."""
        self._thread.start()

    def record(self, record: UsageRecord) -> None:
        """Take `record` over. Any thread; waits for the local disk's cache and for nothing else."""
        self.num_recorded += 1
        segment = self._append(record)
        with self._lock:
            if len(self._queue) < self.config.max_queued:
                self._queue.append((record, segment))
            elif segment is not None:
                self._journal.spill(segment)
            else:
                self.num_lost += 1
                log_event(logger, logging.ERROR, "usage lost: no room on disk or in memory", request=record.request_id)
            is_batch = len(self._queue) == self.config.max_batch
        if is_batch:
            self._wake.set()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Write what is queued, for `timeout_s` at most; returns whether all is stored. The journal keeps the rest."""
        self._is_stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._store.interrupt(self._thread.ident)
                self._thread.join(1.0)
        return self.num_open == 0

    @property
    def num_open(self) -> int:
        """Records that are not in the database yet, of this process."""
        with self._lock:
            in_memory_only = sum(segment is None for _, segment in self._queue)
        return in_memory_only + self._journal.num_open

    def _append(self, record: UsageRecord) -> Segment | None:
        try:
            segment = self._journal.append(record)
        except OSError as error:
            if not self.is_journal_lost:
                self.is_journal_lost = True
                log_event(logger, logging.ERROR, "usage journal lost", error=error.strerror or str(error))
            return None
        if self.is_journal_lost:
            self.is_journal_lost = False
            log_event(logger, logging.INFO, "usage journal is written again")
        return segment

    def _run(self) -> None:
        while True:
            is_last = self._is_stopping
            try:
                self._bring_all()
                wait_s = self.config.flush_interval_s
            except StoreUnavailable as error:
                wait_s = self.config.retry_s
                if not self.is_store_lost:
                    self.is_store_lost = True
                    log_event(logger, logging.ERROR, "usage waits for the database", error=error.message)
            except Exception:
                wait_s = self.config.retry_s
                logger.exception("usage could not be written and stays queued")
            if is_last:
                return
            if not self._is_stopping:
                self._pause(wait_s)

    def _pause(self, wait_s: float) -> None:
        """Wait for a full batch or the end; while the database is away, full batches end no pause."""
        if self.is_store_lost:
            until_s = time.monotonic() + wait_s
            while not self._is_stopping and time.monotonic() < until_s:
                time.sleep(min(0.05, wait_s))
        else:
            self._wake.wait(wait_s)
        self._wake.clear()

    def _bring_all(self) -> None:
        """Queue, spilled segments, orphans. Raises `StoreUnavailable`, and what is not stored stays where it was."""
        while self._bring_batch():
            pass
        while (spilled := self._journal.take_spilled()) is not None:
            segment, records = spilled
            self._store_in_batches(records)
            self._journal.finish(segment)
        if time.monotonic() >= self._next_orphans_s:
            for segment, records in self._journal.orphans():
                self._store_in_batches(records)
                self._journal.delete(segment)
                log_event(logger, logging.INFO, "usage of an earlier process stored", records=len(records))
            self._next_orphans_s = time.monotonic() + self.config.orphans_interval_s

    def _bring_batch(self) -> bool:
        with self._lock:
            batch = [self._queue[i] for i in range(min(self.config.max_batch, len(self._queue)))]
        if not batch:
            return False
        self._commit([record for record, _ in batch])
        with self._lock:
            for _ in batch:
                self._queue.popleft()
        for segment, num_records in Counter(segment for _, segment in batch if segment is not None).items():
            self._journal.committed(segment, num_records)
        return True

    def _store_in_batches(self, records: list[UsageRecord]) -> None:
        for start in range(0, len(records), self.config.max_batch):
            self._commit(records[start : start + self.config.max_batch])

    def _commit(self, records: list[UsageRecord]) -> None:
        self.num_stored += commit_usage(self._store, records)
        if self.is_store_lost:
            self.is_store_lost = False
            log_event(logger, logging.INFO, "usage is written to the database again")


class StoreUsageSink:
    """The pipeline's `UsageSink`: turns finished requests into records, priced, and hands them to the writer."""

    def __init__(
        self,
        writer: UsageWriter,
        prices: PriceTable,
        *,
        process_id: str,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`process_id` is the journal's. `prices` may be replaced while running."""
        self.prices = prices
        self._writer, self._process_id, self._wall_clock = writer, process_id, wall_clock

    def record(self, exchange: Exchange) -> None:
        """Record a request that has ended; one for which no backend was called leaves no record."""
        record = usage_of(exchange, self.prices, process_id=self._process_id, now_s=self._wall_clock())
        if record is not None:
            self._writer.record(record)
