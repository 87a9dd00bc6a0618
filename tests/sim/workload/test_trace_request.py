import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.sim.workload.trace_request import OpenLoop, Segment, TraceRequest, content_id, segment_tokens

MASK = (1 << 64) - 1
IDS = st.integers(0, MASK)


def mix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def splitmix64(seed: int, index: int) -> int:
    return mix((seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK)


def test_the_reference_is_splitmix64():
    # The generator's published check values.
    assert [splitmix64(1234567, i) for i in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(content=IDS, start=st.integers(0, 1 << 24), count=st.integers(1, 40), vocab_size=st.integers(1, 1 << 32))
def test_tokens_are_splitmix64_scaled_to_the_vocabulary(content: int, start: int, count: int, vocab_size: int):
    wanted = tuple((splitmix64(mix(content), start + i) >> 32) * vocab_size >> 32 for i in range(count))
    assert segment_tokens((Segment(content, count, start),), vocab_size) == wanted
    assert all(0 <= token < vocab_size for token in wanted)


@given(
    parts=st.lists(st.builds(Segment, IDS, st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=6),
    vocab_size=st.integers(1, 200_000),
)
def test_a_prompt_is_its_segments_one_after_the_other(parts: list[Segment], vocab_size: int):
    joined = segment_tokens(parts, vocab_size)
    assert joined == tuple(token for part in parts for token in segment_tokens((part,), vocab_size))
    request = TraceRequest("r", 0.0, tuple(parts), 1)
    assert request.token_ids(vocab_size) == joined
    assert request.num_prompt_tokens == len(joined)


def test_different_contents_differ_and_every_token_is_used():
    first, second = (segment_tokens((Segment(content, 5000),), 100) for content in (1, 2))
    same = sum(a == b for a, b in zip(first, second, strict=True))
    # Binomial(5000, 1/100): mean 50, deviation 7.
    assert 50 - 4 * 7 < same < 50 + 4 * 7
    assert set(first) == set(range(100))


def test_an_answer_without_content_has_one_of_its_own():
    first, second = TraceRequest("a", 0.0, (Segment(1, 3),), 7), TraceRequest("b", 0.0, (Segment(1, 3),), 7)
    assert len(first.answer_token_ids(50_000)) == 7
    assert first.answer_token_ids(50_000) != second.answer_token_ids(50_000)
    said = TraceRequest("a", 0.0, (Segment(1, 3),), 7, output_segments=(Segment(5, 4), Segment(6, 3)))
    assert said.answer_token_ids(50_000) == segment_tokens((Segment(5, 4), Segment(6, 3)), 50_000)


def test_content_ids_keep_parts_apart():
    assert content_id("a", "bc") != content_id("ab", "c")
    assert content_id("a", 1) == content_id("a", 1)
    assert 0 <= content_id("x") <= MASK


@pytest.mark.parametrize("segment", [(1, 0, 0), (1, 1, -1), (-1, 1, 0), (1 << 64, 1, 0)])
def test_an_impossible_segment_is_refused(segment: tuple[int, int, int]):
    with pytest.raises(ConfigError, match="a segment has"):
        Segment(*segment)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arrival_s": -0.1}, "arrival_s"),
        ({"arrival_s": math.nan}, "arrival_s"),
        ({"arrival_s": math.inf}, "arrival_s"),
        ({"segments": ()}, "at least one segment"),
        ({"output_tokens": 0}, "output_tokens"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"timeout_s": math.nan}, "timeout_s"),
        ({"output_segments": (Segment(1, 2),)}, "must hold 3 tokens"),
    ],
)
def test_an_impossible_request_is_refused(change: dict[str, object], words: str):
    fields = {"request_id": "r7", "arrival_s": 0.0, "segments": (Segment(1, 1),), "output_tokens": 3}
    with pytest.raises(ConfigError, match=f"request r7: .*{words}"):
        TraceRequest(**(fields | change))  # type: ignore[arg-type]


@pytest.mark.parametrize("vocab_size", [0, (1 << 32) + 1])
def test_an_impossible_vocabulary_is_refused(vocab_size: int):
    with pytest.raises(ConfigError, match="vocab_size"):
        segment_tokens((Segment(1, 1),), vocab_size)


def test_moving_a_request_in_time_keeps_all_else():
    request = TraceRequest("r", 1.0, (Segment(1, 2),), 3, "s", "t", 4, 5.0, (Segment(2, 3),))
    moved = request.arriving_at(9.0)
    assert moved.arrival_s == 9.0
    assert moved.arriving_at(1.0) == request


def test_an_open_loop_does_not_react():
    request = TraceRequest("r", 1.0, (Segment(1, 2),), 3)
    source = OpenLoop([request])
    assert list(source) == [request]
    assert list(source.on_finish(request, 2.0)) == []
