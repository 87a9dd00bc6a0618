"""What comes out depends on the request alone, not on the pool, the batch, the chunks or who was preempted."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

MAX_LEN = 40


def submit_all(rig, seed):
    rng = Random(seed)
    prefix = [rng.randint(0, 9) for _ in range(20)]
    for number in range(8):
        cut = rng.randint(0, 20)
        prompt = prefix[:cut] + [rng.randint(0, 9) for _ in range(rng.randint(1, 12))]
        rig.submit(
            prompt,
            n=rng.choice([1, 1, 2, 4]),
            max_tokens=rng.choice([0, 1, 8, None]),
            min_tokens=0,
            stop_token_ids=rng.choice([(), (5,)]),
            eos_token_ids=frozenset({rng.randint(0, 13)}),
            prompt_logprobs=rng.choice([None, None, 0]),
            logprobs=rng.choice([None, 1]),
            seed=rng.randint(0, 2),
            arrival_s=float(number // 3),
            priority=rng.randint(0, 1),
        )


def outcome(lab, seed, max_run=1, **config):
    executor = lab.FakeExecutor(config["block_size"], vocab_size=14, max_run=max_run)
    rig = lab.rig(executor, max_model_len=MAX_LEN, **config)
    submit_all(rig, seed)
    rig.run()
    rig.assert_idle()
    return rig.tokens, rig.endings, rig.prompt_logprobs


def roomy(lab, seed):
    """One token per step and sequence, everything in one chunk, no cache, no shortage."""
    return outcome(
        lab, seed, num_blocks=512, block_size=4, max_num_batched_tokens=4096, max_num_seqs=64, enable_prefix_caching=False
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    block_size=st.sampled_from([1, 4, 16]),
    spare_blocks=st.integers(0, 6),
    budget=st.integers(6, 70),
    max_num_seqs=st.integers(1, 6),
    max_preemptions=st.integers(0, 3),
    prefill_share=st.sampled_from([0.01, 0.3, 1.0]),
    chunk_alignment=st.sampled_from([0, 0, 3, 4]),
    policy=st.sampled_from(["fcfs", "priority"]),
    eviction=st.sampled_from(["lru", "size", "priority"]),
    max_run=st.sampled_from([1, 4]),
)
def test_outputs_do_not_depend_on_the_configuration(
    lab,
    seed,
    block_size,
    spare_blocks,
    budget,
    max_num_seqs,
    max_preemptions,
    prefill_share,
    chunk_alignment,
    policy,
    eviction,
    max_run,
):
    tokens, endings, prompt_logprobs = outcome(
        lab,
        seed,
        max_run,
        num_blocks=-(-MAX_LEN // block_size) + spare_blocks,
        block_size=block_size,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        max_preemptions=max_preemptions,
        prefill_share=prefill_share,
        chunk_alignment=chunk_alignment,
        scheduling_policy=policy,
        eviction_policy=eviction,
    )
    expected_tokens, expected_endings, expected_prompt_logprobs = roomy(lab, seed)
    assert tokens == expected_tokens
    assert endings == expected_endings
    assert {k: v for k, v in prompt_logprobs.items() if v} == {k: v for k, v in expected_prompt_logprobs.items() if v}
