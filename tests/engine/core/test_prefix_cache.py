"""The prefix cache as requests see it: hits, what is counted, prompt logprobs."""

import itertools

import pytest


@pytest.mark.parametrize("num_prompt", [8, 9, 11, 12])
def test_a_repeated_prompt_gives_the_cold_output(lab, num_prompt):
    rig = lab.rig()
    rig.submit(range(num_prompt), request_id="cold", max_tokens=6)
    rig.run()
    rig.submit(range(num_prompt), request_id="warm", max_tokens=6)
    rig.run()
    assert rig.output("warm") == rig.output("cold")
    assert rig.sequences[1].num_cached_tokens == (num_prompt - 1) // 4 * 4
    assert len(rig.plans[6].sequences[0].token_ids) == num_prompt - (num_prompt - 1) // 4 * 4


def test_hits_and_queries_are_counted_once_at_admission(lab):
    """A request that waits for room for many steps asks the cache once."""
    rig = lab.rig(num_blocks=8)
    rig.submit(range(8), max_tokens=1)
    rig.run()
    rig.submit(range(100, 117), max_tokens=15)
    rig.step()
    rig.submit(range(17), max_tokens=3)
    for _ in range(10):
        rig.step()
    assert rig.scheduler.num_waiting == 1
    assert rig.scheduler.prefix_queries_tokens == 8 + 17
    rig.run()
    assert rig.scheduler.prefix_queries_tokens == 8 + 17 + 17
    assert rig.scheduler.prefix_hits_tokens == rig.sequences[2].num_cached_tokens


def test_nothing_is_counted_without_a_cache(lab):
    rig = lab.rig(enable_prefix_caching=False)
    rig.submit(range(9), max_tokens=2)
    rig.run()
    assert (rig.scheduler.prefix_queries_tokens, rig.scheduler.prefix_hits_tokens) == (0, 0)


def test_a_waiting_request_gains_from_a_prefix_published_meanwhile(lab):
    """The second needs 9 blocks and 3 are left: refused with 5 blocks of the first one's prompt published, not with 8."""
    rig = lab.rig(num_blocks=12, max_num_batched_tokens=20)
    rig.submit(range(33), max_tokens=10)
    rig.step()
    rig.submit(range(33), max_tokens=2)
    rig.step()
    assert rig.scheduler.num_running == 1
    rig.step()
    assert rig.scheduler.num_running == 2


def test_a_reset_of_the_cache_makes_the_next_request_cold(lab):
    rig = lab.rig()
    rig.submit(range(9), max_tokens=2)
    rig.run()
    rig.scheduler.reset_prefix_cache()
    rig.submit(range(9), max_tokens=2)
    rig.run()
    assert rig.scheduler.prefix_hits_tokens == 0


def test_tenants_do_not_see_each_others_prefixes(lab):
    rig = lab.rig()
    rig.submit(range(9), max_tokens=2, cache_salt="a")
    rig.run()
    (other,) = rig.submit(range(9), max_tokens=2, cache_salt="b")
    (same,) = rig.submit(range(9), max_tokens=2, cache_salt="a")
    rig.run()
    assert (other.num_cached_tokens, same.num_cached_tokens) == (0, 8)


def test_a_reloaded_adapter_starts_cold(lab):
    rig = lab.rig()
    rig.submit(range(9), max_tokens=2, adapter_id="sha256:old")
    rig.run()
    (reloaded,) = rig.submit(range(9), max_tokens=2, adapter_id="sha256:new")
    rig.run()
    assert reloaded.num_cached_tokens == 0
    assert {s.adapter_id for p in rig.plans for s in p.sequences if s.sequence_id == 1} == {"sha256:new"}


@pytest.mark.parametrize("budget", [1, 3, 8, 32, 33, 64])
def test_prompt_logprobs_are_one_per_token_for_every_chunk_size_and_cached_or_not(lab, budget):
    prompt = list(range(33))
    rig = lab.rig(max_num_batched_tokens=budget, max_num_seqs=1, block_size=32)
    rig.submit(prompt, request_id="cold", max_tokens=1, prompt_logprobs=1)
    rig.run()
    rig.submit(prompt, request_id="warm", max_tokens=1, prompt_logprobs=1)
    rig.run()
    reference = lab.rig(max_num_batched_tokens=64)
    reference.submit(prompt, request_id="r", max_tokens=1, prompt_logprobs=1)
    reference.run()
    cold, warm = rig.prompt_logprobs["cold", 0], rig.prompt_logprobs["warm", 0]
    assert cold == warm == reference.prompt_logprobs["r", 0]
    assert [entry.token_id for entry in cold] == prompt[1:]


def test_prompt_logprobs_do_not_read_the_cache_but_fill_it(lab):
    rig = lab.rig()
    rig.submit(range(9), max_tokens=1, prompt_logprobs=0)
    rig.submit(range(20, 29), max_tokens=1)
    rig.run()
    (scored,) = rig.submit(range(20, 29), max_tokens=1, prompt_logprobs=0)
    (plain,) = rig.submit(range(9), max_tokens=1)
    rig.run()
    assert (scored.num_cached_tokens, plain.num_cached_tokens) == (0, 8)
    assert rig.scheduler.prefix_queries_tokens == 9 + 9, "the two scored prompts looked nothing up"


def test_prompt_logprobs_are_given_once_despite_preemption(lab):
    """The scored prompt is preempted half-way; what it has given it does not give again, and it may reuse that much."""
    rig = lab.rig(num_blocks=9, max_num_batched_tokens=4, max_num_seqs=4)
    rig.submit((1, 2, 3), request_id="old", max_tokens=20)
    rig.step()
    (scored,) = rig.submit(range(50, 76), request_id="scored", max_tokens=3, prompt_logprobs=0)
    rig.run()
    assert scored.preemptions > 0
    starts = [s.start for p in rig.plans for s in p.sequences if s.sequence_id == scored.sequence_id]
    resumed_at = next(later for earlier, later in itertools.pairwise(starts) if later <= earlier)
    assert resumed_at > 0
    assert [entry.token_id for entry in rig.prompt_logprobs["scored", 0]] == list(range(51, 76))


def test_only_the_first_sample_gives_prompt_logprobs(lab):
    rig = lab.rig()
    rig.submit(range(9), request_id="a", max_tokens=2, prompt_logprobs=0, n=3)
    rig.run()
    assert [len(rig.prompt_logprobs["a", index]) for index in range(3)] == [8, 0, 0]
