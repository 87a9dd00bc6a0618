"""Measuring this machine, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from argosy.cost.device import Precision
from argosy.cost.host import host_memory_bytes, measure_host, processor_name
from argosy.cost.quantity import Grade
from argosy.errors import ConfigError


class ScriptedClock:
    """A clock whose runs last the given seconds, one after the other."""

    def __init__(self, runs_s: list[float]) -> None:
        self._ticks = self._times(runs_s)

    @staticmethod
    def _times(runs_s: list[float]) -> Iterator[float]:
        now = 100.0
        for run in runs_s:
            yield now
            now += run
            yield now

    def __call__(self) -> float:
        return next(self._ticks)


def test_rates_follow_from_the_best_run() -> None:
    clock = ScriptedClock([0.5, 0.25, 1.0, 0.5, 0.125, 0.25])
    device = measure_host(gemm_size=64, buffer_bytes=4096, repeats=3, clock=clock, today=date(2026, 3, 1))
    assert device.peak_flop_per_s(Precision.FP32) == 2 * 64**3 / 0.25
    assert device.memory_bandwidth.value == 4096 / 0.125
    for quantity in (device.peak[Precision.FP32], device.memory_bandwidth, device.memory):
        assert (quantity.grade, quantity.as_of) == (Grade.MEASURED, "2026-03-01")
    assert device.kind == "cpu"
    assert device.aliases == ("host", "cpu")


def test_a_real_measurement_is_finite_and_positive() -> None:
    device = measure_host(gemm_size=96, buffer_bytes=1 << 20, repeats=2)
    assert device.peak_flop_per_s(Precision.FP32) > 0
    assert device.memory_bandwidth.value > 0
    assert device.memory.value > 1 << 26
    with pytest.raises(ConfigError, match="has no bf16 arithmetic; it has fp32"):
        device.peak_flop_per_s(Precision.BF16)


def test_a_clock_too_coarse_is_refused() -> None:
    with pytest.raises(ConfigError, match="too short for the clock"):
        measure_host(gemm_size=8, buffer_bytes=64, repeats=1, clock=lambda: 1.0)


@pytest.mark.parametrize("wrong", [{"gemm_size": 0}, {"buffer_bytes": 3}, {"repeats": 0}])
def test_sizes_that_measure_nothing(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="measuring the host needs"):
        measure_host(**wrong)


def test_memory_is_what_the_control_group_leaves(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    whole = host_memory_bytes(tmp_path / "absent")
    limit.write_text("max\n")
    assert host_memory_bytes(limit) == whole
    limit.write_text("1048576\n")
    assert host_memory_bytes(limit) == 1048576
    limit.write_text(f"{whole * 2}\n")
    assert host_memory_bytes(limit) == whole


def test_the_processor_names_itself(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 3GHz\n")
    assert processor_name(cpuinfo) == "Some CPU @ 3GHz"
    assert processor_name(tmp_path / "absent")
