"""A scheduler that tells of everything it was asked and everything it decided, with times, so that a run can be replayed.

A record is a named tuple of ints, floats, strings and tuples. A live engine's records and those of a simulation that replays
it are made here alike; with the times taken out they must be equal.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, NamedTuple, TextIO
from zlib import crc32

from argosy.engine.core.clock import Clock
from argosy.engine.core.coasting import KnownOutputs
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.events import OutputEvent
from argosy.engine.core.kv_events import KVListener
from argosy.engine.core.plan import StepPlan, StepResult
from argosy.engine.core.request import FinishReason, Request, Sequence
from argosy.engine.core.scheduler import Scheduler
from argosy.errors import ConfigError

FORMAT, FORMAT_VERSION = "argosy-engine-recording", 1


class SubmitRecord(NamedTuple):
    """A request that the scheduler took.

    Attributes:
        at_s: when; arrival_s: the request's own, both on the engine's clock.
        sequence_ids: of those of its sequences that have something to compute.
        max_tokens: None for the rest of the context.
        owes_prompt_logprobs: whether logprobs of the prompt were asked for, which keeps it from reading the prefix cache.
    """

    at_s: float
    request_id: str
    arrival_s: float
    sequence_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    max_tokens: int | None
    priority: int
    cache_salt: str
    adapter_id: str
    owes_prompt_logprobs: bool


class AbortRecord(NamedTuple):
    """A request was ended from outside at `at_s`, between two steps."""

    at_s: float
    request_id: str


class FinishRecord(NamedTuple):
    """One sequence was ended from outside at `at_s`, between two steps, as by a stop string."""

    at_s: float
    sequence_id: int


class EntryRecord(NamedTuple):
    """One sequence's part of a step; see `ScheduledSequence`. `table_crc32` is of the block ids as 64-bit integers."""

    sequence_id: int
    num_tokens: int
    start: int
    samples: bool
    num_output_tokens: int
    num_blocks: int
    table_crc32: int


class StepRecord(NamedTuple):
    """One step: what was decided, what came of it, and how long it took.

    Attributes:
        start_s, end_s: when it was planned and committed, on the engine's clock.
        executor_s: that the executor says it took.
        token_ids: sampled, for each entry.
        num_running, num_waiting, num_held, num_cached: sequences and KV blocks after the commit.
        num_preemptions, prefix_queries_tokens, prefix_hits_tokens: counted from the engine's start.
    """

    step: int
    start_s: float
    end_s: float
    executor_s: float
    entries: tuple[EntryRecord, ...]
    new: tuple[int, ...]
    finished: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]
    token_ids: tuple[tuple[int, ...], ...]
    errors: tuple[int, ...]
    num_running: int
    num_waiting: int
    num_held: int
    num_cached: int
    num_preemptions: int
    prefix_queries_tokens: int
    prefix_hits_tokens: int

    @property
    def decisions(self) -> tuple[Any, ...]:
        """Everything that does not depend on times or on the content of answers."""
        return (self.step, *self[4:8], self.errors, *self[10:])


Record = SubmitRecord | AbortRecord | FinishRecord | StepRecord
OnRecord = Callable[[Record], None]
_KINDS: dict[str, type[Record]] = {
    "submit": SubmitRecord,
    "abort": AbortRecord,
    "finish": FinishRecord,
    "step": StepRecord,
}


