"""The CPU kernels against a decoder of the same numbers, and against themselves in other company."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from argosy.engine.core.plan import BlockCopy, NewSequence, ScheduledSequence, StepPlan
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executors.cpu_executor import CpuExecutor
from argosy.engine.executors.cpu_weights import pack_weights
from argosy.errors import ConfigError
from argosy.kernels.compile_ahead import watching_compilation
from argosy.models.stored_weights import StoredWeight, StoredWeights

PER_EXAMPLE = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = ["llama", "tied", "biased", "qwen3", "windows", "gemma3", "softcap"]


def random_tokens(random, count):
    return [random.randrange(97) for _ in range(count)]


def logits_of(track) -> torch.Tensor:
    return torch.stack([track.hidden[p] for p in range(track.computed)])


def assert_close_to(logits: torch.Tensor, expected: torch.Tensor) -> None:
    """Inputs are rounded to bytes: where arithmetic in another order carries one over the edge between two of them, the
    difference is that of a step of one input, which these random layers amplify."""
    spread = expected.std()
    assert (logits - expected).abs().mean() <= 0.03 * spread
    assert (logits - expected).abs().max() <= 0.3 * spread


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_a_decoder_whose_products_round_their_inputs(
    kernel_driver, kernel_model, quantized_inputs, full_logits, name
):
    run = kernel_driver(name, block_size=16)
    reference = quantized_inputs(kernel_model(name, "Q8_0")[2])
    random = Random(1)
    tracks = [run.add(random_tokens(random, count), room=4) for count in (1, 130, 40)]
    run.generate(tracks, 3, chunk=64)
    for track in tracks:
        expected = full_logits(reference, track.tokens[: track.computed])
        assert_close_to(logits_of(track), expected)


@pytest.mark.parametrize("name", NAMES)
def test_logits_with_float_weights_are_those_of_the_decoder(kernel_driver, kernel_model, full_logits, name):
    run = kernel_driver(name, "F32", block_size=16)
    random = Random(1)
    tracks = [run.add(random_tokens(random, count), room=4) for count in (1, 130, 40)]
    run.generate(tracks, 3, chunk=64)
    for track in tracks:
        expected = full_logits(kernel_model(name, "F32")[2], track.tokens)
        torch.testing.assert_close(logits_of(track), expected[: track.computed], atol=2e-4, rtol=1e-4)
        assert track.output == expected.argmax(-1)[track.num_prompt - 1 : -1].tolist()


@pytest.mark.parametrize("matrix_type", ["F16", "BF16"])
def test_narrow_float_weights(kernel_driver, kernel_model, full_logits, matrix_type):
    run = kernel_driver("llama", matrix_type)
    track = run.add(random_tokens(Random(2), 50), room=4)
    run.generate([track], 3, chunk=20)
    expected = full_logits(kernel_model("llama", matrix_type)[2], track.tokens[: track.computed])
    torch.testing.assert_close(logits_of(track), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("matrix_type", ["Q4_0", "Q4_1", "Q5_0", "Q8_0"])
def test_every_kind_of_weight(kernel_driver, kernel_model, quantized_inputs, full_logits, matrix_type):
    run = kernel_driver("llama", matrix_type)
    reference = quantized_inputs(kernel_model("llama", matrix_type)[2])
    track = run.add(random_tokens(Random(2), 50), room=4)
    run.generate([track], 3, chunk=20)
    assert_close_to(logits_of(track), full_logits(reference, track.tokens[: track.computed]))


@pytest.mark.parametrize("name", NAMES)
def test_rotated_bytes_come_near_the_decoder(kernel_driver, kernel_model, full_logits, name):
    """Every weight and activation is rounded to 8 bits under one scale for a row; a rotation left out, or applied twice,
    would leave nothing of the logits."""
    run = kernel_driver(name, "F32", block_size=16, int8=True)
    track = run.add(random_tokens(Random(1), 60), room=4)
    run.generate([track], 3, chunk=32)
    expected = full_logits(kernel_model(name, "F32")[2], track.tokens[: track.computed])
    assert (logits_of(track) - expected).abs().mean() <= 0.12 * expected.std()


@pytest.mark.parametrize("name", ["llama", "gemma3", "windows", "int8"])
@PER_EXAMPLE
@given(random=st.integers(0, 2**32 - 1).map(Random), block_size=st.sampled_from([1, 4, 16]))
def test_company_chunks_threads_and_blocks_change_no_bit(kernel_driver, name, random, block_size):
    """Random prompts cut into random chunks, prefill beside decode, prefixes in shared blocks, forks by block copy."""
    num_threads, kv_dtype = random.choice([1, 2, 3]), random.choice(["float32", "bfloat16", "float16"])
    model = {"name": "biased", "matrix_type": "F32", "int8": True} if name == "int8" else {"name": name}
    model["kv_dtype"] = kv_dtype
    run = kernel_driver(block_size=block_size, num_blocks=1600 // block_size, num_threads=num_threads, **model)
    random.shuffle(run.free)
    root = run.add(random_tokens(random, random.choice([3, 40, 280])), room=6)
    tracks = [(root, 0, ())]  # track, root positions it needs first, copies on its first step
    tracks += [(run.add(random_tokens(random, random.randint(1, 60)), room=6), 0, ()) for _ in range(2)]
    at = random.randint(1, root.num_prompt - 1)
    fork = run.add(root.tokens[:at] + random_tokens(random, 5), room=6, table=root.table[: at // block_size])
    fork.computed = at
    copies = (BlockCopy(root.table[at // block_size], fork.table[at // block_size]),) if at % block_size else ()
    tracks.append((fork, at, copies))
    begun = set()
    while pending := [t for t in tracks if len(t[0].output) < 4]:
        chunks, step_copies = [], []
        ready = root.computed
        for track, needs, own_copies in pending:
            left = len(track.tokens) - track.computed
            count = min(left, random.choice([0, 1, 2, 7, 64]))
            if count == 0 or ready < needs:
                continue
            if track.sequence_id not in begun:
                step_copies += own_copies
                begun.add(track.sequence_id)
            chunks.append((track, count))
        random.shuffle(chunks)
        if chunks:
            run.step(chunks, copies=step_copies)
    lone = kernel_driver(block_size=16, num_blocks=100, num_threads=1, **model)
    for track, first, _ in tracks:
        alone = lone.add(track.tokens[: track.num_prompt], room=6)
        lone.generate([alone], 4)
        assert alone.output == track.output
        for position in range(first, track.computed):
            assert torch.equal(track.hidden[position], alone.hidden[position])
        lone.free.extend(alone.table)


def test_a_step_touches_no_slot_that_is_not_its_own(kernel_driver):
    run = kernel_driver(block_size=4, num_blocks=64)
    first, second = run.add(list(range(30)), room=4), run.add(list(range(9)), room=4)
    run.step([(first, 7)])
    before = run.pool.clone()
    run.step([(first, 5), (second, 9)], copies=[BlockCopy(first.table[0], 0)])
    written = {first.table[p // 4] * 4 + p % 4 for p in range(7, 12)}
    written |= {second.table[p // 4] * 4 + p % 4 for p in range(9)} | {0, 1, 2, 3}
    untouched = [s for s in range(256) if s not in written]
    assert torch.equal(run.pool[:, :, untouched], before[:, :, untouched])
    assert not torch.equal(run.pool[:, :, sorted(written)], before[:, :, sorted(written)])
    assert torch.equal(run.pool[:, :, :4], before[:, :, [first.table[0] * 4 + i for i in range(4)]])


@pytest.mark.parametrize("num_threads", [1, 3])
def test_long_contexts_are_split_over_threads(kernel_driver, kernel_model, quantized_inputs, full_logits, num_threads):
    run = kernel_driver("windows", block_size=16, num_blocks=160, num_threads=num_threads)
    track = run.add([(7 * i + i // 11) % 97 for i in range(1300)], room=4)
    run.generate([track], 3, chunk=600)
    reference = quantized_inputs(kernel_model("windows", "Q8_0")[2])
    assert_close_to(logits_of(track)[-200:], full_logits(reference, track.tokens[: track.computed])[-200:])


def test_a_scored_sequence_has_the_logits_of_a_served_one(kernel_driver):
    tokens = [(7 * i + i // 11) % 97 for i in range(301)]
    served, idle = (kernel_driver(block_size=16, num_blocks=20, max_num_batched_tokens=128) for _ in range(2))
    track = served.add(tokens)
    while track.computed < len(tokens) - 1:
        served.step([(track, min(50, len(tokens) - 1 - track.computed))])
    assert torch.equal(idle.executor.score(tokens)[:300], logits_of(track))
    with pytest.raises(ConfigError, match="1 are live"):
        served.executor.score(tokens)
    with pytest.raises(ConfigError, match="take 21 KV blocks, and the pool has 20"):
        idle.executor.score(tokens + tokens[:20])


def test_prompt_logprobs_are_the_same_for_every_chunking(kernel_driver):
    prompt = list(range(90))
    params = SamplingParams(temperature=0.0, prompt_logprobs=2, logprobs=1)
    answers = []
    for chunk in (90, 32, 5):
        run = kernel_driver(block_size=32, num_blocks=8)
        track = run.add(prompt, room=3, params=params, score_prompt=True)
        run.generate([track], 1, chunk=chunk)
        answers.append([entry for r in track.results for entry in r.prompt_logprobs])
        assert [s.token_id for s in answers[-1]] == prompt[1:]
        expected = logits_of(track).log_softmax(-1)
        for p, entry in enumerate(answers[-1], start=1):
            assert entry.logprob == pytest.approx(expected[p - 1, prompt[p]].item(), abs=1e-5)
        (chosen,) = track.results[-1].logprobs
        assert (chosen.token_id, chosen.rank) == (track.output[0], 1)
    assert answers[0] == answers[1] == answers[2]


def test_sampled_tokens_do_not_depend_on_company(kernel_driver):
    params = SamplingParams(temperature=1.3, top_p=0.9)
    run = kernel_driver(num_blocks=64)
    tracks = [run.add([i, 2, 3], room=8, params=params, seed=i) for i in range(5)]
    run.generate(tracks, 8)
    for i, track in enumerate(tracks):
        alone = run.add([i, 2, 3], room=8, params=params, seed=i)
        run.generate([alone], 8)
        assert alone.output == track.output
        run.free.extend(alone.table)


def broken(weight: StoredWeight) -> StoredWeight:
    """Token 13's embedding with scales that are not numbers."""
    raw = weight.read().copy()
    raw[13].view(np.float16)[::17] = np.nan
    return replace(weight, read=lambda: raw)


