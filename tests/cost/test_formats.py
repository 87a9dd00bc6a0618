import pytest

from argosy.cost.catalogue import find_device
from argosy.cost.device import Precision
from argosy.cost.formats import WeightFormat, base_precision, precisions_for, supported_kv, supported_weights
from argosy.errors import ConfigError


def test_formats_follow_the_arithmetic_a_device_has():
    hopper, ampere, blackwell = (supported_weights(find_device(name)) for name in ("H100 SXM", "A100 SXM 80GB", "B200 SXM"))
    assert WeightFormat.FP8 in hopper
    assert WeightFormat.FP4 not in hopper
    assert WeightFormat.FP8 not in ampere
    assert {WeightFormat.FP8_WEIGHT_ONLY, WeightFormat.INT8} <= set(ampere)
    assert WeightFormat.FP4 in blackwell


def test_weight_only_formats_compute_in_sixteen_bit():
    device = find_device("A100 SXM 80GB")
    assert precisions_for(device, WeightFormat.INT4_WEIGHT_ONLY, Precision.BF16).compute is Precision.BF16
    assert precisions_for(device, WeightFormat.INT8, Precision.BF16).compute is Precision.INT8


def test_a_device_without_bf16_runs_in_fp16():
    turing = find_device("T4")
    assert base_precision(turing) is Precision.FP16
    assert precisions_for(turing, WeightFormat.BASE, Precision.FP16).activations is Precision.FP16


def test_kv_takes_one_byte_only_where_there_is_arithmetic_for_it():
    assert supported_kv(find_device("H100 SXM")) == (Precision.BF16, Precision.FP8)
    assert supported_kv(find_device("A100 SXM 80GB")) == (Precision.BF16, Precision.INT8)


def test_a_format_that_the_device_lacks_is_refused_with_those_it_has():
    with pytest.raises(ConfigError, match=r"A100.*no fp8.*int8"):
        precisions_for(find_device("A100 SXM 80GB"), WeightFormat.FP8, Precision.BF16)
