from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.step_loop import one_line
from argosy.errors import ContextLengthExceeded, EngineUnavailable, QueueFull


def text_of(deltas, request_id="r", index=0) -> str:
    return "".join(d.text for d in deltas if (d.request_id, d.index) == (request_id, index))


def last_of(deltas, request_id="r", index=0):
    ends = [d for d in deltas if (d.request_id, d.index) == (request_id, index) and d.finish_reason is not None]
    assert len(ends) == 1
    assert [d for d in deltas if (d.request_id, d.index) == (request_id, index)][-1] is ends[0]
    return ends[0]


def test_an_answer_ends_at_eos_which_counts_but_gives_no_text(make_rig):
    rig = make_rig()
    rig.add("r", b"hello", skip_special_tokens=False)
    deltas = rig.run()
    end = last_of(deltas)
    assert text_of(deltas) == "HELLO"
    assert [t for d in deltas for t in d.token_ids] == [*b"HELLO", 256]
    assert (end.finish_reason, end.stop_reason, end.num_output_tokens, end.num_prompt_tokens) == ("stop", None, 6, 5)
    rig.assert_nothing_is_held()


@pytest.mark.parametrize(("include", "text"), [(False, "AB"), (True, "AB<mark>")])
def test_a_stop_id_gives_text_only_if_it_is_wanted_in_the_output(make_rig, include, text):
    rig = make_rig([65, 66, 258, 67])
    rig.add("r", b"x", stop_token_ids=(258,), include_stop_str_in_output=include, skip_special_tokens=False)
    deltas = rig.run()
    assert text_of(deltas) == text
    assert (last_of(deltas).finish_reason, last_of(deltas).stop_reason) == ("stop", 258)


def test_include_stop_does_not_show_the_models_own_eos(make_rig):
    rig = make_rig([65, 257])
    rig.add("r", b"x", include_stop_str_in_output=True, skip_special_tokens=False)
    assert text_of(rig.run()) == "A"


@pytest.mark.parametrize(("include", "text"), [(False, ": ABC"), (True, ": ABCDEFGHIJ")])
def test_a_stop_string_over_tokens_ends_the_sequence_at_once_and_never_shows(make_rig, include, text):
    rig = make_rig(b": ABCDEFGHIJKLMNOP")
    rig.add("r", b"alphabet", stop=("DEFGHIJ",), include_stop_str_in_output=include)
    deltas = rig.run()
    assert text_of(deltas) == text
    end = last_of(deltas)
    assert (end.finish_reason, end.stop_reason, end.num_output_tokens) == ("stop", "DEFGHIJ", len(": ABCDEFGHIJ"))
    assert rig.executor.num_steps == len(": ABCDEFGHIJ")
    rig.assert_nothing_is_held()


def test_the_first_delta_carries_text_although_a_long_stop_string_is_given(make_rig):
    rig = make_rig(b"Hello world")
    rig.add("r", b"x", stop=("abcdefgh",))
    assert rig.loop.step()[0].text == "H"


def test_held_text_is_released_when_the_sequence_ends_at_its_limit(make_rig):
    rig = make_rig(b"abcdef")
    rig.add("r", b"x", stop=("abcd",), max_tokens=3)
    deltas = rig.run()
    assert [d.text for d in deltas] == ["", "", "abc"]
    assert (last_of(deltas).finish_reason, last_of(deltas).stop_reason) == ("length", "max_tokens")


def test_a_stop_string_complete_at_the_limit_is_a_stop(make_rig):
    rig = make_rig(b"abcdef")
    rig.add("r", b"x", stop=("bc",), max_tokens=3)
    end = last_of(rig.run())
    assert (end.finish_reason, end.stop_reason) == ("stop", "bc")


def test_min_tokens_keeps_stop_strings_from_being_looked_for(make_rig):
    rig = make_rig(b"abcabc")
    rig.add("r", b"x", stop=("b",), min_tokens=3)
    assert text_of(rig.run()) == "abca"