def test_not_finite_logits_fail_their_sequence_only(kernel_model, kernel_driver):
    """The broken sequence's blocks are then reused: what is left in them must not leak."""
    config, stored, _ = kernel_model("llama", "Q8_0")
    weights = [broken(w) if name == "model.embed_tokens.weight" else w for name, w in stored.items()]
    damaged = StoredWeights(weights, expected={n: w.shape for n, w in stored.items()}, tied_head=False)
    driver_type = type(kernel_driver())
    alone = driver_type(config, damaged, num_blocks=4)
    lone = alone.add([1, 2, 3], room=6)
    alone.generate([lone], 6)
    run = driver_type(config, damaged, num_blocks=4)
    bad, good = run.add([1, 13], room=1), run.add([1, 2, 3], room=3)
    run.step([(bad, 2), (good, 3)])
    assert "not finite" in bad.results[0].error
    assert not good.results[0].error
    run.free.extend(bad.table)
    reused = run.add([1, 2, 3], room=4, table=bad.table)
    run.generate([good, reused], 2)
    assert good.output[:2] == lone.output[:2]
    assert reused.output[:2] == lone.output[:2]
    for driver in (alone, run):
        driver.executor.close()


def test_an_adapter_is_refused_and_the_others_run(kernel_driver):
    run = kernel_driver()
    new = tuple(NewSequence(i, (5, 6), SamplingParams(temperature=0.0), 0, 0, (), ()) for i in (1, 2))
    entries = tuple(ScheduledSequence(i, (5, 6), 0, (i,), True, 0, adapter, -1) for i, adapter in ((1, "x"), (2, "")))
    refused, served = run.executor.execute(StepPlan(0, new, (), (), entries, 4, 4)).results
    assert "adapter 'x' is not loaded" in refused.error
    assert len(served.token_ids) == 1


