import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.bench.load import Cut, fixed_lengths, poisson, replay, trace_lengths, warmup_load, within
from argosy.errors import ConfigError
from argosy.sim.workload.trace_request import Segment, TraceRequest

TRACE = tuple(
    TraceRequest(f"t/{i}", 10.0 + 2.0 * i, (Segment(1, 512), Segment(100 + i, 400)), 50 * (i + 1)) for i in range(4)
)


@given(st.lists(st.integers(1, 600), min_size=1, max_size=6), st.integers(1, 3000))
def test_a_cut_prompt_is_the_beginning_of_the_whole_one(sizes, limit):
    segments = tuple(Segment(i, size) for i, size in enumerate(sizes))
    kept = Cut(prompt_tokens=limit).prompt(segments)
    assert sum(s.num_tokens for s in kept) == min(limit, sum(sizes))
    assert kept[:-1] == segments[: len(kept) - 1]
    assert kept[-1].content_id == segments[len(kept) - 1].content_id


def test_lengths_of_a_trace_are_cut_and_counted():
    planned = trace_lengths(TRACE, 3, Cut(700, 80))
    assert [(p.prompt_tokens, p.output_tokens) for p in planned] == [(700, 50), (700, 80), (700, 80)]
    assert len(trace_lengths(TRACE, None, Cut())) == 4
    for count in (0, 5):
        with pytest.raises(ConfigError, match=r"within \[1, 4\]"):
            trace_lengths(TRACE, count, Cut())


def test_replayed_requests_are_due_as_in_the_trace():
    planned = replay(trace_lengths(TRACE, None, Cut()), TRACE, 4.0)
    assert [p.offset_s for p in planned] == [0.0, 0.5, 1.0, 1.5]
    assert [p.index for p in within(planned, 1.0)] == [0, 1]
    with pytest.raises(ConfigError, match="--duration"):
        within(planned, 0.0)


def test_poisson_gaps_have_the_mean_and_spread_of_an_exponential():
    offsets = [p.offset_s for p in poisson(fixed_lengths(20_000, 8, 8), 5.0, seed=3)]
    gaps = [b - a for a, b in zip([0.0, *offsets], offsets, strict=False)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((g - mean) ** 2 for g in gaps) / len(gaps))
    assert mean == pytest.approx(0.2, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.03)
    assert offsets == [p.offset_s for p in poisson(fixed_lengths(20_000, 8, 8), 5.0, seed=3)]
    assert offsets != [p.offset_s for p in poisson(fixed_lengths(20_000, 8, 8), 5.0, seed=4)]


def test_warmup_has_the_lengths_of_the_load_and_other_texts():
    warmup = warmup_load(trace_lengths(TRACE, 2, Cut()), 3)
    assert [(w.prompt_tokens, w.output_tokens) for w in warmup] == [(912, 50), (912, 100), (912, 50)]
    load = fixed_lengths(4, 8, 8)
    warmup = warmup_load(load, 3)
    assert len({s.content_id for p in (*warmup, *load) for s in p.segments}) == 7
    assert len({p.index for p in (*warmup, *load)}) == 7


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Cut(prompt_tokens=0), "--max-prompt-tokens"),
        (lambda: Cut(output_tokens=0), "--max-output-tokens"),
        (lambda: fixed_lengths(0, 1, 1), "--requests"),
        (lambda: fixed_lengths(1, 0, 1), "--input-tokens"),
        (lambda: fixed_lengths(1, 1, 0), "--output-tokens"),
        (lambda: poisson([], 0.0, 0), "--rate"),
        (lambda: poisson([], math.nan, 0), "--rate"),
        (lambda: replay([], TRACE, 0.0), "--speed"),
    ],
)
def test_numbers_out_of_range_are_named(make, named):
    with pytest.raises(ConfigError, match=named):
        make()
