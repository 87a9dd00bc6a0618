"""What a live engine decided under memory pressure, with shared prefixes, early ends and aborts, decided anew."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from argosy.engine.args import EngineArgs
from argosy.engine.build import EngineParts, assemble, build_parts, start_async_engine
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.step_recorder import AbortRecord, Record, RecordWriter, StepRecord, read_records
from argosy.errors import ConfigError, EngineUnavailable, SimulationError
from argosy.models.architectures.decoder import build_decoder
from argosy.models.config import ModelConfig, RopeConfig
from argosy.models.loaded import LoadedModel
from argosy.sim.replay import first_difference, live_run, replay

CONFIG = ModelConfig("llama", 300, 32, 48, 2, 4, 2, 8, 256, 1e-5, True, RopeConfig(), (None, None), attention_scale=8**-0.5)
PRESSED = {"num_blocks_override": 24, "block_size": 8, "max_num_seqs": 8, "max_num_batched_tokens": 48, "watermark": 0.0}


class Bytes:
    vocab_size, bos_token_id, has_chat_template = 300, None, False
    special_token_ids: frozenset[int] = frozenset()
    eos_token_ids: frozenset[int] = frozenset({256})

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids, *, skip_special_tokens: bool = True) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    decoder = build_decoder(CONFIG, dtype=torch.float32, device="cpu", max_positions=None)
    generator = torch.Generator().manual_seed(0)
    for parameter in decoder.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return LoadedModel("toy", Path("toy.gguf"), CONFIG, Bytes(), decoder, 1, frozenset({256}), {}, decoder.max_positions)


@pytest.fixture
def engine(loaded) -> Callable[..., tuple[EngineParts, list[Record]]]:
    def make(**settings: object) -> tuple[EngineParts, list[Record]]:
        records: list[Record] = []
        args = EngineArgs.from_mapping({"model": "toy", **PRESSED, **settings})
        return assemble(args, loaded, on_record=records.append), records

    return make


def serve(parts: EngineParts, num_requests: int, seed: int, *, vocab: int = 200, longest: int = 40) -> SchedulerConfig:
    """Random traffic in real time: bursts, one of three prefixes, sampled answers with early ends, some given up."""
    rng = Random(seed)
    prefixes = [tuple(rng.randrange(vocab) for _ in range(length)) for length in (8, 24, 41)]

    async def one(engine, number: int) -> None:
        prompt = rng.choice(prefixes) + tuple(rng.randrange(vocab) for _ in range(rng.randrange(1, 24)))
        params = SamplingParams(
            max_tokens=rng.choice((1, 5, longest, None)) if number % 7 else None,
            temperature=1.0,
            seed=number,
            stop_token_ids=tuple(rng.randrange(300) for _ in range(6)),
        )
        priority, patience = rng.randrange(3), rng.randrange(1, 20) if rng.random() < 0.3 else 10_000
        stream = engine.submit(f"r{number}", prompt, params, priority=priority, cache_salt=rng.choice(("", "a")))
        heard = 0
        async for _ in stream:
            heard += 1
            if heard == patience:
                stream.abort()

    async def all_of_them() -> None:
        engine = start_async_engine(parts)
        tasks = []
        for number in range(num_requests):
            tasks.append(asyncio.ensure_future(one(engine, number)))
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.001, 0.01)))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [one for one in results if isinstance(one, EngineUnavailable)]
        await engine.shutdown()

    asyncio.run(all_of_them())
    return parts.step_loop.scheduler.config


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "settings", [{}, {"scheduling_policy": "priority", "eviction_policy": "size", "max_preemptions": 1}]
)
def test_a_simulated_replica_decides_as_the_live_engine_did(engine, settings, seed):
    parts, records = engine(**settings)
    config = serve(parts, 40, seed)
    run = live_run(config, records)
    last = run.steps[-1]
    assert last.num_preemptions > 0, "memory was short"
    assert last.prefix_hits_tokens > 0, "prefixes were shared"
    assert any(isinstance(one, AbortRecord) for one in records)
    assert any(request.end_ids for request in run.requests), "some answers ended early"
    replayed = replay(run)
    assert first_difference(run.steps, replayed) == ""
    assert [one.decisions for one in replayed] == [one.decisions for one in run.steps]
    assert replayed[-1].num_preemptions == last.num_preemptions
    assert replayed[-1].prefix_hits_tokens == last.prefix_hits_tokens


def test_what_is_written_can_be_read_and_replayed(engine):
    parts, records = engine()
    config = serve(parts, 12, 7)
    file = io.StringIO()
    write = RecordWriter(file, config)
    for record in records:
        write(record)
    read_config, read = read_records(file.getvalue().splitlines())
    assert (read_config, read) == (config, records)
    run = live_run(read_config, read)
    assert first_difference(run.steps, replay(run)) == ""


def test_another_policy_is_noticed(engine):
    parts, records = engine()
    run = live_run(serve(parts, 25, 3), records)
    for change in ({"prefill_share": 1.0}, {"num_blocks": 23}, {"enable_prefix_caching": False}):
        other = replace(run, config=replace(run.config, **change))
        with contextlib.suppress(SimulationError):
            assert first_difference(run.steps, replay(other)) != ""


def test_a_recording_that_stopped_at_its_limit_is_refused(engine):
    parts, records = engine()
    config = serve(parts, 5, 1)
    file = io.StringIO()
    write = RecordWriter(file, config, max_records=4)
    for record in records:
        write(record)
    assert len(file.getvalue().splitlines()) == 6
    with pytest.raises(ConfigError, match="line 6: the recording stopped at its limit"):
        read_records(file.getvalue().splitlines())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "no header"),
        (["{"], "line 1 of the recording"),
        (['{"kind":"header","format":"x","version":1,"scheduler":{}}'], "line 1: x 1 is not"),
        (['{"kind":"abort","values":[1]}'], "line 1 of the recording"),
        (['{"kind":"other","values":[]}'], "line 1 of the recording"),
    ],
)
def test_what_is_no_recording_is_refused(lines, message):
    with pytest.raises(ConfigError, match=message):
        read_records(lines)


def test_what_cannot_be_replayed_is_refused(engine):
    parts, records = engine()
    config = serve(parts, 6, 2)
    steps = [one for one in records if isinstance(one, StepRecord)]
    with pytest.raises(SimulationError, match="no step"):
        live_run(config, [])
    with pytest.raises(SimulationError, match="every step from the engine's first"):
        live_run(config, [one for one in records if one is not steps[1]])
    busy = max(steps, key=lambda one: one.num_running)
    with pytest.raises(SimulationError, match="while requests are alive"):
        live_run(config, records[: records.index(busy) + 1])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (SamplingParams(n=2, max_tokens=2), "has 2 sequences"),
        (SamplingParams(max_tokens=2, prompt_logprobs=1), "has prompt logprobs"),
        (SamplingParams(max_tokens=30, stop=tuple(chr(c) for c in range(32, 90))), "stop string"),
    ],
)
def test_requests_that_no_simulated_replica_knows_are_refused(engine, params, message):
    parts, records = engine()
    loop = parts.step_loop
    loop.add(parts.admission.admit("r", (1, 2, 3), params, arrival_s=parts.clock.now_s()))
    while loop.has_work:
        loop.step()
    with pytest.raises(SimulationError, match=message):
        live_run(loop.scheduler.config, records)


@pytest.mark.model
@pytest.mark.slow
def test_a_real_model_under_pressure_is_replayed_exactly():
    records: list[Record] = []
    args = EngineArgs("smollm2-135m", num_blocks_override=24, block_size=8, max_num_seqs=8, max_model_len=160, threads=1)
    config = serve(build_parts(args, on_record=records.append), 24, 5)
    run = live_run(config, records)
    assert run.steps[-1].num_preemptions > 0
    assert run.steps[-1].prefix_hits_tokens > 0
    assert first_difference(run.steps, replay(run)) == ""
