"""Why a sequence ends, and with which token."""

from argosy.engine.core.request import FinishReason

STOP = 99


def run_script(lab, runs, *, prompt=(1, 2, 3), **settings):
    config = settings.pop("config", {})
    rig = lab.rig(lab.ScriptedExecutor(config.get("block_size", 4), {0: list(runs)}), **config)
    rig.submit(prompt, request_id="a", **settings)
    rig.run()
    rig.assert_idle()
    return rig.output("a"), rig.endings["a", 0]


def test_eos_stops_without_a_stop_reason(lab):
    out = run_script(lab, [(7,), (STOP,)], eos_token_ids=frozenset({STOP}))
    assert out == ([7, STOP], ("stop", None))


def test_a_stop_id_stops_with_itself_as_reason(lab):
    assert run_script(lab, [(7,), (STOP,)], stop_token_ids=(STOP,)) == ([7, STOP], ("stop", STOP))


def test_an_id_that_is_both_counts_as_eos(lab):
    out = run_script(lab, [(STOP,)], stop_token_ids=(STOP,), eos_token_ids=frozenset({STOP}))
    assert out == ([STOP], ("stop", None))


def test_each_of_several_eos_ids_stops(lab):
    for eos in (1, 106):
        assert run_script(lab, [(eos,)], eos_token_ids=frozenset({1, 106})) == ([eos], ("stop", None))


def test_ignore_eos_disables_eos_but_not_stop_ids(lab):
    out = run_script(
        lab,
        [(1,), (106,), (STOP,)],
        eos_token_ids=frozenset({1, 106, STOP}),
        ignore_eos=True,
        stop_token_ids=(STOP,),
    )
    assert out == ([1, 106, STOP], ("stop", STOP))


def test_stop_ids_do_not_end_before_min_tokens(lab):
    out = run_script(lab, [(STOP,), (STOP,), (STOP,)], stop_token_ids=(STOP,), min_tokens=2, max_tokens=9)
    assert out == ([STOP] * 3, ("stop", STOP))


def test_max_tokens_one_gives_exactly_one(lab):
    assert run_script(lab, [(7,)], max_tokens=1) == ([7], ("length", "max_tokens"))


def test_stop_inside_an_accepted_run_cuts_the_rest(lab):
    out = run_script(lab, [(10, 11, STOP, 20, 21, 22)], stop_token_ids=(STOP,), max_tokens=5)
    assert out == ([10, 11, STOP], ("stop", STOP))


def test_stop_as_the_last_allowed_token_is_a_stop(lab):
    out = run_script(lab, [(10, 11, 12, 13, STOP, 22)], stop_token_ids=(STOP,), max_tokens=5)
    assert out == ([10, 11, 12, 13, STOP], ("stop", STOP))


def test_stop_beyond_max_tokens_is_length(lab):
    out = run_script(lab, [(10, 11, 12, 13, 14, STOP)], stop_token_ids=(STOP,), max_tokens=5)
    assert out == ([10, 11, 12, 13, 14], ("length", "max_tokens"))


def test_min_tokens_within_a_run(lab):
    out = run_script(lab, [(STOP, STOP, 5, STOP, 6)], stop_token_ids=(STOP,), min_tokens=3)
    assert out == ([STOP, STOP, 5, STOP], ("stop", STOP))


def test_the_context_ends_a_sequence(lab):
    out = run_script(lab, [(5,)] * 9, config={"max_model_len": 7})
    assert out == ([5] * 4, ("length", "max_model_len"))


def test_a_sequence_that_outgrows_the_pool_ends_there(lab):
    out = run_script(lab, [(5,)] * 10, prompt=range(6), max_tokens=10, config={"num_blocks": 2, "max_model_len": 99})
    assert out == ([5, 5], ("length", "kv_pool"))


def test_max_tokens_that_fill_the_pool_exactly_are_max_tokens(lab):
    out = run_script(lab, [(5,)] * 10, prompt=range(6), max_tokens=2, config={"num_blocks": 2, "max_model_len": 99})
    assert out == ([5, 5], ("length", "max_tokens"))


def test_one_outgrowing_the_pool_leaves_others_running(lab):
    rig = lab.rig(num_blocks=4, max_model_len=99)
    rig.submit(range(6), request_id="long", max_tokens=None, ignore_eos=True)
    rig.submit((1, 2), request_id="short", max_tokens=9)
    rig.run()
    rig.assert_idle()
    assert rig.endings == {("long", 0): ("length", "kv_pool"), ("short", 0): ("length", "max_tokens")}
    assert len(rig.output("long")) == 10


def test_logprobs_are_cut_with_the_tokens(lab):
    rig = lab.rig(lab.FakeExecutor(4, max_run=4))
    for seed in range(10):
        rig.submit((seed, 2, 3), request_id=str(seed), seed=seed, max_tokens=5, logprobs=0)
    while rig.scheduler.has_work:
        for event in rig.step():
            assert [entry.token_id for entry in event.logprobs] == list(event.token_ids)
    assert all(len(rig.output(str(seed))) == 5 for seed in range(10))
    assert any(len(known) > 3 + 5 for known in rig.executor.known.values()), "some run was cut"


def test_max_tokens_zero_ends_at_once(lab):
    rig = lab.rig()
    (sequence,) = rig.submit((1, 2, 3), max_tokens=0)
    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.LENGTH, "max_tokens")
    assert not rig.scheduler.has_work
    assert rig.schedule() is None


def test_max_tokens_zero_scores_the_prompt(lab):
    rig = lab.rig(max_num_batched_tokens=8)
    sequences = rig.submit(range(17), request_id="a", max_tokens=0, prompt_logprobs=0, n=2)
    assert sequences[1].finish_reason is FinishReason.LENGTH
    rig.run()
    rig.assert_idle()
    assert rig.endings["a", 0] == ("length", "max_tokens")
    assert rig.output("a") == []
    assert [entry.token_id for entry in rig.prompt_logprobs["a", 0]] == list(range(1, 17))
    assert not any(s.sample for plan in rig.plans for s in plan.sequences)


def test_max_tokens_zero_for_a_prompt_of_one_token_owes_nothing(lab):
    rig = lab.rig()
    (sequence,) = rig.submit((1,), max_tokens=0, prompt_logprobs=0)
    assert sequence.finish_reason is FinishReason.LENGTH
    assert not rig.scheduler.has_work


def test_a_failed_sequence_reports_its_error_and_others_go_on(lab):
    rig = lab.rig()
    (bad,) = rig.submit(range(8), request_id="bad", max_tokens=4)
    rig.submit(range(50, 58), request_id="good", max_tokens=4)
    rig.executor.fail.add(bad.sequence_id)
    rig.run()
    rig.assert_idle()
    assert rig.endings["bad", 0] == ("error", None)
    assert rig.errors["bad", 0] == "logits are not finite"
    assert rig.endings["good", 0] == ("length", "max_tokens")


def test_the_kv_of_a_failed_step_is_not_published(lab):
    rig = lab.rig()
    (bad,) = rig.submit(range(12), max_tokens=4)
    rig.executor.fail.add(bad.sequence_id)
    rig.run()
    assert rig.scheduler.kv.num_cached == 0
