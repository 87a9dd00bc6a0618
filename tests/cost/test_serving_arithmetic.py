"""Worked figures of serving: each is computed by hand in published texts."""

import math

import pytest

from argosy.cost.catalogue import find_model
from argosy.cost.device import Precision
from argosy.cost.model_arithmetic import kv_bytes, kv_bytes_per_token
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, ModelSpec
from argosy.cost.parallel import Precisions
from argosy.cost.serving_arithmetic import (
    KvSource,
    chunk_tokens,
    concurrent_sequences,
    decode_bound_s,
    devices_needed,
    imbalance_utilisation,
    shared_prefix_kv_bytes,
    tensor_parallel_layer_s,
    time_per_output_token_s,
    transfer_or_rebuild,
    transfer_s,
    usable_kv_bytes,
)
from argosy.errors import ConfigError

GB = 1e9
HEADS = {"heads": 64, "head_dim": 128}
MHA, GQA = (
    ModelSpec(
        f"80 layers, {kv} KV heads", 32000, 8192, ((80, Layer(Gqa(kv_heads=kv, **HEADS), DenseFfn(28672))),), False, 32768
    )
    for kv in (64, 8)
)


def weights(billions, precision):
    return Precisions(weights=precision).matrix_bytes(billions * GB)


def test_kv_of_one_request_of_4096_tokens():
    full, grouped = kv_bytes(MHA, 4096, Precision.FP16), kv_bytes(GQA, 4096, Precision.FP16)
    assert full == pytest.approx(10.737 * GB, rel=1e-4)
    assert 8 * full == pytest.approx(85.9 * GB, rel=1e-3)
    assert kv_bytes(MHA, 4096, Precision.INT4) == pytest.approx(2.684 * GB, rel=1e-3)
    assert grouped == pytest.approx(1.342 * GB, rel=1e-3)
    assert full == 8 * grouped


@pytest.mark.parametrize(
    ("precision", "gigabytes"), [(Precision.BF16, 687.2), (Precision.INT8, 343.6), (Precision.INT4, 171.8)]
)
def test_kv_of_eight_long_requests(precision, gigabytes):
    assert 8 * kv_bytes(MHA, 32768, precision) == pytest.approx(gigabytes * GB, rel=1e-3)


@pytest.mark.parametrize(
    ("weight", "cache", "batch"), [(Precision.FP16, Precision.FP16, 16), (Precision.INT4, Precision.INT8, 53)]
)
def test_largest_batch_on_four_devices_of_80_gigabytes(weight, cache, batch):
    usable = usable_kv_bytes(80 * GB, weights(70, weight) / 4, 0, 0, kv_fraction=1.0)
    assert usable == {Precision.FP16: 45 * GB, Precision.INT4: 71.25 * GB}[weight]
    assert concurrent_sequences(usable, kv_bytes(MHA, 4096, cache, tensor=4)) == batch


def test_one_device_holds_16_short_sequences_beside_int4_weights():
    usable = usable_kv_bytes(80 * GB, weights(70, Precision.INT4), 0, 0, kv_fraction=1.0)
    assert concurrent_sequences(usable, kv_bytes(MHA, 1024, Precision.FP16)) == 16


def test_a_prefix_shared_by_a_thousand_users():
    apart, shared = shared_prefix_kv_bytes(1000, 2000, 500, kv_bytes_per_token(MHA, Precision.FP16))
    assert apart == pytest.approx(6.554e12, rel=1e-3)
    assert shared == pytest.approx(1.316e12, rel=1e-3)
    assert 1 - shared / apart == pytest.approx(0.7992)


def test_a_system_prompt_of_2000_tokens():
    assert kv_bytes(GQA, 2000, Precision.FP16) == pytest.approx(0.655 * GB, rel=1e-3)
    assert kv_bytes(MHA, 2000, Precision.FP16) == pytest.approx(5.243 * GB, rel=1e-3)


