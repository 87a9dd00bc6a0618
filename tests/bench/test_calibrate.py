"""A calibration of an engine whose executor says that its steps take what a formula says."""

from __future__ import annotations

import pytest

from argosy.bench.calibrate import Measured, StepLog, fit, machine_device, measure_loads
from argosy.bench.calibration_design import design
from argosy.bench.step_samples import composition_of, features_of, samples_of
from argosy.cost.catalogue import find_device, find_model
from argosy.cost.device import Precision
from argosy.engine.admission import Admission
from argosy.engine.args import EngineArgs
from argosy.engine.build import EngineParts
from argosy.engine.client import EngineInfo
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.plan import SequenceResult, StepPlan, StepResult
from argosy.engine.monotonic_clock import MonotonicClock
from argosy.engine.step_loop import StepLoop
from argosy.engine.step_recorder import EntryRecord, RecordingScheduler, StepRecord
from argosy.errors import ConfigError

WIDTH = 260
SPEC = find_model("SmolLM2-135M")


class Bytes:
    vocab_size, bos_token_id, has_chat_template = 256, None, False
    special_token_ids: frozenset[int] = frozenset()
    eos_token_ids: frozenset[int] = frozenset()

    def encode(self, text, *, add_special_tokens=True):
        return list(text.encode())

    def decode(self, ids, *, skip_special_tokens=True):
        return "x" * len(ids)

    def token_bytes(self, token_id):
        return b"x"


def seconds_of(plan: StepPlan) -> float:
    seconds = 0.004
    for entry in plan.sequences:
        new, past = len(entry.token_ids), entry.start
        seconds += 1e-3 * new + 2e-4 * entry.sample
        seconds += 1e-6 * (past + 1) if entry.sample and new == 1 else 3e-8 * (new * past + new * (new + 1) / 2)
    return seconds


class Executor:
    """Takes no time and says that it took what `seconds_of` says."""

    vocab_size, kv_dtype, num_blocks = WIDTH, "float16", 512

    def execute(self, plan: StepPlan) -> StepResult:
        results = (SequenceResult(s.sequence_id, (7,) if s.sample else (), (), (), "") for s in plan.sequences)
        return StepResult(plan.step, tuple(results), seconds_of(plan))

    def close(self) -> None:
        pass


def make_parts(log: StepLog) -> EngineParts:
    config = SchedulerConfig(512, 16, 1200, 8, 128)
    clock = MonotonicClock()
    scheduler = RecordingScheduler(config, on_record=log, clock=clock)
    info = EngineInfo("toy", "toy.gguf", 1200, WIDTH, 16, 512, 8, 128, 64, "Q4_1", "float16", "cpu", False, True, False, {})
    loop = StepLoop(scheduler, Executor(), Bytes(), clock=clock)
    return EngineParts(loop, Admission(Bytes(), WIDTH, 1200, frozenset(), lambda: 0), info, clock)


@pytest.fixture(scope="module")
def measured() -> list[Measured]:
    log = StepLog()
    return measure_loads(make_parts(log), log, rounds=2)


def test_the_design_covers_what_steps_can_be(measured):
    steps = [step for one in measured for step in one.steps]
    decoding = [s for s in steps if all(e.samples and e.num_tokens == 1 for e in s.entries)]
    assert {len(step.entries) for step in decoding} >= {1, 2, 4, 8}
    assert max(entry.start for step in decoding for entry in step.entries) >= 1024
    assert max(entry.num_tokens for step in steps for entry in step.entries) == 128
    assert any(e.num_tokens == 128 and e.start >= 256 for s in steps for e in s.entries), "chunks after others"
    mixed = [s for s in steps if s not in decoding and sum(e.num_output_tokens > 0 for e in s.entries) > 0]
    assert mixed, "prompts beside decoding"


def test_every_load_runs_in_every_round(measured):
    names = [one.load.name for one in measured]
    assert len(set(names)) == len(design(make_parts(StepLog()).info))
    assert all(names.count(name) == 2 for name in names)
    assert all(one.steps for one in measured)


def test_a_load_stays_within_a_small_engine():
    info = EngineInfo("toy", "toy.gguf", 40, WIDTH, 8, 10, 2, 16, 64, "Q4_1", "float16", "cpu", False, True, False, {})
    for load in design(info):
        assert len(load.prompts) <= 2
        assert max(load.prompts) + load.output_tokens <= 40
        assert sum(load.prompts) <= 80


def test_step_times_are_found_again(measured):
    device = machine_device(find_device("H100 SXM"), measured, SPEC)
    found = fit(measured, SPEC, device, args=EngineArgs("toy"), parts=make_parts(StepLog()))
    for one in measured:
        for step in one.steps:
            if step.num_running == 0:
                continue
            features = features_of(step, {None: 1.0})
            curve = found.steps
            host_s = curve.host_step_s + curve.host_sequence_s * features.sequences + curve.host_token_s * features.tokens
            assert found.steps.step_s(features) - host_s == pytest.approx(step.executor_s, rel=0.04)
    assert found.steps.held_out.median < 0.02
    assert found.model == "toy"
    assert found.calibration.devices == (device.name,)
    assert found.calibration.held_out_median < 0.5


def test_an_engine_faster_than_the_host_raises_the_peak(measured):
    host = find_device("H100 SXM")
    fast = [Measured(one.load, tuple(step._replace(executor_s=1e-9) for step in one.steps)) for one in measured]
    assert machine_device(host, fast, SPEC).peak[Precision.FP32].value > host.peak[Precision.FP32].value
    assert machine_device(host, measured, SPEC).peak[Precision.FP32] == host.peak[Precision.FP32]


def step(number: int, start_s: float, entries: tuple[EntryRecord, ...], running: int) -> StepRecord:
    return StepRecord(number, start_s, start_s + 0.9, 0.8, entries, (), (), (), (), (), running, 0, 1, 0, 0, 0, 0)


def test_samples_tell_time_around_the_executor_only_where_a_step_followed_at_once():
    decode = EntryRecord(0, 1, 99, True, 5, 7, 0)
    chunk = EntryRecord(1, 10, 20, False, 0, 2, 0)
    steps = [step(1, 0.0, (decode, chunk), 2), step(2, 1.0, (decode,), 0), step(3, 9.0, (decode,), 0)]
    first, second, third = samples_of(steps, {None: 0.5, 50: 0.5}, "c")
    assert first.features == (11, 1, 2, 0.5 * 100 + 0.5 * 50, 10 * 20 + 55)
    assert first.host_s == pytest.approx(0.2)
    assert (second.host_s, third.host_s) == (None, None)
    assert composition_of(steps[0]).groups == ((1, 1, 99), (1, 10, 20))
    assert composition_of(steps[0]).logit_rows == 1


def test_no_rounds_are_refused():
    log = StepLog()
    with pytest.raises(ConfigError, match="rounds"):
        measure_loads(make_parts(log), log, rounds=0)
