"""The whole engine on the real models, against transformers and against itself."""

from __future__ import annotations

import asyncio

import pytest
import torch

from argosy.engine.args import EngineArgs
from argosy.engine.build import assemble, start_async_engine
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.llm import LLM
from argosy.models.loader import load_model

pytestmark = [pytest.mark.model, pytest.mark.slow]

NAME = "smollm2-135m"
PROMPTS = [
    "The lighthouse keeper climbed the stairs and",
    "A recipe for bread: flour, water, salt and",
    "In 1492",
    "def add(a, b):\n    return",
    "for i in range(10):\n    print(",
    "The three primary colours are red,",
    "Once upon a time, in a village by the sea, there lived an old fisherman who every morning",
    "What is the boiling point of water? The boiling point of water is",
    "Le chat est assis sur",
    "Der Zug nach Hamburg fährt um",
    "2, 4, 6, 8,",
    "To be, or not to be, that is",
    "The mitochondria is",
    "SELECT * FROM ships WHERE",
    "Dear Ana,\n\nthank you for",
    "Monday, Tuesday, Wednesday,",
    "The moon orbits the earth because of",
    "Café, thé, 🍵 and",
    "<ul>\n  <li>One</li>\n  <li>",
    "My favourite book is about a captain who",
]


@pytest.fixture(scope="module")
def loaded():
    return load_model(NAME)


@pytest.fixture
def make_llm(loaded):
    made: list[LLM] = []

    def make(**settings) -> LLM:
        args = EngineArgs(NAME, **({"max_model_len": 512, "num_blocks_override": 512} | settings))
        made.append(LLM.from_parts(assemble(args, loaded)))
        return made[-1]

    yield make
    for llm in made:
        scheduler = llm._parts.step_loop.scheduler
        scheduler.check_invariants()
        assert scheduler.kv.num_held == 0
        llm.close()


def ids_of(outputs) -> list[tuple[int, ...]]:
    return [c.token_ids for o in outputs for c in o.completions]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_greedy_text_is_that_of_transformers(name, transformers_reference):
    """Every token must be the arg max of transformers' logits after the same tokens, which by induction is its own text."""
    reference = transformers_reference(name)
    with LLM(name, dtype="float32", max_model_len=256, num_blocks_override=512) as llm:
        outputs = llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True))
        for output in outputs:
            prompt, generated = list(output.prompt_token_ids), list(output.completions[0].token_ids)
            assert len(generated) == 64
            with torch.inference_mode():
                logits = reference(torch.tensor([prompt + generated])).logits[0]
            assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == generated, output.prompt
            assert output.completions[0].text == llm.tokenizer.decode(generated)


def test_logprobs_are_those_of_transformers(make_llm, transformers_reference):
    prompt = PROMPTS[6]
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=5, prompt_logprobs=5, ignore_eos=True)
    (output,) = make_llm().generate(prompt, params)
    ids = [*output.prompt_token_ids, *output.completions[0].token_ids]
    with torch.inference_mode():
        expected = transformers_reference(NAME)(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert output.prompt_logprobs[0] is None
    entries = [*output.prompt_logprobs[1:], *output.completions[0].logprobs]
    assert [e.token_id for e in entries] == ids[1:]
    for row, entry in zip(expected, entries, strict=False):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=2e-3)
        assert entry.rank == int((row > row[entry.token_id]).sum()) + 1
        assert [p for _, p in entry.top] == pytest.approx(row.topk(5).values.tolist(), abs=2e-3)


def test_prompt_logprobs_do_not_depend_on_chunks_or_the_prefix_cache(make_llm):
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    prompt = list(range(33))
    runs = []
    for settings in ({}, {"max_num_batched_tokens": 16, "max_num_seqs": 4}, {"block_size": 1}, {"block_size": 32}):
        llm = make_llm(**settings)
        llm.generate(prompt, SamplingParams(max_tokens=1))
        first, second = (llm.generate(prompt, params)[0].prompt_logprobs for _ in range(2))
        assert first == second
        runs.append(first)
    for run in runs:
        assert len(run) == len(prompt)
        assert run[0] is None
        assert [e.token_id for e in run[1:]] == prompt[1:]
        assert [e.logprob for e in run[1:]] == pytest.approx([e.logprob for e in runs[0][1:]], abs=1e-3)


def test_a_cached_prompt_gives_the_same_text(make_llm):
    llm = make_llm()
    prompt = (llm.tokenizer.encode(PROMPTS[6]) * 4)[:64]
    params = SamplingParams(temperature=0.0, max_tokens=16)
    cold, warm = (llm.generate(prompt, params)[0] for _ in range(2))
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 48)
    assert ids_of([warm]) == ids_of([cold])


def test_seeded_sampling_is_the_same_alone_in_a_batch_of_32_and_after_preemption(make_llm):
    """In the default mode, although the logits differ in their last bits between the three."""
    prompts = [PROMPTS[i % 20] for i in range(32)]
    params = [SamplingParams(seed=i, temperature=0.9, max_tokens=12, ignore_eos=True) for i in range(32)]
    roomy = make_llm()
    tight = make_llm(num_blocks_override=34, block_size=8, watermark=0.0)
    batch = ids_of(roomy.generate(prompts, params))
    assert ids_of(tight.generate(prompts, params)) == batch
    assert tight._parts.step_loop.scheduler.num_preemptions > 0
    for i in (0, 6, 25):
        assert ids_of(roomy.generate(prompts[i], params[i])) == [batch[i]]
    assert len(set(batch)) == 32


def test_four_sequences_of_one_prompt_share_its_blocks_and_go_their_own_ways(make_llm):
    llm = make_llm(enable_prefix_caching=False)
    sampled = ids_of(llm.generate(PROMPTS[6], SamplingParams(n=4, seed=1, max_tokens=12, ignore_eos=True)))
    assert len(set(sampled)) == 4
    again = ids_of(llm.generate(PROMPTS[6], SamplingParams(n=2, seed=1, max_tokens=12, ignore_eos=True)))
    assert again == sampled[:2]
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    alone = ids_of(llm.generate(PROMPTS[6], greedy))
    assert (
        ids_of(llm.generate(PROMPTS[6], SamplingParams(n=4, temperature=0.0, max_tokens=12, ignore_eos=True))) == alone * 4
    )


def test_chat_answers_and_ends_by_itself(make_llm):
    (output,) = make_llm().chat(
        [{"role": "user", "content": "Name the capital of France."}], SamplingParams(temperature=0.0, max_tokens=40)
    )
    completion = output.completions[0]
    assert "Paris" in completion.text
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    assert "<|im_end|>" not in completion.text


async def test_streams_give_what_offline_generation_gives(make_llm, loaded):
    params = SamplingParams(temperature=0.0, max_tokens=16, stop=(" the",))
    expected = [c.text for o in make_llm().generate(PROMPTS, params) for c in o.completions]
    engine = start_async_engine(assemble(EngineArgs(NAME, num_blocks_override=512), loaded))

    async def text_of(i: int) -> str:
        stream = engine.submit(f"r{i}", tuple(engine.tokenizer.encode(PROMPTS[i])), params)
        return "".join([delta.text async for delta in stream])

    try:
        assert await asyncio.gather(*(text_of(i) for i in range(20))) == expected
        assert engine.live_requests == 0
    finally:
        await engine.shutdown()
