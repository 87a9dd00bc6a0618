"""Deterministic mode: the bits of a sequence's hidden states and tokens depend on its own tokens only."""

from __future__ import annotations

import pytest
import torch

from argosy.engine.core.sampling_params import SamplingParams

NAMES = ["llama", "gemma3", "softcap"]
GREEDY = SamplingParams(temperature=0.0)


def prompt_of(length, salt=0):
    return [(i * i + 3 * i + salt) % 97 for i in range(length)]


def bits(track):
    return torch.stack([track.hidden[p] for p in sorted(track.hidden)])


def assert_same_bits(track, lone):
    assert track.output == lone.output
    shared = sorted(set(track.hidden) & set(lone.hidden))
    assert shared[-1] == len(lone.tokens) - 2
    for p in shared:
        assert torch.equal(track.hidden[p], lone.hidden[p]), f"position {p}"


@pytest.fixture
def deterministic(driver):
    def make(name, **settings):
        return driver(name, block_size=16, num_blocks=256, deterministic=True, **settings)

    return make


@pytest.fixture
def alone(deterministic):
    def run(name, length, outputs=6, params=GREEDY):
        lone = deterministic(name)
        track = lone.add(prompt_of(length), room=outputs, params=params)
        lone.generate([track], outputs)
        return track

    return run


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 511])
def test_alone_in_a_batch_and_among_long_prompts(deterministic, alone, name, length):
    lone = alone(name, length)
    run = deterministic(name)
    batch = [run.add(prompt_of(length if i == 3 else 5 + 9 * i, i * (i != 3)), room=8) for i in range(8)]
    run.generate(batch, 6)
    assert_same_bits(batch[3], lone)

    run = deterministic(name)
    long = [run.add(prompt_of(700, 1), room=20), run.add(prompt_of(333, 2), room=20)]
    late = run.add(prompt_of(length), room=6)
    run.step([(long[0], 211), (long[1], 333)])
    run.step([(long[1], 1), (late, min(length, 7)), (long[0], 100)])
    run.generate([long[0], late, long[1]], 6 - len(late.output), chunk=50)
    assert_same_bits(late, lone)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_every_chunking(deterministic, alone, name, chunk):
    lone = alone(name, 130)
    run = deterministic(name)
    track, other = run.add(prompt_of(130), room=6), run.add(prompt_of(40, 5), room=6)
    run.generate([other, track], 6, chunk=chunk)
    assert_same_bits(track, lone)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("length", "hit"), [(511, 496), (512, 496), (33, 16), (130, 112)])
def test_a_prefix_hit(deterministic, alone, name, length, hit):
    lone = alone(name, length)
    run = deterministic(name)
    first = run.add([*prompt_of(hit), 1, 2, 3], room=6)
    run.generate([first], 2, chunk=100)
    second = run.add(prompt_of(length), room=6, table=first.table[: hit // 16])
    second.computed = hit
    run.generate([first, second], 6)
    assert_same_bits(second, lone)


def test_a_context_of_two_thousand(deterministic, alone):
    lone = alone("llama", 2048, outputs=3)
    run = deterministic("llama")
    short, long = run.add(prompt_of(9, 4), room=9), run.add(prompt_of(2048), room=3)
    run.generate([short], 2)
    run.generate([short, long], 3, chunk=500)
    assert_same_bits(long, lone)


@pytest.mark.parametrize("name", NAMES)
def test_recompute_after_a_preemption(deterministic, alone, name):
    lone = alone(name, 50, outputs=20)
    run = deterministic(name)
    track, other = run.add(prompt_of(50), room=20), run.add(prompt_of(61, 8), room=30)
    run.generate([track, other], 9)
    track.computed, track.table = 0, tuple(run.free.pop() for _ in track.table)
    run.step([(other, 1), (track, 23)])
    run.generate([other, track], 11)
    assert_same_bits(track, lone)


def test_seeded_draws_with_every_setting(deterministic, alone):
    params = SamplingParams(temperature=1.3, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.2, frequency_penalty=0.2)
    lone = alone("llama", 20, outputs=16, params=params)
    run = deterministic("llama")
    batch = [run.add(prompt_of(20 + i), room=16, params=params, seed=i) for i in range(5)]
    same = run.add(prompt_of(20), room=16, params=params)
    run.generate([*batch, same], 16, chunk=6)
    assert_same_bits(same, lone)


def test_in_half_precision_too(make_decoder, driver):
    make = type(driver())
    decoder = make_decoder("llama", torch.bfloat16)
    outputs = []
    for others in (0, 3):
        run = make(decoder, block_size=16, num_blocks=64, deterministic=True, kv_dtype="bfloat16")
        track = run.add(prompt_of(70), room=6)
        run.generate([*(run.add(prompt_of(20 * i + 3, i), room=6) for i in range(others)), track], 6, chunk=30)
        outputs.append(bits(track))
    assert torch.equal(outputs[0], outputs[1])


@pytest.mark.parametrize("name", NAMES)
def test_the_same_logits_as_without(deterministic, driver, full_logits, name):
    run = deterministic(name)
    track = run.add(prompt_of(90), room=6)
    run.generate([track], 6, chunk=40)
    logits = run.decoder.logits(bits(track))
    expected = full_logits(driver(name).decoder, track.tokens[: track.computed])
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_seeded_draws_do_not_depend_on_the_batch_in_the_usual_mode_either(driver):
    params = SamplingParams(temperature=0.9, top_p=0.9)
    outputs = []
    for others in (0, 31):
        run = driver("llama", num_blocks=512)
        track = run.add(prompt_of(12), room=10, params=params, seed=2**64 - 1)
        run.generate([*(run.add(prompt_of(8 + i, i), room=10, params=params, seed=i) for i in range(others)), track], 10)
        outputs.append(track.output)
    assert outputs[0] == outputs[1]


def test_penalties_are_the_same_after_a_preemption(driver):
    """A batch without penalties, joined by a sequence with one; counted twice, a token would be penalised twice."""
    params = SamplingParams(temperature=0.0, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.7)
    outputs = []
    for preempt_at in (None, 5):
        run = driver("llama")
        plain = run.add(prompt_of(9), room=40)
        run.generate([plain], 2)
        track = run.add([7, 7], room=24, params=params)
        run.generate([plain, track], preempt_at or 20)
        if preempt_at:
            track.computed = 0
            run.step([(track, 4), (plain, 1)])
            run.generate([track, plain], 20 - preempt_at)
        outputs.append(track.output[:20])
    assert outputs[0] == outputs[1]
    unpenalised = driver("llama")
    track = unpenalised.add([7, 7], room=24)
    unpenalised.generate([track], 20)
    assert track.output != outputs[0]
