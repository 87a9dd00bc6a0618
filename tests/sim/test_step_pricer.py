"""The incremental price of a step equals the vectorised model's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.cost.step_time_model import StepTimeModel
from argosy.sim.step_pricer import Chunk, StepPricer, StepShape

# Dense; windows and experts; latent attention and experts.
DEPLOYMENTS = {
    "dense": ("Llama-3.1-70B", {"tensor": 4}),
    "windows": ("gpt-oss-120b", {"tensor": 2}),
    "latent": ("DeepSeek-V3", {"tensor": 8}),
}
CONTEXTS = st.lists(st.integers(20, 9000), min_size=0, max_size=12)
CHUNKS = st.lists(st.tuples(st.integers(2, 3000), st.integers(0, 5000), st.booleans()), max_size=3)


@pytest.fixture(scope="module")
def pricers(sim):
    made = {}
    for name, (model, plan) in DEPLOYMENTS.items():
        one = sim.model(model, **plan)
        overlapping = one.constants.replace(overlap_fraction=0.4, layer_s=1e-6)
        made[name] = StepPricer(StepTimeModel(one.deployment, one.device, one.topology, overlapping))
    return made


def shape_of(pricer: StepPricer, contexts: list[int], chunks: list[tuple[int, int, bool]] = (), width: int = 1) -> StepShape:
    new = range(1, width + 1)
    seen = tuple(
        sum(c + n if limit is None else min(c + n, limit) for c in contexts for n in new) for limit in pricer.limits
    )
    read = tuple(
        sum(c + width if limit is None else min(c + width, limit + width - 1) for c in contexts) for limit in pricer.limits
    )
    return StepShape(len(contexts), width, seen, read, tuple(Chunk(*chunk) for chunk in chunks))


@pytest.mark.parametrize("name", DEPLOYMENTS)
@settings(max_examples=60, deadline=None)
@given(contexts=CONTEXTS, chunks=CHUNKS, width=st.integers(1, 4))
def test_equals_the_vectorised_model(pricers, name, contexts, chunks, width):
    if not contexts and not chunks:
        return
    pricer = pricers[name]
    groups = [(1, width, context) for context in contexts] + [(1, new, past) for new, past, _ in chunks]
    count, new, past = (np.array(column, float)[:, None] for column in zip(*groups, strict=True))
    logits = width * len(contexts) + sum(samples for *_, samples in chunks)
    expected = pricer.model.times(count, new, past, logits).latency_s[0]
    # Where one group is bound by compute and another by memory, a group of all of them is neither; that is worth 1 %.
    assert pricer.step_s(shape_of(pricer, contexts, chunks, width)) == pytest.approx(expected, rel=1e-2)
    same = [contexts[0]] * len(contexts) if contexts else []
    groups = [(len(same), width, same[0])] if same else []
    groups += [(1, new, past) for new, past, _ in chunks]
    count, new, past = (np.array(column, float)[:, None] for column in zip(*groups, strict=True))
    expected = pricer.model.times(count, new, past, logits).latency_s[0]
    assert pricer.step_s(shape_of(pricer, same, chunks, width)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", DEPLOYMENTS)
@settings(max_examples=30, deadline=None)
@given(contexts=st.lists(st.integers(20, 9000), min_size=1, max_size=12), steps=st.integers(1, 40))
def test_a_run_of_decode_steps_is_priced_bit_for_bit_like_its_steps(pricers, name, contexts, steps):
    pricer = pricers[name]
    shapes = [shape_of(pricer, [context + step for context in contexts]) for step in range(steps)]
    seen = [np.array([shape.seen[index] for shape in shapes], np.float64) for index in range(len(pricer.limits))]
    assert pricer.decode_run_s(len(contexts), seen).tolist() == [pricer.step_s(shape) for shape in shapes]


def test_stages_are_kept_busy_by_micro_batches(sim):
    model = sim.model("Llama-3.1-70B", tensor=2, pipeline=2)
    pricer = StepPricer(model)
    halves = model.times([[4.0]], [[1.0]], [[500.0]], 4.0)
    assert pricer.step_s(shape_of(pricer, [500] * 8)) == pytest.approx(
        max(halves.latency_s[0], 2 * halves.interval_s[0]), rel=1e-9
    )
    alone = model.times([[1.0]], [[1.0]], [[500.0]], 1.0)
    assert pricer.step_s(shape_of(pricer, [500])) == pytest.approx(alone.latency_s[0], rel=1e-9)


def test_data_ranks_share_the_sequences(sim):
    model = sim.model("DeepSeek-V3", tensor=8, data=2, expert=16)
    pricer = StepPricer(model)
    half = model.times([[4.0]], [[1.0]], [[500.0]], 4.0)
    assert pricer.step_s(shape_of(pricer, [500] * 8)) == pytest.approx(half.latency_s[0], rel=1e-9)
