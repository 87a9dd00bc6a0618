import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.zero import (
    Optimizer,
    StateBytes,
    ZeroStage,
    adafactor_bytes,
    largest_model_parameters,
    model_state,
    state_bytes,
)
from argosy.errors import ConfigError

GB = 1e9
SHARDED = (ZeroStage.OPTIMIZER, ZeroStage.GRADIENTS, ZeroStage.PARAMETERS)

# Rajbhandari et al. 2020, table 1: GB per device by data-parallel degree, for stages 1, 2 and 3, in the digits printed.
TABLE_1 = {
    7.5e9: {
        1: ("120", "120", "120"),
        4: ("52.5", "41.3", "30"),
        16: ("35.6", "21.6", "7.5"),
        64: ("31.4", "16.6", "1.88"),
        256: ("30.4", "15.4", "0.47"),
        1024: ("30.1", "15.1", "0.12"),
    },
    128e9: {
        1: ("2048", "2048", "2048"),
        4: ("896", "704", "512"),
        16: ("608", "368", "128"),
        64: ("536", "284", "32"),
        256: ("518", "263", "8"),
        1024: ("513", "257", "2"),
    },
    1e12: {
        1: ("16000", "16000", "16000"),
        4: ("7000", "5500", "4000"),
        16: ("4750", "2875", "1000"),
        64: ("4187", "2218", "250"),
        256: ("4046", "2054", "62.5"),
        1024: ("4011", "2013", "15.6"),
    },
}


def printed(value: float, as_printed: str) -> set[str]:
    """`value` in as many decimals as the table shows, rounded half up and cut off: it does both."""
    decimals = len(as_printed.partition(".")[2])
    scaled = value * 10**decimals
    return {f"{int(scaled + 0.5 + 1e-9) / 10**decimals:.{decimals}f}", f"{int(scaled) / 10**decimals:.{decimals}f}"}


@pytest.mark.parametrize(
    ("parameters", "ranks", "stage", "value"),
    [
        pytest.param(parameters, ranks, stage, value, id=f"{parameters / 1e9:g}B over {ranks} stage {stage:d}")
        for parameters, rows in TABLE_1.items()
        for ranks, values in rows.items()
        for stage, value in zip(SHARDED, values, strict=True)
    ],
)
def test_model_state_per_device_to_the_last_printed_digit(parameters, ranks, stage, value):
    assert value in printed(model_state(parameters, stage, ranks).total_bytes / GB, value)


# The same paper's table 2: largest model on 32 GB devices, by model parallelism, 64 data-parallel ranks.
@pytest.mark.parametrize(
    ("stage", "billions"),
    [
        (ZeroStage.NONE, ("2", "4", "8", "16", "32")),
        (ZeroStage.OPTIMIZER, ("7.6", "15.2", "30.4", "60.8", "121.6")),
        (ZeroStage.GRADIENTS, ("14.4", "28.8", "57.6", "115.2", "230.4")),
        (ZeroStage.PARAMETERS, ("128", "256", "512", "1024", "2048")),
    ],
)
def test_largest_model_by_stage_and_model_parallelism(stage, billions):
    # The table multiplies the rounded first column.
    unit = float(billions[0])
    assert billions[0] in printed(largest_model_parameters(32 * GB, stage, 64) / 1e9, billions[0])
    for degree, value in zip((1, 2, 4, 8, 16), billions, strict=True):
        assert float(value) == pytest.approx(unit * degree)
        assert largest_model_parameters(32 * GB, stage, 64, model_parallel=degree) / 1e9 == pytest.approx(
            float(value), rel=0.006
        )


# Rajbhandari et al. 2021 ("ZeRO-Infinity"), figure 2a: layers, hidden size and binary TB of model state, at 20 bytes per
# parameter since gradients are kept in 32 bit beside the 16-bit ones.
@pytest.mark.parametrize(
    ("layers", "hidden", "terabytes"),
    [
        (80, 10240, "1.83"),
        (100, 20480, "9.16"),
        (128, 25600, "18.31"),
        (195, 65536, "182.81"),
        (315, 163840, "1845.70"),
    ],
)
def test_model_state_of_models_up_to_a_hundred_trillion_parameters(layers, hidden, terabytes):
    state = model_state(12 * layers * hidden**2, ZeroStage.NONE, 1, StateBytes(2, 2, 16))
    assert f"{state.total_bytes / 2**40:.2f}" == terabytes


