import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.adaptation import adapter_parameters, context_storage, lora_parameters, update_saving
from argosy.errors import ConfigError


def test_ten_contexts_as_adapters_of_one_model():
    storage = context_storage(10, 40e6, 0.2e6)
    assert storage.separate_bytes == 400e6
    assert storage.shared_bytes == pytest.approx(42e6)
    assert storage.saving == pytest.approx(9.5, rel=0.005)
    assert storage.per_context_ratio == pytest.approx(200)


def test_rank_four_update_of_a_square_matrix():
    assert lora_parameters(768, 768, 4) == 6144
    assert 768 * 768 == 589_824


def test_bottleneck_adapter_with_and_without_biases():
    assert adapter_parameters(768, 64) == 2 * 768 * 64 + 768 + 64
    assert adapter_parameters(768, 64, bias=False) == 2 * 768 * 64


def test_an_update_against_the_raw_data():
    assert update_saving(2.5e6, 200e6) == pytest.approx(80)


@given(st.integers(1, 4096), st.integers(1, 4096), st.data())
def test_a_low_rank_update_is_its_two_factors(rows, columns, data):
    rank = data.draw(st.integers(1, min(rows, columns)))
    assert lora_parameters(rows, columns, rank) == rows * rank + rank * columns


@given(st.integers(1, 1000), st.floats(1e3, 1e9))
def test_saving_never_exceeds_the_ratio_of_sizes_nor_the_number_of_contexts(contexts, adapter):
    storage = context_storage(contexts, 1e9, adapter)
    assert storage.saving <= min(contexts, storage.per_context_ratio) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: lora_parameters(768, 768, 0), "rank"),
        (lambda: lora_parameters(8, 768, 9), "rank 9"),
        (lambda: adapter_parameters(-1, 4), "hidden"),
        (lambda: context_storage(0, 1, 1), "contexts"),
        (lambda: context_storage(1, 1, float("nan")), "adapter_bytes"),
        (lambda: update_saving(0, 1), "update_bytes"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