def test_finished_sequences_are_forgotten_and_an_empty_plan_is_answered(kernel_driver):
    run = kernel_driver()
    track = run.add([1, 2], room=2)
    run.generate([track], 2)
    assert run.executor.num_live_sequences == 1
    result = run.executor.execute(StepPlan(9, (), (track.sequence_id,), (), (), 0, 0))
    assert (result.step, result.results) == (9, ())
    assert run.executor.num_live_sequences == 0


def test_facts(kernel_driver):
    executor = kernel_driver(num_blocks=7, kv_dtype="bfloat16", num_threads=1).executor
    assert (executor.vocab_size, executor.num_blocks, executor.kv_dtype, executor.num_threads) == (97, 7, "bfloat16", 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_blocks": 0}, "num_blocks and block_size must be at least 1"),
        ({"block_size": 0}, "num_blocks and block_size must be at least 1"),
        ({"kv_dtype": "int8"}, "kv_dtype must be one of"),
        ({"num_blocks": 10**12}, "no room on cpu for a KV pool"),
    ],
)
def test_settings_out_of_range_are_refused(kernel_model, settings, message):
    config, stored, _ = kernel_model("llama", "Q8_0")
    options = {"num_blocks": 4, "block_size": 4, "max_num_seqs": 2, "max_num_batched_tokens": 8, "max_positions": 64}
    with pytest.raises(ConfigError, match=message):
        CpuExecutor(config, pack_weights(config, stored), **(options | {"num_threads": 1} | settings))


def test_once_it_is_there_nothing_is_compiled(kernel_driver):
    """Prompts, chunks, decoding, split contexts, sampling of every kind, scored prompts."""
    run = kernel_driver(block_size=16, num_blocks=128)
    with watching_compilation() as count:
        greedy = run.add(random_tokens(Random(1), 700), room=4)
        kinds = [SamplingParams(temperature=0.8, top_k=5, top_p=0.9, min_p=0.01), SamplingParams(repetition_penalty=1.2)]
        drawn = [run.add([1, 2, 3], room=4, params=params) for params in kinds]
        scored = run.add([4, 5, 6], room=4, params=SamplingParams(prompt_logprobs=1, logprobs=2), score_prompt=True)
        run.generate([greedy, *drawn, scored], 3, chunk=300)
    assert count.functions == set()
