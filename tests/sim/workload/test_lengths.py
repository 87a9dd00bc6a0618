import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from argosy.sim.workload.lengths import cut_lengths, scaled_lengths
from argosy.sim.workload.trace_request import Segment, TraceRequest, segment_tokens

FACTORS = st.floats(0.02, 4)
COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def request(counts: list[int], output_tokens: int = 10, first_id: int = 0) -> TraceRequest:
    return TraceRequest(
        "r", 1.0, tuple(Segment(first_id + i, n) for i, n in enumerate(counts)), output_tokens, "s", "t", 1, 2.0
    )


@given(counts=COUNTS, factor=FACTORS, output_factor=FACTORS)
def test_lengths_scale_as_a_whole(counts: list[int], factor: float, output_factor: float):
    scaled = scaled_lengths(request(counts), factor, output_factor)
    assert scaled.num_prompt_tokens == max(1, round(sum(counts) * factor))
    assert scaled.output_tokens == max(1, round(10 * output_factor))
    assert (scaled.request_id, scaled.arrival_s, scaled.session_id, scaled.tenant) == ("r", 1.0, "s", "t")


@given(shared=COUNTS, tails=st.tuples(COUNTS, COUNTS), factor=FACTORS)
def test_prompts_that_shared_a_prefix_still_do(shared: list[int], tails: tuple[list[int], list[int]], factor: float):
    prefix = tuple(Segment(i, n) for i, n in enumerate(shared))
    prompts = [(*prefix, *(Segment(1000 * (k + 1) + i, n) for i, n in enumerate(tail))) for k, tail in enumerate(tails)]
    first, second = (
        scaled_lengths(TraceRequest("r", 0.0, prompt, 1), factor, factor).token_ids(1 << 32) for prompt in prompts
    )
    common = round(sum(shared) * factor)
    assert first[:common] == second[:common]
    assert common in (len(first), len(second)) or first[: common + 1] != second[: common + 1] or common == 0


@given(blocks=st.integers(1, 6), tail=st.integers(1, 16), said=st.integers(1, 60), more=st.integers(1, 30), factor=FACTORS)
def test_a_turn_still_repeats_the_answer_before_it(blocks: int, tail: int, said: int, more: int, factor: float):
    """Blocks of 16 tokens as the recorder writes them: the prompt ends within a block, and the answer goes on in it."""

    def pieces(begin: int, end: int) -> tuple[Segment, ...]:
        cuts = [begin, *(p for p in range(begin + 1, end) if p % 16 == 0), end]
        return tuple(Segment(low // 16, high - low, low % 16) for low, high in itertools.pairwise(cuts))

    end_of_prompt = 16 * blocks + tail
    # A prompt that rounds to nothing keeps one token, which moves its answer.
    assume(round(end_of_prompt * factor) > 0)
    end = end_of_prompt + said
    first = TraceRequest("a", 0.0, pieces(0, end_of_prompt), said, output_segments=pieces(end_of_prompt, end))
    # The next turn's whole blocks are those of the first; the last one may be another's.
    whole = end // 16 * 16
    second = TraceRequest("b", 0.0, (*pieces(0, whole), Segment(999, more)), 1)
    first, second = (scaled_lengths(turn, factor, factor) for turn in (first, second))
    heard = first.token_ids(1 << 32) + first.answer_token_ids(1 << 32)
    common = round(whole * factor)
    assert heard[:common] == second.token_ids(1 << 32)[:common]


def test_an_answer_scaled_apart_from_prompts_loses_its_content():
    said = TraceRequest("r", 0.0, (Segment(1, 10),), 20, output_segments=(Segment(2, 20),))
    apart = scaled_lengths(said, 1.0, 0.5)
    assert (apart.output_tokens, apart.output_segments) == (10, ())
    assert scaled_lengths(said, 0.5, 0.5).output_segments == (Segment(2, 10),)


@given(counts=COUNTS, limit=st.integers(1, 400))
def test_a_cut_prompt_is_the_beginning(counts: list[int], limit: int):
    whole = request(counts)
    cut = cut_lengths(whole, limit, None)
    assert cut.token_ids(50_000) == whole.token_ids(50_000)[:limit]
    assert cut.output_tokens == whole.output_tokens


@pytest.mark.parametrize("limit", [1, 4, 9, 10, 11])
def test_a_cut_answer_is_the_beginning(limit: int):
    for whole in (
        request([5]),
        TraceRequest("r", 0.0, (Segment(1, 5),), 10, output_segments=(Segment(2, 4), Segment(3, 6))),
    ):
        cut = cut_lengths(whole, None, limit)
        assert cut.output_tokens == min(limit, 10)
        assert cut.answer_token_ids(50_000) == whole.answer_token_ids(50_000)[:limit]
        assert cut.segments == whole.segments


def test_what_is_short_enough_stays_the_same_object():
    whole = request([5])
    assert cut_lengths(whole, 5, 10) is whole
    assert segment_tokens(cut_lengths(whole, 3, 10).segments, 100) == whole.token_ids(100)[:3]
