import dataclasses

import pytest

from argosy.cost.catalogue import find_device, find_model
from argosy.cost.device import Precision
from argosy.cost.formats import WeightFormat
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, ModelSpec
from argosy.cost.quantity import Dimension, Grade, Quantity
from argosy.cost.serving_memory import MemoryConstants
from argosy.planner.engines import Engine, Misfit, engines, request_tokens
from argosy.planner.offers import DeviceOffer, resolve
from argosy.planner.serving_question import DraftModel, SearchSpace
from argosy.planner.traffic import PrefixReuse, Traffic


def nothing() -> Quantity:
    return Quantity(0.0, Dimension.BYTES, "test", Grade.DERIVED)


@pytest.fixture
def classic(ask):
    """70 billion parameters with full multi-head attention, on 80 GB (decimal) devices without overheads."""
    layer = Layer(Gqa(64, 64, 128), DenseFfn(24680))
    spec = ModelSpec("classic 70B", 1000, 8192, ((80, layer),), False, 8192)
    device = dataclasses.replace(find_device("H100 SXM"), memory=Quantity(80e9, Dimension.BYTES, "test", Grade.DERIVED))
    question = ask(
        model=spec,
        traffic=Traffic.of(0.1, 4000, 96),
        devices=(DeviceOffer(device, low_usd_per_h=1, high_usd_per_h=1),),
        space=SearchSpace(tensor=(4,), pipeline=(1,), chunk_tokens=(1,)),
        memory=MemoryConstants(nothing(), nothing(), nothing(), kv_fraction=1.0),
    )
    return question, spec


def only(question, spec, **space: object) -> Engine:
    asked = dataclasses.replace(question, space=dataclasses.replace(question.space, **space))
    (engine,) = engines(asked, spec, None, resolve(asked.devices[0]))
    assert isinstance(engine, Engine)
    return engine


def test_largest_batch_of_70_billion_on_four_devices_in_16_bit(classic):
    """35 GB of weights leave 45 GB each; 4096 tokens take 10.737 GB over four devices."""
    question, spec = classic
    engine = only(question, spec, weights=(WeightFormat.BASE,), kv=(Precision.BF16,))
    assert engine.admission(question.traffic, 1).sequences == 16


def test_largest_batch_of_70_billion_on_four_devices_with_int4_weights_and_one_byte_kv(classic):
    """8.75 GB of weights would leave room for 53; scales of groups of 128 take 0.27 GB, which is one less."""
    question, spec = classic
    engine = only(question, spec, weights=(WeightFormat.INT4_WEIGHT_ONLY,), kv=(Precision.FP8,))
    assert engine.admission(question.traffic, 1).sequences == 52


def test_what_does_not_fit_is_named_with_what_is_missing(ask):
    question = ask(model="Llama-3.1-70B", space=SearchSpace(tensor=(1,), pipeline=(1,), weights=(WeightFormat.BASE,)))
    found = list(engines(question, find_model("Llama-3.1-70B"), None, resolve(question.devices[0])))
    assert found
    assert all(isinstance(misfit, Misfit) and misfit.shortfall_bytes > 50e9 for misfit in found)
    assert "out of memory by" in found[0].why


def test_long_outputs_reserve_more_than_the_mean():
    assert request_tokens(Traffic.of(1, 1000, 100)) == 1100
    assert request_tokens(Traffic.of(1, 1000, 100, output_cv=1.0)) == 1200


def test_a_shared_prefix_is_stored_once(ask):
    """With three quarters of each prompt shared a request needs that much less, and the prefix once."""
    question = ask(traffic=Traffic.of(1, 4000, 100, prefix_share=0.75), space=SearchSpace(tensor=(1,), pipeline=(1,)))
    found = list(engines(question, find_model("Llama-3.1-8B"), None, resolve(question.devices[0])))
    plain, caching = found[0], found[1]
    assert (plain.caching, caching.caching) == (False, True)
    chunk = min(plain.memories)
    before, after = (engine.admission(question.traffic, chunk) for engine in (plain, caching))
    assert after.hit_share == 0.75
    assert after.shared_tokens == 3000
    memory = plain.memories[chunk].stages[0]
    expected = (memory.usable_kv_bytes - 3000 * memory.token_bytes) / ((4112 - 3008) * memory.token_bytes)
    assert after.sequences == int(expected)
    assert before.sequences == int(memory.usable_kv_bytes / (4112 * memory.token_bytes))


def test_a_prefix_set_too_large_is_kept_in_part(ask):
    reuse = PrefixReuse(0.5, 1e9)
    traffic = dataclasses.replace(Traffic.of(1, 4000, 100), prefix=reuse)
    question = ask(traffic=traffic, space=SearchSpace(tensor=(1,), pipeline=(1,), prefix_caching=(True,)))
    engine = next(iter(engines(question, find_model("Llama-3.1-8B"), None, resolve(question.devices[0]))))
    admission = engine.admission(traffic, min(engine.memories))
    stage = engine.memories[min(engine.memories)].stages[0]
    assert admission.resident_tokens * stage.token_bytes == pytest.approx(stage.usable_kv_bytes / 2)
    assert admission.hit_share / 0.5 == pytest.approx(admission.resident_tokens / 1e9)


def test_a_draft_takes_weights_and_kv(ask):
    question = ask(draft=DraftModel("Llama-3.2-1B", 0.7, (3,)), space=SearchSpace(tensor=(1,), pipeline=(1,)))
    draft = find_model("Llama-3.2-1B")
    found = list(engines(question, find_model("Llama-3.1-8B"), draft, resolve(question.devices[0])))
    plain, drafted = found[0], found[1]
    assert drafted.speculation is not None
    assert drafted.step_width == 4
    chunk = min(plain.memories)
    assert drafted.admission(question.traffic, chunk).sequences < plain.admission(question.traffic, chunk).sequences
