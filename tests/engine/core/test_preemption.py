"""A full pool: who goes, who stays, and that it ends."""


def shortage(lab, **config):
    """Two sequences of 8 known tokens in a pool of 5 blocks of 4: one can grow to 12 tokens, then one must go."""
    rig = lab.rig(num_blocks=5, **config)
    rig.submit(range(7), request_id="a", max_tokens=12)
    rig.submit(range(100, 107), request_id="b", max_tokens=12)
    return rig


def test_the_latest_arrival_is_preempted_and_resumes(lab):
    rig = shortage(lab)
    rig.run()
    a, b = rig.sequences[0], rig.sequences[1]
    assert a.preemptions == 0
    assert b.preemptions >= 1
    assert rig.scheduler.num_preemptions == b.preemptions
    assert list(rig.endings) == [("a", 0), ("b", 0)]
    assert len(rig.output("b")) == 12


def test_the_worst_priority_is_preempted_even_if_it_came_first(lab):
    rig = lab.rig(num_blocks=5, scheduling_policy="priority")
    rig.submit(range(7), request_id="a", max_tokens=12, priority=5)
    rig.submit(range(100, 107), request_id="b", max_tokens=12, priority=0)
    rig.run()
    assert rig.sequences[0].preemptions >= 1
    assert rig.sequences[1].preemptions == 0
    assert list(rig.endings) == [("b", 0), ("a", 0)]


def test_a_preempted_sequence_goes_before_later_arrivals(lab):
    rig = shortage(lab)
    while rig.scheduler.num_preemptions == 0:
        rig.step()
    rig.submit((1,), request_id="c", max_tokens=1)
    first_step = {}
    while rig.scheduler.has_work:
        rig.step()
        for place, scheduled in enumerate(rig.plans[-1].sequences):
            first_step.setdefault(scheduled.sequence_id, (rig.plans[-1].step, place))
    assert first_step[1] < first_step[2]


def test_resumption_finds_its_own_blocks_in_the_cache(lab):
    def recomputed(caching):
        rig = lab.rig(num_blocks=6, enable_prefix_caching=caching)
        rig.submit(range(7), max_tokens=8)
        rig.submit(range(100, 107), max_tokens=12)
        rig.run()
        assert rig.scheduler.num_preemptions == 1
        return rig.executor.num_computed_tokens

    assert recomputed(True) < recomputed(False)


def test_recomputation_is_not_counted_as_prefix_queries_or_hits(lab):
    rig = shortage(lab)
    rig.run()
    assert rig.scheduler.num_preemptions > 0
    assert (rig.scheduler.prefix_queries_tokens, rig.scheduler.prefix_hits_tokens) == (14, 0)
    assert rig.sequences[1].num_cached_tokens == 0


def test_after_max_preemptions_a_sequence_reserves_its_whole_life(lab):
    rig = shortage(lab, max_preemptions=1)
    while rig.scheduler.has_work:
        rig.step()
        b = rig.sequences[1]
        if b.preemptions == 1 and b.block_table:
            assert b.protected
            assert b.capacity >= b.max_len - 1
    assert rig.scheduler.num_preemptions == 1


def test_without_any_preemption_allowed_everybody_reserves(lab):
    rig = shortage(lab, max_preemptions=0)
    rig.run()
    assert rig.scheduler.num_preemptions == 0
    assert len(rig.endings) == 2


def test_a_protected_sequence_is_passed_over_for_a_better_ranked_one(lab):
    rig = lab.rig(num_blocks=8, max_preemptions=1, scheduling_policy="priority")
    rig.submit(range(7), request_id="low", max_tokens=12, priority=9)
    (low,) = rig.sequences.values()
    low.preemptions = 1
    rig.step()
    assert low.protected
    for number in range(2):
        rig.submit(range(100 * number, 100 * number + 3), request_id=f"high{number}", max_tokens=12, priority=0)
    rig.run()
    assert low.preemptions == 1
    assert rig.scheduler.num_preemptions > 0
    assert len(rig.endings) == 3


def test_nearly_full_pool_and_a_prompt_of_half_of_it_do_not_thrash(lab):
    """A decodes with all but two blocks, B's prompt needs half the pool, a chunk is one block."""
    num_blocks = 12
    rig = lab.rig(num_blocks=num_blocks, max_num_batched_tokens=4, max_num_seqs=4, max_model_len=200)
    rig.submit(range(4 * (num_blocks - 2) - 2), request_id="a", max_tokens=8)
    while not rig.output("a"):
        rig.step()
    rig.submit(range(100, 100 + 2 * num_blocks), request_id="b", max_tokens=4)
    steps = 0
    while rig.scheduler.has_work:
        plan = rig.schedule()
        assert plan.num_tokens >= 1
        rig.commit(plan)
        steps += 1
    assert rig.scheduler.num_preemptions == 0
    assert steps <= 8 + 2 * num_blocks // 4 + 4
    assert [key[0] for key in rig.endings] == ["a", "b"]


def test_many_that_grow_together_all_end(lab):
    rig = lab.rig(num_blocks=10, max_num_seqs=8)
    for number in range(8):
        rig.submit(range(10 * number, 10 * number + 3), max_tokens=30)
    rig.run()
    rig.assert_idle()
    assert rig.scheduler.num_preemptions > 8
    assert max(s.preemptions for s in rig.sequences.values()) <= 3