@pytest.mark.parametrize(
    ("parameters", "terabytes"), [pytest.param(7e9, 0.112, id="7 B"), pytest.param(175e9, 2.8, id="175 B")]
)
def test_mixed_precision_adam_is_sixteen_bytes_per_parameter(parameters, terabytes):
    assert state_bytes(Optimizer.ADAM) == StateBytes(2, 2, 12)
    assert model_state(parameters, ZeroStage.NONE, 1).total_bytes / 1e12 == pytest.approx(terabytes, rel=0.005)


@pytest.mark.parametrize(
    ("stage", "gigabytes"),
    [
        pytest.param(ZeroStage.NONE, 120.0, id="base"),
        pytest.param(ZeroStage.OPTIMIZER, 31.4, id="stage 1"),
        pytest.param(ZeroStage.GRADIENTS, 16.6, id="stage 2"),
        pytest.param(ZeroStage.PARAMETERS, 1.875, id="stage 3"),
    ],
)
def test_seven_and_a_half_billion_over_64_ranks(stage, gigabytes):
    assert model_state(7.5e9, stage, 64).total_bytes / GB == pytest.approx(gigabytes, rel=0.005)


def test_175_billion_fully_sharded_over_1024_ranks():
    assert model_state(175e9, ZeroStage.PARAMETERS, 1024).total_bytes / GB == pytest.approx(2.734, rel=0.005)


def test_hybrid_sharding_over_all_ranks_is_full_sharding_and_over_one_is_none():
    full = model_state(1e9, ZeroStage.PARAMETERS, 64)
    assert model_state(1e9, ZeroStage.PARAMETERS, 64, shard_ranks=64) == full
    assert model_state(1e9, ZeroStage.PARAMETERS, 64, shard_ranks=1).total_bytes == 16e9
    assert model_state(1e9, ZeroStage.PARAMETERS, 64, shard_ranks=8).total_bytes == 2e9


@pytest.mark.parametrize(
    ("optimizer", "mixed", "fp32_gradients", "expected"),
    [
        (Optimizer.ADAM, True, True, (2, 4, 12)),
        (Optimizer.ADAM, False, False, (4, 4, 8)),
        (Optimizer.SGD_MOMENTUM, True, False, (2, 2, 8)),
        (Optimizer.SGD, True, False, (2, 2, 4)),
        (Optimizer.SGD, False, False, (4, 4, 0)),
        (Optimizer.ADAM_8BIT, True, False, (2, 2, 6 + 8 / 2048)),
    ],
)
def test_state_of_other_optimizers(optimizer, mixed, fp32_gradients, expected):
    assert state_bytes(optimizer, mixed_precision=mixed, fp32_gradients=fp32_gradients) == StateBytes(*expected)


def test_adafactor_keeps_rows_and_columns_of_a_matrix_and_all_of_a_vector():
    assert adafactor_bytes([(1000, 4000)]) == 4 * 5000
    assert adafactor_bytes([(7,)]) == 28
    assert adafactor_bytes([(8, 100, 200)]) == 4 * 8 * 300
    assert adafactor_bytes([(10, 20)], first_moment=True) == 4 * (30 + 200)


@given(st.floats(1e6, 1e13), st.integers(1, 4096))
def test_each_stage_needs_no_more_than_the_one_before(parameters, ranks):
    totals = [model_state(parameters, stage, ranks).total_bytes for stage in ZeroStage]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] * ranks == pytest.approx(totals[0])


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: model_state(-1, ZeroStage.NONE, 1), "parameters"),
        (lambda: model_state(float("nan"), ZeroStage.NONE, 1), "parameters"),
        (lambda: model_state(1, ZeroStage.NONE, 0), "ranks"),
        (lambda: model_state(1, ZeroStage.PARAMETERS, 8, shard_ranks=3), "shard_ranks 3"),
        (lambda: StateBytes(-2, 2, 12), "parameter"),
        (lambda: adafactor_bytes([(0, 5)]), "dimension"),
        (lambda: largest_model_parameters(float("inf"), ZeroStage.NONE, 1), "memory_bytes"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
