import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.edge_memory import (
    TRAINING_OVER_INFERENCE,
    Adaptation,
    AdaptationMethod,
    EdgeLayer,
    adaptation_memory,
    bytes_per_row,
    embedding_table_bytes,
    training_over_inference,
)
from argosy.cost.zero import Optimizer, state_bytes
from argosy.errors import ConfigError

TWELVE = [EdgeLayer(768, 768, positions=128, nonlinear_elements=768 * 128, nonlinear_bytes=1 / 8)] * 12
METHODS = list(AdaptationMethod)


def test_training_needs_four_to_twelve_times_inference_and_adam_about_nine():
    assert (TRAINING_OVER_INFERENCE.low, TRAINING_OVER_INFERENCE.high) == (4, 12)
    adam = state_bytes(Optimizer.ADAM, mixed_precision=False)
    assert training_over_inference(adam, inference_bytes_per_parameter=4, activation_share=0) == 4
    assert training_over_inference(adam, inference_bytes_per_parameter=4, activation_share=5) == 9


def test_full_adaptation_of_one_layer_counted_by_hand():
    memory = adaptation_memory([EdgeLayer(10, 20, positions=3)], Adaptation(AdaptationMethod.FULL), batch=2)
    parameters = 10 * 20 + 20
    assert memory.trained_parameters == parameters
    assert memory.weight_bytes == memory.gradient_bytes == 4 * parameters
    assert memory.optimizer_bytes == 8 * parameters
    assert memory.activation_bytes == 2 * 10 * 3 * 4
    assert memory.inference_bytes == 4 * parameters + 4 * 30 * 3
    assert memory.total_bytes == 16 * parameters + 240
    assert memory.over_inference == memory.total_bytes / memory.inference_bytes


def test_inference_holds_the_widest_layer():
    memory = adaptation_memory([EdgeLayer(10, 20), EdgeLayer(20, 30), EdgeLayer(30, 5)], Adaptation(AdaptationMethod.BIAS))
    assert memory.inference_bytes - memory.weight_bytes == 4 * (20 + 30)


def test_biases_need_only_the_masks_of_what_is_not_linear():
    memory = adaptation_memory(TWELVE, Adaptation(AdaptationMethod.BIAS), batch=4)
    assert memory.trained_parameters == 12 * 768
    assert memory.activation_bytes == 12 * 4 * 768 * 128 / 8


def test_low_rank_updates_keep_inputs_but_few_moments():
    full = adaptation_memory(TWELVE, Adaptation(AdaptationMethod.FULL))
    lora = adaptation_memory(TWELVE, Adaptation(AdaptationMethod.LORA, rank=4))
    assert lora.trained_parameters == 12 * 6144
    assert lora.activation_bytes - full.activation_bytes == 12 * 4 * 128 * 4
    assert lora.optimizer_bytes < full.optimizer_bytes / 90
    assert lora.weight_bytes - full.weight_bytes == 4 * lora.trained_parameters


def test_adapters_keep_their_own_inputs():
    memory = adaptation_memory([EdgeLayer(10, 20, positions=3)], Adaptation(AdaptationMethod.ADAPTERS, bottleneck=5))
    assert memory.trained_parameters == 2 * 20 * 5 + 25
    assert memory.activation_bytes == (20 + 10) * 3 * 4


def test_sparse_updates_keep_nothing_before_the_layers_they_touch():
    sparse = Adaptation(AdaptationMethod.SPARSE, trained_layers=3, trained_channels=0.25)
    memory = adaptation_memory(TWELVE, sparse)
    assert memory.trained_parameters == 3 * (768 * 192 + 192)
    full = adaptation_memory(TWELVE, Adaptation(AdaptationMethod.FULL))
    assert memory.activation_bytes == full.activation_bytes * 3 / 12
    whole = adaptation_memory(TWELVE, Adaptation(AdaptationMethod.SPARSE))
    assert whole == full


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 32), st.integers(1, 6), st.integers(1, 8))
def test_full_training_needs_the_most_and_batches_scale_activations_alone(inputs, outputs, positions, count, batch):
    layers = [EdgeLayer(inputs, outputs, positions)] * count
    rank = min(inputs, outputs, 2)
    memories = {
        method: adaptation_memory(layers, Adaptation(method, rank=rank, bottleneck=1), batch=batch) for method in METHODS
    }
    full = memories[AdaptationMethod.FULL]
    assert memories[AdaptationMethod.BIAS].total_bytes <= full.total_bytes
    assert memories[AdaptationMethod.SPARSE].total_bytes <= full.total_bytes
    doubled = adaptation_memory(layers, Adaptation(AdaptationMethod.FULL), batch=2 * batch)
    assert doubled.total_bytes - full.total_bytes == pytest.approx(full.activation_bytes)


def test_table_of_ten_trillion_rows_is_never_one_dense_table():
    dense = embedding_table_bytes(10e12, 128, 1)
    assert dense / 1e12 == pytest.approx(1280)
    assert bytes_per_row(100e12, 10e12) == 10 < 128


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: EdgeLayer(0, 1), "inputs"),
        (lambda: EdgeLayer(1, 1, nonlinear_elements=-1), "nonlinear_elements"),
        (lambda: Adaptation(AdaptationMethod.LORA, rank=0), "rank"),
        (lambda: Adaptation(AdaptationMethod.SPARSE, trained_channels=1.5), "trained_channels"),
        (lambda: Adaptation(AdaptationMethod.SPARSE, trained_layers=0), "trained_layers"),
        (lambda: Adaptation(AdaptationMethod.FULL, trained_layers=2), "not of full"),
        (lambda: adaptation_memory([], Adaptation(AdaptationMethod.FULL)), "at least one layer"),
        (lambda: adaptation_memory(TWELVE, Adaptation(AdaptationMethod.FULL), batch=0), "batch"),
        (
            lambda: adaptation_memory(TWELVE, Adaptation(AdaptationMethod.SPARSE, trained_layers=13)),
            "trained_layers 13",
        ),
        (lambda: adaptation_memory([EdgeLayer(2, 2)], Adaptation(AdaptationMethod.LORA, rank=4)), "rank 4"),
        (lambda: embedding_table_bytes(1, 0, 1), "dimension"),
        (lambda: embedding_table_bytes(float("nan"), 1, 1), "rows"),
        (lambda: bytes_per_row(1, 0), "rows"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
