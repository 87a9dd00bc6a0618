"""Long random histories: invariants after each operation, true KV contents, and nothing left at the end."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.engine.core.request import FinishReason, SequenceStatus
from argosy.errors import ContextLengthExceeded, QueueFull

PREFIX = [1, 2, 3, 1, 2, 3, 4, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 3, 3, 1, 2, 3, 4, 4, 2, 1, 1, 5, 6]


def random_request(rng, rig, longest):
    length = rng.randint(1, rng.choice([6, longest]))
    cut = rng.randint(0, min(length, len(PREFIX)))
    prompt = PREFIX[:cut] + [rng.randint(0, 9) for _ in range(length - cut)]
    settings = {
        "n": rng.choice([1, 1, 1, 2, 3, 4]),
        "max_tokens": rng.choice([0, 1, 5, 20, 60, None, None]),
        "stop_token_ids": rng.choice([(), (), (3,), (7, 8)]),
        "eos_token_ids": frozenset(rng.choice([(), (11,)])),
        "ignore_eos": rng.random() < 0.2,
        "prompt_logprobs": rng.choice([None, None, None, 0]),
        "seed": rng.randint(0, 3),
        "priority": rng.randint(0, 2),
        "cache_salt": rng.choice(["", "", "tenant"]),
        "adapter_id": rng.choice(["", "", "", "adapter"]),
    }
    try:
        rig.submit(prompt, **settings)
    except (ContextLengthExceeded, QueueFull):
        rig.verify()


def random_operation(rng, rig, longest):
    """One of: arrive, step (committed at once or with operations while it is in flight), finish, abort, reset."""
    scheduler = rig.scheduler
    alive = [s for s in rig.sequences.values() if s.status is not SequenceStatus.FINISHED]
    kind = rng.random()
    if kind < 0.12:
        random_request(rng, rig, longest)
    elif kind < 0.14 and alive:
        rig.abort(rng.choice(alive).request.request_id)
    elif kind < 0.16 and alive:
        chosen = rng.choice(alive)
        scheduler.finish(chosen.sequence_id, FinishReason.STOP, "word")
        scheduler.finish(chosen.sequence_id, FinishReason.STOP, "word")
        rig.verify()
    elif kind < 0.165 and alive:
        rig.executor.fail = {rng.choice(alive).sequence_id}
    elif kind < 0.167:
        rig.scheduler.reset_prefix_cache()
        rig.verify()
    else:
        plan = rig.schedule()
        if plan is None:
            assert not scheduler.has_work
            return
        while rng.random() < 0.05 and alive:
            rig.abort(rng.choice(alive).request.request_id)
            random_request(rng, rig, longest)
        rig.commit(plan)
    for sequence_id in [i for i, s in rig.sequences.items() if s.status is SequenceStatus.FINISHED]:
        del rig.sequences[sequence_id]


def history(lab, seed, num_operations, **overrides):
    rng = Random(seed)
    block_size = overrides.pop("block_size")
    num_blocks = {1: 40, 4: 14, 16: 6}[block_size]
    executor = lab.FakeExecutor(block_size, vocab_size=14, max_run=rng.choice([1, 3]))
    fields = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_model_len": rng.choice([24, 200]),
        "max_num_seqs": rng.choice([3, 8]),
        "max_num_batched_tokens": rng.choice([8, 20, 64]),
        "max_waiting": 12,
        "prefill_share": rng.choice([0.1, 0.5, 1.0]),
        "watermark": rng.choice([0.0, 0.0, 0.2]),
        "max_preemptions": rng.choice([0, 1, 3]),
        "enable_prefix_caching": seed % 4 != 3,
        "chunk_alignment": rng.choice([0, 0, 4, 8]),
        "scheduling_policy": rng.choice(["fcfs", "priority"]),
        "eviction_policy": rng.choice(["lru", "size", "priority"]),
    }
    rig = lab.rig(executor, **{**fields, **overrides})
    longest = rig.scheduler.config.effective_max_len
    for _ in range(num_operations):
        random_operation(rng, rig, longest)
    rig.executor.fail.clear()
    rig.run()
    rig.assert_idle()
    return rig


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_invariants_hold_after_each_of_ten_thousand_operations(lab, block_size):
    rigs = [history(lab, seed, 1000, block_size=block_size) for seed in range(10)]
    assert sum(rig.scheduler.num_preemptions for rig in rigs) > 30, "the histories must preempt"
    assert sum(rig.scheduler.prefix_hits_tokens for rig in rigs) > 100, "and hit the prefix cache"
    assert block_size == 1 or sum(len(plan.copies) for rig in rigs for plan in rig.plans) > 50, "and copy on write"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), block_size=st.sampled_from([1, 4, 16]), num_operations=st.integers(5, 120))
def test_invariants_hold_in_any_short_history(lab, seed, block_size, num_operations):
    history(lab, seed, num_operations, block_size=block_size)