def test_a_character_in_byte_tokens_shows_whole_and_a_cut_one_as_replacement(make_rig):
    rig = make_rig("ď🔥".encode())
    rig.add("whole", b"x")
    rig.add("cut", b"x", max_tokens=5)
    deltas = rig.run()
    assert text_of(deltas, "whole") == "ď🔥"
    assert text_of(deltas, "cut") == "ď\ufffd"
    assert "\ufffd" not in "".join(d.text for d in deltas if d.finish_reason is None)


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_exactly_as_many_tokens_as_allowed(make_rig, max_tokens):
    rig = make_rig(b"abcdef")
    rig.add("r", b"x", max_tokens=max_tokens)
    deltas = rig.run()
    assert sum(len(d.token_ids) for d in deltas) == max_tokens
    assert last_of(deltas).finish_reason == "length"


def test_no_tokens_at_all_ends_without_a_step(make_rig):
    rig = make_rig()
    deltas = rig.add("r", b"hello", max_tokens=0, n=2)
    assert [(d.index, d.text, d.token_ids, d.finish_reason) for d in deltas] == [
        (0, "", (), "length"),
        (1, "", (), "length"),
    ]
    assert rig.executor.num_steps == 0
    assert rig.sink.requests[0].finish_reasons == ("length", "length")
    rig.assert_nothing_is_held()


@pytest.mark.parametrize("max_num_batched_tokens", [8, 9, 64])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_prompt_logprobs_come_once_and_whole_whatever_the_chunks_and_the_cache(make_rig, max_num_batched_tokens, max_tokens):
    rig = make_rig(max_num_batched_tokens=max_num_batched_tokens)
    prompt = bytes(range(33))
    for attempt in ("first", "again"):
        rig.add(attempt, prompt, prompt_logprobs=1, max_tokens=max_tokens, n=2)
    deltas = rig.run()
    for attempt in ("first", "again"):
        given = [d for d in deltas if d.request_id == attempt and d.prompt_logprobs is not None]
        assert len(given) == 1
        assert given[0].index == 0
        assert given[0].prompt_logprobs[0] is None
        assert [p.token_id for p in given[0].prompt_logprobs[1:]] == list(prompt[1:])
        assert given[0] is next(d for d in deltas if (d.request_id, d.index) == (attempt, 0))
    rig.assert_nothing_is_held()


def test_logprobs_are_one_per_token_and_absent_when_not_asked_for(make_rig):
    rig = make_rig(b"abc")
    rig.add("with", b"x", logprobs=0, stop=("b",))
    rig.add("without", b"x")
    deltas = rig.run()
    assert all([p.token_id for p in d.logprobs] == list(d.token_ids) for d in deltas if d.request_id == "with")
    assert all(d.logprobs is None for d in deltas if d.request_id == "without")


def test_several_sequences_of_one_prompt_share_it_and_differ(make_rig):
    rig = make_rig()
    rig.add("r", b"hello", n=4)
    deltas = rig.run()
    assert [text_of(deltas, index=i) for i in range(4)] == [f"{i}HELLO" for i in range(4)]
    assert rig.sink.requests[0].num_generated_tokens == 4 * 7
    assert rig.sink.steps[0].num_tokens < 2 * 5
    rig.assert_nothing_is_held()


@pytest.mark.parametrize("other", ["alone", "in company"])
def test_a_failure_of_one_sequence_ends_it_alone(make_rig, other):
    rig = make_rig()
    rig.executor.poisoned.add(tuple(b"bad"))
    rig.add("r", b"bad")
    if other == "in company":
        rig.add("good", b"good")
    deltas = rig.run()
    assert (last_of(deltas).finish_reason, last_of(deltas).error) == ("error", "logits are not finite")
    assert text_of(deltas, "good") == ("GOOD" if other == "in company" else "")
    assert rig.loop.is_alive
    rig.assert_nothing_is_held()