class RecordingScheduler(Scheduler):
    """A `Scheduler` that calls `on_record` after each thing that happened to it; it decides nothing else than its base."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        on_record: OnRecord,
        clock: Clock,
        kv_listener: KVListener | None = None,
        known_outputs: KnownOutputs | None = None,
    ) -> None:
        """`clock` is the one whose times `schedule` and `commit` are called with."""
        super().__init__(config, kv_listener=kv_listener, known_outputs=known_outputs)
        self._on_record = on_record
        self._clock = clock
        self._start_s = 0.0
        # Block tables are replaced, never edited: by sequence, the last one seen and its checksum.
        self._tables: dict[int, tuple[tuple[int, ...], int]] = {}

    def submit(self, request: Request) -> tuple[Sequence, ...]:
        """As `Scheduler.submit`."""
        sequences = super().submit(request)
        params = request.params
        alive = tuple(s.sequence_id for s in sequences if s.finish_reason is None)
        self._on_record(
            SubmitRecord(
                self._clock.now_s(),
                request.request_id,
                request.arrival_s,
                alive,
                request.prompt_token_ids,
                params.max_tokens,
                request.priority,
                request.cache_salt,
                request.adapter_id,
                params.prompt_logprobs is not None,
            )
        )
        return sequences

    def schedule(self, now_s: float) -> StepPlan | None:
        """As `Scheduler.schedule`."""
        self._start_s = now_s
        return super().schedule(now_s)

    def commit(self, plan: StepPlan, result: StepResult, now_s: float) -> list[OutputEvent]:
        """As `Scheduler.commit`."""
        events = super().commit(plan, result, now_s)
        kv = self.kv
        self._on_record(
            StepRecord(
                plan.step,
                self._start_s,
                now_s,
                result.duration_s,
                tuple(
                    [
                        EntryRecord(s.sequence_id, len(s.token_ids), s.start, s.sample, s.num_output_tokens, *self._table(s))
                        for s in plan.sequences
                    ]
                ),
                tuple([new.sequence_id for new in plan.new]),
                plan.finished,
                tuple([(copy.source, copy.destination) for copy in plan.copies]),
                tuple([one.token_ids for one in result.results]),
                tuple([one.sequence_id for one in result.results if one.error]),
                self.num_running,
                self.num_waiting,
                kv.num_held,
                kv.num_cached,
                self.num_preemptions,
                self.prefix_queries_tokens,
                self.prefix_hits_tokens,
            )
        )
        for sequence_id in plan.finished:
            self._tables.pop(sequence_id, None)
        return events

    def finish(self, sequence_id: int, reason: FinishReason, stop_reason: int | str | None) -> None:
        """As `Scheduler.finish`."""
        super().finish(sequence_id, reason, stop_reason)
        self._on_record(FinishRecord(self._clock.now_s(), sequence_id))

    def abort(self, request_id: str) -> list[OutputEvent]:
        """As `Scheduler.abort`."""
        events = super().abort(request_id)
        if events:
            self._on_record(AbortRecord(self._clock.now_s(), request_id))
        return events

    def _table(self, scheduled: Any) -> tuple[int, int]:
        """(blocks, checksum) of a scheduled sequence's block table."""
        table = scheduled.block_table
        known = self._tables.get(scheduled.sequence_id)
        if known is None or known[0] is not table:
            known = self._tables[scheduled.sequence_id] = (table, crc32(array("q", table).tobytes()))
        return len(table), known[1]


class RecordWriter:
    """An `OnRecord` that writes NDJSON to a text stream of the caller's, and stops at `max_records`.

    The first line names the format and the scheduler's settings. A recording that has stopped says so in its last line, and
    `read_records` refuses it: a run of which a part is missing cannot be replayed.
    """

    def __init__(self, stream: TextIO, config: SchedulerConfig, *, max_records: int = 1_000_000) -> None:
        """Write the header. Raises `ConfigError` for a limit below 1."""
        if max_records < 1:
            raise ConfigError(f"max_records must be at least 1, got {max_records}")
        self._write = stream.write
        self._left = max_records
        self._line({"kind": "header", "format": FORMAT, "version": FORMAT_VERSION, "scheduler": asdict(config)})

    def __call__(self, record: Record) -> None:
        """Write `record`, unless the limit was reached."""
        if self._left <= 0:
            return
        self._left -= 1
        kind = next(name for name, cls in _KINDS.items() if isinstance(record, cls))
        self._line({"kind": kind, "values": record})
        if self._left == 0:
            self._line({"kind": "limit"})

    def _line(self, value: dict[str, Any]) -> None:
        self._write(json.dumps(value, separators=(",", ":")) + "\n")


def read_records(lines: Iterable[str]) -> tuple[SchedulerConfig, list[Record]]:
    """What a `RecordWriter` wrote.

    Raises:
        ConfigError: not such a recording, or one that was cut short; names the line.
    """
    config: SchedulerConfig | None = None
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            kind = value["kind"]
            if kind == "limit":
                raise ConfigError(f"line {number}: the recording stopped at its limit; record fewer requests")
            if kind == "header":
                if (value["format"], value["version"]) != (FORMAT, FORMAT_VERSION):
                    raise ConfigError(
                        f"line {number}: {value['format']} {value['version']} is not {FORMAT} {FORMAT_VERSION}"
                    )
                config = SchedulerConfig(**value["scheduler"])
            else:
                records.append(_record(_KINDS[kind], value["values"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"line {number} of the recording cannot be read: {error!r}") from None
    if config is None:
        raise ConfigError("the recording has no header line")
    return config, records


def _record(cls: type[Record], values: Any) -> Record:
    if not isinstance(values, list) or len(values) != len(cls._fields):
        raise ValueError(f"{cls.__name__} has {len(cls._fields)} values")
    plain = [_tuples(value) for value in values]
    if cls is StepRecord:
        entries = StepRecord._fields.index("entries")
        plain[entries] = tuple(EntryRecord(*entry) for entry in plain[entries])
    return cls(*plain)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
