from __future__ import annotations

import io
from array import array
from zlib import crc32

import pytest

from argosy.engine.core.clock import ManualClock
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.plan import SequenceResult, StepPlan, StepResult
from argosy.engine.core.request import FinishReason, Request
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.step_recorder import (
    AbortRecord,
    EntryRecord,
    FinishRecord,
    Record,
    RecordingScheduler,
    RecordWriter,
    StepRecord,
    SubmitRecord,
)
from argosy.errors import ConfigError, InvalidRequest

CONFIG = SchedulerConfig(num_blocks=8, block_size=4, max_model_len=32, max_num_seqs=2, max_num_batched_tokens=8)


def request(name: str, length: int, **params: int) -> Request:
    return Request(name, tuple(range(length)), SamplingParams(**params), arrival_s=1.5, seed=0, priority=2, cache_salt="s")


def step(scheduler: RecordingScheduler, clock: ManualClock, token: int = 9, *, error: str = "") -> StepPlan:
    plan = scheduler.schedule(clock.now_s())
    clock.advance(0.5)
    results = tuple(
        SequenceResult(s.sequence_id, (token,) if s.sample and not error else (), (), (), error) for s in plan.sequences
    )
    scheduler.commit(plan, StepResult(plan.step, results, 0.25), clock.now_s())
    return plan


@pytest.fixture
def recorded() -> tuple[RecordingScheduler, ManualClock, list[Record]]:
    records: list[Record] = []
    clock = ManualClock()
    clock.advance(2.0)
    return RecordingScheduler(CONFIG, on_record=records.append, clock=clock), clock, records


def test_everything_asked_and_decided_is_told(recorded):
    scheduler, clock, records = recorded
    scheduler.submit(request("a", 10, max_tokens=3, prompt_logprobs=0))
    assert records == [SubmitRecord(2.0, "a", 1.5, (0,), tuple(range(10)), 3, 2, "s", "", True)]
    plan = scheduler.schedule(clock.now_s())
    clock.advance(0.5)
    (entry,) = plan.sequences
    assert entry.prompt_logprobs_from == 1
    scheduler.abort("a")
    assert records[1] == AbortRecord(2.5, "a")
    scheduler.commit(plan, StepResult(plan.step, (SequenceResult(0, (), (), (), ""),), 0.25), clock.now_s())
    checksum = crc32(array("q", entry.block_table).tobytes())
    told = records[2]
    assert told[:6] == (1, 2.0, 2.5, 0.25, (EntryRecord(0, 8, 0, False, 0, 3, checksum),), (0,))
    assert (told.num_running, told.num_waiting, told.num_held) == (0, 0, 0)


def test_a_checksum_follows_the_block_table(recorded):
    scheduler, clock, records = recorded
    scheduler.submit(request("a", 7, max_tokens=4))
    plans = [step(scheduler, clock) for _ in range(3)]
    for plan, told in zip(plans, (one for one in records if isinstance(one, StepRecord)), strict=True):
        (entry,) = plan.sequences
        assert told.entries[0].num_blocks == len(entry.block_table)
        assert told.entries[0].table_crc32 == crc32(array("q", entry.block_table).tobytes())
        assert told.token_ids == ((9,),)
    assert len({one.entries[0].table_crc32 for one in records if isinstance(one, StepRecord)}) > 1


def test_ends_from_outside_and_failures_are_told(recorded):
    scheduler, clock, records = recorded
    scheduler.submit(request("a", 4, max_tokens=8))
    scheduler.submit(request("b", 3, max_tokens=8))
    step(scheduler, clock)
    scheduler.finish(0, FinishReason.STOP, "x")
    assert records[-1] == FinishRecord(2.5, 0)
    step(scheduler, clock, error="not finite")
    assert records[-1].errors == (1,)
    assert records[-1].finished == (0,)
    before = len(records)
    assert scheduler.abort("b") == []
    assert len(records) == before, "who has ended is not aborted"


def test_what_is_refused_is_not_told(recorded):
    scheduler, _, records = recorded
    with pytest.raises(InvalidRequest):
        scheduler.submit(request("a", 0))
    assert records == []


def test_decisions_leave_times_and_contents_out(recorded):
    scheduler, clock, records = recorded
    scheduler.submit(request("a", 4, max_tokens=2))
    step(scheduler, clock)
    told = records[-1]
    same = told._replace(start_s=7.0, end_s=8.0, executor_s=9.0, token_ids=((1,),))
    assert same.decisions == told.decisions
    for name in set(StepRecord._fields) - {"start_s", "end_s", "executor_s", "token_ids"}:
        assert told._replace(**{name: "other"}).decisions != told.decisions, name


def test_a_limit_below_one_is_refused():
    with pytest.raises(ConfigError, match="max_records"):
        RecordWriter(io.StringIO(), CONFIG, max_records=0)