def test_a_lost_executor_ends_every_sequence_with_an_error_and_takes_nothing_more(make_rig):
    rig = make_rig()
    rig.add("r", b"hello", n=2)
    rig.add("other", b"other", stop=("ER",))
    rig.executor.fail_at = 4
    deltas = rig.run()
    ends = [last_of(deltas, *key) for key in (("r", 0), ("r", 1), ("other", 0))]
    assert all(end.finish_reason == "error" and "device lost" in end.error for end in ends)
    assert text_of(deltas, "other") == "OTH"
    assert not rig.loop.is_alive
    assert rig.loop.live_requests == 0
    assert rig.loop.step() == []
    assert rig.loop.abort("r") == []
    assert len(rig.sink.requests) == 2
    with pytest.raises(EngineUnavailable, match="device lost"):
        rig.add("late", b"late")


def test_aborting_is_idempotent_and_unknown_ids_are_ignored(make_rig):
    rig = make_rig()
    rig.add("r", b"hello", n=2)
    rig.loop.step()
    deltas = rig.loop.abort("r")
    assert [(d.index, d.finish_reason) for d in deltas] == [(0, "abort"), (1, "abort")]
    assert rig.loop.abort("r") == []
    assert rig.loop.abort("never was") == []
    rig.assert_nothing_is_held()


def test_a_full_queue_and_an_overlong_prompt_leave_nothing_behind(make_rig):
    rig = make_rig(max_waiting=1)
    rig.add("r", b"hello")
    with pytest.raises(QueueFull):
        rig.add("second", b"hello")
    with pytest.raises(ContextLengthExceeded):
        rig.add("long", bytes(500))
    assert rig.loop.live_requests == 1
    rig.run()
    rig.assert_nothing_is_held()


def test_a_sequence_that_outgrows_the_pool_ends_with_that_reason_and_others_go_on(make_rig):
    rig = make_rig(b"abcdefghijkl", num_blocks=2, block_size=4, max_model_len=64)
    rig.add("r", b"sixsix", max_tokens=10)
    rig.add("small", b"x", max_tokens=2)
    deltas = rig.run()
    assert (last_of(deltas).finish_reason, last_of(deltas).stop_reason) == ("length", "kv_pool")
    assert text_of(deltas, "small") == "ab"
    rig.assert_nothing_is_held()


def test_numbers_of_a_request_are_read_off_the_clock(make_rig):
    rig = make_rig(b"abcd", max_num_batched_tokens=8)
    rig.add("r", bytes(16), max_tokens=3)
    rig.run()
    (stats,) = rig.sink.requests
    assert (stats.num_prompt_tokens, stats.num_generated_tokens, stats.num_cached_tokens) == (16, 3, 0)
    assert (stats.queue_s, stats.time_to_first_token_s, stats.prefill_s) == (0.0, 2.0, 2.0)
    assert (stats.decode_s, stats.time_per_output_token_s, stats.e2e_s) == (2.0, 1.0, 4.0)
    assert (stats.finish_reasons, stats.n, stats.max_tokens, stats.preemptions) == (("length",), 1, 3, 0)
    assert [s.inter_token_latencies_s for s in rig.sink.steps] == [(), (), (1.0,), (1.0,)]
    assert [s.num_generated_tokens for s in rig.sink.steps] == [0, 1, 1, 1]
    assert [s.num_prefill_tokens for s in rig.sink.steps] == [8, 8, 0, 0]
    assert all(s.duration_s == 1.0 and s.kv_blocks_total == 64 for s in rig.sink.steps)


def test_a_request_aborted_while_it_waits_has_no_latencies(make_rig):
    rig = make_rig()
    rig.add("r", b"hello")
    rig.loop.abort("r")
    (stats,) = rig.sink.requests
    assert stats.finish_reasons == ("abort",)
    assert (stats.queue_s, stats.time_to_first_token_s, stats.decode_s, stats.time_per_output_token_s) == (None,) * 4


def test_the_last_request_leaving_between_steps_is_reported_as_an_idle_engine(make_rig):
    rig = make_rig()
    rig.add("r", b"hello", n=2)
    rig.loop.step()
    rig.loop.abort("r")
    last = rig.sink.steps[-1]
    assert (last.step, last.num_tokens, last.num_generated_tokens) == (0, 0, 0)
    assert (last.num_running, last.num_waiting, last.kv_blocks_held) == (0, 0, 0)


