"""Each check on its own, on a device that passes all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from argosy.cost.catalogue_checks import RateCheck, check_peaks, check_plausible
from argosy.cost.device import Device, Link, Precision
from argosy.cost.quantity import Dimension, Grade, Quantity
from argosy.errors import ConfigError


def amount(value: float, dimension: Dimension) -> Quantity:
    return Quantity(value, dimension, "a test", Grade.DERIVED, "2026-01-01")


def peaks(**tflops: float) -> dict[Precision, Quantity]:
    return {Precision(name): amount(value * 1e12, Dimension.FLOP_PER_S) for name, value in tflops.items()}


def link(gb_per_s: float) -> Link:
    return Link("wire", amount(gb_per_s * 1e9, Dimension.BYTES_PER_S), amount(1e-6, Dimension.SECONDS))


DEVICE = Device(
    name="chip",
    aliases=(),
    kind="gpu",
    peak=peaks(bf16=100, fp8=200, fp4=400, int8=200),
    memory=amount(80e9, Dimension.BYTES),
    memory_bandwidth=amount(1e12, Dimension.BYTES_PER_S),
    scale_up=link(100),
    scale_out=None,
    host=None,
    power=amount(300, Dimension.WATTS),
    devices_per_node=8,
)


def check(half_rate_accumulate: bool = False, **tflops: float) -> None:
    device = replace(DEVICE, peak=peaks(**tflops))
    check_peaks(device, {}, None, has_sparsity=False, half_rate_accumulate=half_rate_accumulate)


@pytest.mark.parametrize(
    "tflops",
    [
        {"bf16": 100, "fp8": 200, "fp4": 400, "int8": 200},
        {"bf16": 100, "fp8": 100},
        {"bf16": 100, "fp8": 200, "fp4": 600, "int8": 7},
        {"bf16": 100, "fp16": 100, "tf32": 50},
        {"int8": 45},
        {"fp32": 3},
    ],
)
def test_peaks_as_hardware_has_them(tflops: dict[str, float]) -> None:
    check(**tflops)


@pytest.mark.parametrize(
    ("tflops", "message"),
    [
        ({"bf16": 100, "fp8": 400}, "fp8 runs at 4.00 x bf16; dense hardware has 1 or 2"),
        ({"bf16": 200, "fp8": 100}, "fp8 runs at 0.50 x bf16"),
        ({"bf16": 100, "tf32": 100}, "bf16 runs at 1.00 x tf32; dense hardware has 2"),
        ({"bf16": 100, "fp16": 200}, "bf16 runs at 0.50 x fp16"),
        ({"fp8": 200, "fp4": 800}, "fp4 runs at 4.00 x fp8; dense hardware has 2 or 3"),
        ({"bf16": 100, "int8": 400}, "int8 at more than twice the 16-bit peak"),
        ({"fp16": 100, "int8": 400}, "int8 at more than twice the 16-bit peak"),
    ],
)
def test_ratios_that_only_sparsity_gives(tflops: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(**tflops)


def test_accumulation_at_half_rate_excuses_four_bits_only() -> None:
    check(half_rate_accumulate=True, bf16=100, fp8=200, fp4=800)
    with pytest.raises(ConfigError, match=r"fp8 runs at 4\.00 x bf16"):
        check(half_rate_accumulate=True, bf16=100, fp8=400)


def test_a_sparse_peak_is_twice_the_dense_one() -> None:
    def against(sparse_tflops: float) -> None:
        sparse = {Precision.BF16: amount(sparse_tflops * 1e12, Dimension.SPARSE_FLOP_PER_S)}
        check_peaks(DEVICE, sparse, None, has_sparsity=True, half_rate_accumulate=False)

    against(200)
    against(203)
    with pytest.raises(ConfigError, match="given as dense is the sparse peak itself"):
        against(100)
    with pytest.raises(ConfigError, match="is not half the sparse peak"):
        against(300)
    with pytest.raises(ConfigError, match="chip has 2:4 sparsity: state a sparse peak too"):
        check_peaks(DEVICE, {}, None, has_sparsity=True, half_rate_accumulate=False)


def test_a_sparse_peak_of_arithmetic_that_the_device_lacks() -> None:
    sparse = {Precision.FP32: amount(1e12, Dimension.SPARSE_FLOP_PER_S)}
    with pytest.raises(ConfigError, match="chip has no fp32 arithmetic"):
        check_peaks(DEVICE, sparse, None, has_sparsity=True, half_rate_accumulate=False)


def test_the_clock_says_what_a_peak_can_be() -> None:
    rate = RateCheck(Precision.BF16, cores=100, per_clock=1000, clock_hz=1e9)
    assert rate.flop_per_s == 1e14
    check_peaks(DEVICE, {}, rate, has_sparsity=False, half_rate_accumulate=False)
    for clock_hz in (0.9e9, 1.1e9):
        with pytest.raises(ConfigError, match="bf16 100 TFLOP/s is stated, cores x rate x clock give"):
            check_peaks(DEVICE, {}, replace(rate, clock_hz=clock_hz), has_sparsity=False, half_rate_accumulate=False)


def test_a_plausible_device_passes() -> None:
    check_plausible(DEVICE)
    check_plausible(replace(DEVICE, power=None, scale_up=None))


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (replace(DEVICE, memory_bandwidth=amount(1e9, Dimension.BYTES_PER_S)), "ridge point"),
        (replace(DEVICE, memory_bandwidth=amount(1e14, Dimension.BYTES_PER_S)), "ridge point"),
        (replace(DEVICE, peak={}), "ridge point"),
        (replace(DEVICE, memory=amount(80e12, Dimension.BYTES)), "seconds to read all memory is 80"),
        (replace(DEVICE, memory=amount(80e6, Dimension.BYTES)), "seconds to read all memory"),
        (replace(DEVICE, power=amount(300e3, Dimension.WATTS)), "power in W is 3e"),
        (replace(DEVICE, scale_up=link(2000)), "link wire is faster than its memory"),
        (replace(DEVICE, scale_out=link(2000)), "link wire is faster than its memory"),
        (replace(DEVICE, host=link(2000)), "link wire is faster than its memory"),
    ],
)
def test_what_has_never_been_built_is_refused(device: Device, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_plausible(device)