def test_nodes_for_671_billion_parameters_in_fp8():
    assert devices_needed(weights(671, Precision.FP8), 8 * 80 * GB) == 2


def test_usable_kv_is_nine_tenths_of_what_is_left():
    assert usable_kv_bytes(80 * GB, 35 * GB, 2 * GB, 3 * GB) == pytest.approx(36 * GB)
    assert concurrent_sequences(36 * GB, 4096 * kv_bytes_per_token(GQA, Precision.FP16)) == 26


def test_weights_that_do_not_fit_leave_a_negative_rest():
    assert usable_kv_bytes(80 * GB, 140 * GB, 1 * GB, 1 * GB) == -62 * GB
    assert concurrent_sequences(-62 * GB, 1.0) == 0


def test_decode_of_a_sparse_model_over_two_nodes():
    assert decode_bound_s(37 * GB, 3.35e12, 16) * 1e3 == pytest.approx(0.690, abs=5e-4)
    assert 1 / (decode_bound_s(37 * GB, 3.35e12, 16) + 0.3e-3) == pytest.approx(1000, rel=0.02)


def test_dense_against_active_bytes():
    assert weights(400, Precision.FP16) / weights(37, Precision.FP16) == pytest.approx(10.8, rel=0.005)


def test_tensor_parallel_layer():
    one, eight = (tensor_parallel_layer_s((12e-3, 18e-3), tensor, 0.3e-3) for tensor in (1, 8))
    assert eight * 1e3 == pytest.approx(4.35)
    assert one / eight == pytest.approx(6.90, rel=0.005)
    assert (80 * one * 1e3, 80 * eight * 1e3) == (pytest.approx(2400), pytest.approx(348))


def test_chunk_that_fits_a_slice():
    assert chunk_tokens(20e-3, 10_000) == 200


def test_migrating_a_cache():
    cache = kv_bytes(GQA, 4096, Precision.FP16)
    whole, shard = transfer_s(cache, 12.5e9), transfer_s(cache, 12.5e9, shards=8)
    assert (whole * 1e3, shard * 1e3) == (pytest.approx(107.4, abs=0.05), pytest.approx(13.42, abs=0.005))
    assert transfer_or_rebuild(whole, 0.5) is KvSource.TRANSFER
    assert transfer_or_rebuild(whole, 0.1) is KvSource.REBUILD


@pytest.mark.parametrize(("imbalance", "utilisation"), [(0.2, 0.833), (0.5, 0.667), (0, 1)])
def test_utilisation_under_imbalance(imbalance, utilisation):
    assert imbalance_utilisation(imbalance) == pytest.approx(utilisation, abs=5e-4)


def test_time_per_output_token_has_no_meaning_for_one_token():
    assert time_per_output_token_s(1.0, 1.0, 1) is None
    assert time_per_output_token_s(1.5, 1.0, 2) == 0.5
    assert time_per_output_token_s(2.0, 1.0, 11) == pytest.approx(0.1)


def test_catalogue_model_agrees_with_the_hand_made_one():
    assert kv_bytes(find_model("Llama-3.1-70B"), 4096, Precision.FP16) == kv_bytes(GQA, 4096, Precision.FP16)


@pytest.mark.parametrize(
    "call",
    [
        lambda: usable_kv_bytes(math.nan, 0, 0, 0),
        lambda: concurrent_sequences(1.0, 0.0),
        lambda: shared_prefix_kv_bytes(0, 1, 1, 1.0),
        lambda: chunk_tokens(-1.0, 100),
        lambda: transfer_s(1.0, 0.0),
        lambda: decode_bound_s(1.0, 1.0, devices=0),
        lambda: time_per_output_token_s(1.0, 0.5, 0),
        lambda: tensor_parallel_layer_s((1.0, -1.0), 8, 0.1),
        lambda: imbalance_utilisation(-0.5),
    ],
)
def test_nonsense_is_refused(call):
    with pytest.raises(ConfigError, match="must be"):
        call()
