from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from argosy.engine.core.plan import BlockCopy, NewSequence, ScheduledSequence, StepPlan
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executors.torch_executor import TorchExecutor
from argosy.errors import ConfigError

PER_EXAMPLE = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_like_full_recompute(driver, track, full_logits, first=0):
    """Every computed position's logits against one pass over the whole sequence."""
    computed = [track.hidden[p] for p in range(first, track.computed)]
    logits = driver.decoder.logits(torch.stack(computed))
    expected = full_logits(driver.decoder, track.tokens[: track.computed])[first:]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def random_tokens(random, count):
    return [random.randrange(97) for _ in range(count)]


def slots_of(driver, entries):
    """Pool slots that tracks write when they compute the given counts."""
    slots = set()
    for track, count in entries:
        for p in range(track.computed, track.computed + count):
            slots.add(track.table[p // driver.block_size] * driver.block_size + p % driver.block_size)
    return slots


@pytest.mark.parametrize("name", ["llama", "gemma3", "softcap"])
@PER_EXAMPLE
@given(random=st.integers(0, 2**32 - 1).map(Random), block_size=st.sampled_from([1, 4, 16]))
def test_any_batch_composition_computes_what_a_lone_pass_computes(driver, full_logits, name, random, block_size):
    """Random prompts cut into random chunks, prefill beside decode, prefixes in shared blocks, forks by block copy; and no
    step touches a slot that is not its own."""
    run = driver(name, block_size=block_size, num_blocks=640 // block_size)
    random.shuffle(run.free)
    root = run.add(random_tokens(random, random.randint(1, 60)), room=6)
    tracks = [(root, 0, 0, ())]  # track, root positions it needs first, first own position, copies on its first step
    others = [random_tokens(random, random.randint(1, 60)) for _ in range(random.randint(0, 2))]
    tracks += [(run.add(prompt, room=6), 0, 0, ()) for prompt in others]
    if root.num_prompt > block_size:
        shared = random.randint(1, (root.num_prompt - 1) // block_size)
        prompt = root.tokens[: shared * block_size] + random_tokens(random, random.randint(1, 20))
        sharer = run.add(prompt, room=6, table=root.table[:shared])
        sharer.computed = shared * block_size
        tracks.append((sharer, shared * block_size, shared * block_size, ()))
    if root.num_prompt > 1:
        at = random.randint(1, root.num_prompt - 1)
        fork = run.add(root.tokens[:at] + random_tokens(random, 5), room=6, table=root.table[: at // block_size])
        fork.computed = at
        copies = [BlockCopy(root.table[at // block_size], fork.table[at // block_size])] if at % block_size else []
        tracks.append((fork, at, at, copies))
    begun = set()
    while pending := [t for t in tracks if len(t[0].output) < 4]:
        chunks, copies = [], []
        ready = root.computed
        for track, needs, _, own_copies in pending:
            left = len(track.tokens) - track.computed
            count = min(left, random.choice([0, 1, 2, 7, 64]))
            if count == 0 or ready < needs:
                continue
            if track.sequence_id not in begun:
                copies += own_copies
                begun.add(track.sequence_id)
            chunks.append((track, count))
        random.shuffle(chunks)
        before = run.pool.clone()
        written = slots_of(run, chunks)
        for copy in copies:
            written |= set(range(copy.destination * block_size, (copy.destination + 1) * block_size))
        run.step(chunks, copies=copies)
        untouched = [s for s in range(before.shape[2]) if s not in written]
        assert torch.equal(run.pool[:, :, untouched], before[:, :, untouched])
    for track, _, first, _ in tracks:
        assert_like_full_recompute(run, track, full_logits, first)
        expected = full_logits(run.decoder, track.tokens).argmax(-1)[track.num_prompt - 1 : -1].tolist()
        assert track.output == expected


@pytest.mark.parametrize("name", ["llama", "gemma3", "softcap"])
def test_long_prompts_past_the_query_tile_and_window(driver, full_logits, name):
    run = driver(name, block_size=16, num_blocks=128)
    long, short = run.add([(7 * i) % 97 for i in range(700)], room=4), run.add([3, 1, 4], room=4)
    run.generate([long, short], 3, chunk=300)
    for track in (long, short):
        assert_like_full_recompute(run, track, full_logits)


def test_decode_rows_of_very_different_lengths(driver, full_logits):
    run = driver(block_size=16, num_blocks=128)
    tracks = [run.add([(i * n) % 97 for i in range(n)], room=6) for n in (1, 900, 2, 400, 17, 130, 33)]
    run.generate(tracks, 5)
    for track in tracks:
        assert_like_full_recompute(run, track, full_logits)


def test_scattered_and_adjacent_blocks_give_the_same(driver):
    prompt = [(5 * i) % 97 for i in range(90)]
    outputs = []
    for order in (sorted, lambda blocks: blocks[::2] + blocks[1::2]):
        run = driver(num_blocks=64)
        run.free = list(order(run.free))[::-1]
        track = run.add(prompt, room=8)
        run.generate([track], 8, chunk=30)
        outputs.append(track.output)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(("kv_dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.2), ("float16", 0.02)])
def test_kv_in_a_narrower_type(driver, full_logits, kv_dtype, tolerance):
    run = driver(kv_dtype=kv_dtype)
    assert run.executor.kv_dtype == kv_dtype
    track = run.add(list(range(40)), room=4)
    run.generate([track], 4, chunk=15)
    logits = run.decoder.logits(torch.stack([track.hidden[p] for p in range(track.computed)]))
    expected = full_logits(run.decoder, track.tokens[: track.computed])
    error = (logits - expected).abs().max()
    assert error <= tolerance
    assert kv_dtype == "float32" or error > 1e-5


def test_a_narrow_kv_type_rounds_a_chunk_like_a_whole_prompt(driver):
    prompt = list(range(40))
    hidden = []
    for chunk in (40, 7):
        run = driver(kv_dtype="bfloat16")
        track = run.add(prompt, room=4)
        run.generate([track], 1, chunk=chunk)
        hidden.append(torch.stack([track.hidden[p] for p in range(40)]))
    torch.testing.assert_close(hidden[0], hidden[1], atol=1e-4, rtol=1e-4)


def test_a_bfloat16_model_runs_mixed_steps(make_decoder, driver):
    from_float = make_decoder("gemma3", torch.bfloat16)
    run = type(driver())(from_float, num_blocks=64)
    first, second = run.add(list(range(30)), room=4), run.add([5, 6], room=9)
    run.step([(second, 2)])
    run.step([(first, 12), (second, 1)])
    run.generate([first, second], 2)
    assert len(first.output) >= 2
    assert not any(r.error for t in (first, second) for r in t.results)


def test_prompt_logprobs_are_the_same_for_every_chunking(driver, full_logits):
    """33 tokens over blocks of 32, twice, and in chunks: one entry per position but the first."""
    prompt = list(range(33))
    params = SamplingParams(temperature=0.0, prompt_logprobs=2, logprobs=1)
    expected = full_logits(driver().decoder, prompt).log_softmax(-1)
    for chunk in (33, 33, 32, 5, 1):
        run = driver(block_size=32, num_blocks=8)
        track = run.add(prompt, room=3, params=params, score_prompt=True)
        run.generate([track], 1, chunk=chunk)
        scored = [entry for r in track.results for entry in r.prompt_logprobs]
        assert [s.token_id for s in scored] == prompt[1:]
        for p, entry in enumerate(scored, start=1):
            row = expected[p - 1]
            assert entry.logprob == pytest.approx(row[prompt[p]].item(), abs=1e-4)
            assert entry.rank == int((row > row[prompt[p]]).sum()) + 1
            assert [t for t, _ in entry.top] == row.topk(2).indices.tolist()
        (chosen,) = track.results[-1].logprobs
        assert chosen.token_id == track.output[0]
        assert chosen.rank == 1
        assert chosen.top == ((chosen.token_id, chosen.logprob),)


def test_prompt_logprobs_may_start_inside_a_chunk(driver):
    run = driver()
    new = NewSequence(1, (5, 6, 7, 8), SamplingParams(prompt_logprobs=0, temperature=0.0), 0, 0, (), ())
    entry = ScheduledSequence(1, (5, 6, 7, 8), 0, (0,), True, 0, "", 2)
    result = run.executor.execute(StepPlan(0, (new,), (), (), (entry,), 4, 4)).results[0]
    assert [(s.token_id, s.top) for s in result.prompt_logprobs] == [(7, ()), (8, ())]


def test_prompt_logprobs_of_many_rows(driver):
    run = driver(block_size=16, num_blocks=16)
    track = run.add([i % 97 for i in range(200)], params=SamplingParams(prompt_logprobs=1), score_prompt=True, room=1)
    run.generate([track], 1)
    assert [s.token_id for s in track.results[0].prompt_logprobs] == track.tokens[1:200]


@pytest.mark.parametrize("deterministic", [False, True])
def test_not_finite_logits_fail_their_sequence_only(driver, make_decoder, deterministic):
    """Token 13 has a NaN embedding. The broken sequence's blocks are then reused: what is left in them must not leak."""
    decoder = make_decoder("llama")
    with torch.no_grad():
        decoder.model.embed_tokens.weight[13] = float("nan")
    run_type = type(driver())
    alone = run_type(decoder, num_blocks=4, deterministic=deterministic)
    lone = alone.add([1, 2, 3], room=6)
    alone.generate([lone], 6)

    run = run_type(decoder, num_blocks=12, deterministic=deterministic)
    scored = SamplingParams(temperature=0.0, prompt_logprobs=0)
    bad = run.add([4, 13, 5], room=6, params=scored, score_prompt=True)
    good = run.add([1, 2, 3], room=6)
    sampled_bad = run.add([13], room=2, params=SamplingParams(seed=1))
    run.step([(bad, 3), (good, 3), (sampled_bad, 1)])
    for track in (bad, sampled_bad):
        assert "not finite" in track.results[0].error
        assert track.results[0].token_ids == track.results[0].logprobs == track.results[0].prompt_logprobs == ()
    run.generate([good], 5)
    assert good.output == lone.output
    reuser, beside = run.add([1, 2, 3], room=6, table=bad.table), run.add([9] * 11, room=1)
    run.generate([reuser, beside], 1)
    run.generate([reuser], 5)
    assert reuser.output == lone.output
    assert not beside.results[-1].error


def test_a_sequence_that_masks_everything_fails_alone(driver):
    run = driver()
    doomed = run.add([1, 2], room=2, bad_words_ids=tuple((i,) for i in range(97)))
    drawn = run.add([1, 2], room=2, params=SamplingParams(), bad_words_ids=tuple((i,) for i in range(97)))
    fine = run.add([1, 2], room=2)
    run.step([(doomed, 2), (fine, 2), (drawn, 2)])
    assert "bad_words" in doomed.results[0].error
    assert "bad_words" in drawn.results[0].error
    assert len(fine.output) == 1


def test_an_adapter_is_refused_by_name(driver):
    run = driver()
    before = run.pool.clone()
    new = NewSequence(1, (5,), SamplingParams(), 0, 0, (), ())
    entry = ScheduledSequence(1, (5,), 0, (0,), True, 0, "sha-of-an-adapter", -1)
    (result,) = run.executor.execute(StepPlan(0, (new,), (), (), (entry,), 1, 1)).results
    assert "sha-of-an-adapter" in result.error
    assert torch.equal(run.pool, before)


def test_state_lives_until_finished_and_no_longer(driver):
    run = driver()
    tracks = [run.add([1, 2], room=3) for _ in range(3)]
    run.generate(tracks, 2)
    assert run.executor.num_live_sequences == 3
    run.step([(tracks[0], 1)], finished=[tracks[1].sequence_id, tracks[2].sequence_id])
    assert run.executor.num_live_sequences == 1
    run.step([], finished=[tracks[0].sequence_id, 12345])
    assert run.executor.num_live_sequences == 0
    run.executor.close()


def test_block_copies_read_before_they_write(driver):
    run = driver(num_blocks=4)
    with torch.inference_mode():
        run.pool.copy_(torch.arange(run.pool.numel()).view(run.pool.shape))
    before = run.pool.clone().view(3, 2, 4, 4, 2, 8)
    run.step([], copies=[BlockCopy(0, 1), BlockCopy(1, 2)])
    after = run.pool.view(before.shape)
    assert torch.equal(after[:, :, 1], before[:, :, 0])
    assert torch.equal(after[:, :, 2], before[:, :, 1])
    assert torch.equal(after[:, :, [0, 3]], before[:, :, [0, 3]])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kv_dtype": "int4"}, "kv_dtype"),
        ({"device": "abacus"}, "abacus"),
        ({"device": "meta"}, "meta"),
        ({"device": "cuda:99"}, "cuda:99"),
        ({"num_blocks": 0}, "num_blocks"),
        ({"num_blocks": 2**46}, "no room"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(decoders, settings, named):
    with pytest.raises(ConfigError, match=named) as caught:
        TorchExecutor(decoders["llama"], **{"num_blocks": 4, "block_size": 4, **settings})
    assert "\n" not in caught.value.message