def test_broken_invariants_lose_the_engine_if_it_checks_them(make_rig):
    rig = make_rig(check_invariants=True)
    rig.add("r", b"hello")
    rig.loop.step()
    rig.loop.scheduler.kv._num_cached += 1
    (delta,) = rig.loop.step()
    assert (delta.finish_reason, rig.loop.is_alive) == ("error", False)
    assert "InvariantViolated" in delta.error


def test_prefix_hits_are_reported_once_and_as_cached_tokens(make_rig):
    rig = make_rig()
    prompt = b"twelve bytes"
    for request_id in ("cold", "warm"):
        rig.add(request_id, prompt)
        deltas = rig.run()
    assert last_of(deltas, "warm").num_cached_tokens == 8
    assert [r.num_cached_tokens for r in rig.sink.requests] == [0, 8]
    assert sum(s.num_prefix_queries for s in rig.sink.steps) == 24
    assert sum(s.num_prefix_hits for s in rig.sink.steps) == 8


def test_preemptions_change_no_text_and_are_counted(make_rig):
    rig = make_rig(num_blocks=12, block_size=4, watermark=0.0)
    prompts = {f"r{i}": bytes(97 + (i + j) % 26 for j in range(10)) for i in range(6)}
    for request_id, prompt in prompts.items():
        rig.add(request_id, prompt)
    deltas = rig.run()
    assert {r: text_of(deltas, r) for r in prompts} == {r: p.upper().decode() for r, p in prompts.items()}
    assert sum(s.num_preemptions for s in rig.sink.steps) == sum(r.preemptions for r in rig.sink.requests) > 0
    rig.assert_nothing_is_held()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(12, 40), st.sampled_from([1, 4, 16]), st.booleans())
def test_random_arrivals_and_aborts_leave_nothing_and_text_is_right(make_rig, seed, pool, block_size, caching):
    rng = random.Random(seed)
    num_blocks = max(3, pool * 4 // block_size)
    rig = make_rig(
        num_blocks=num_blocks,
        block_size=block_size,
        enable_prefix_caching=caching,
        max_num_batched_tokens=24,
        max_waiting=99,
    )
    expected, aborted, deltas = {}, set(), []
    limit = rig.admission.max_model_len
    for i in range(25):
        if rng.random() < 0.7:
            prompt = bytes(rng.choices(b"ab", k=rng.randint(1, min(20, limit - 1))))
            n = rng.choice([1, 1, 3])
            room = limit - len(prompt)
            expected[f"r{i}"] = [((str(k) if n > 1 else "") + prompt.upper().decode())[:room] for k in range(n)]
            deltas += rig.add(f"r{i}", prompt, n=n)
        if expected and rng.random() < 0.3:
            victim = rng.choice(list(expected))
            gone = rig.loop.abort(victim)
            aborted |= {(d.request_id, d.index) for d in gone}
            deltas += gone
        for _ in range(rng.randint(0, 3)):
            deltas += rig.loop.step()
        rig.loop.scheduler.check_invariants()
    deltas += rig.run()
    for request_id, texts in expected.items():
        for index, text in enumerate(texts):
            end, got = last_of(deltas, request_id, index), text_of(deltas, request_id, index)
            assert (end.finish_reason == "abort") == ((request_id, index) in aborted)
            assert text.startswith(got) if (request_id, index) in aborted else got == text
    assert len(rig.sink.requests) == len(expected)
    rig.assert_nothing_is_held()


def test_sampling_params_are_the_requests_own(make_rig):
    rig = make_rig()
    rig.add("r", b"hi", seed=5, max_tokens=1)
    rig.loop.step()
    (new,) = rig.executor.known.values()
    assert new.params == SamplingParams(seed=5, max_tokens=1)
    assert new.seed == 5


def test_an_exception_of_many_lines_is_told_in_one():
    assert one_line(MemoryError("out of memory\n  tried to allocate\n")) == "MemoryError: out of memory tried to allocate"
    assert len(one_line(RuntimeError("x" * 10_000))) <= 300
