"""This machine's processor as a device of the catalogue: measured, never looked up."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np

from argosy.cost.device import Device, Precision
from argosy.cost.quantity import MIB, Dimension, Grade, Quantity
from argosy.errors import ConfigError


def measure_host(
    *,
    gemm_size: int = 1024,
    buffer_bytes: int = 256 * MIB,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    today: date | None = None,
) -> Device:
    """Measure the fp32 matrix product and the memory read bandwidth that numpy reaches with the threads it is given.

    The best of `repeats` runs counts, after one that is not timed. It takes about a second and `buffer_bytes` of memory.

    Args:
        gemm_size: rows and columns of the square matrices.
        buffer_bytes: read once per run; must be far larger than the last-level cache, or the cache is measured.
        clock: seconds, monotonic.
        today: date of the measurement; by default the system's.

    Raises:
        ConfigError: a size or count below 1, or a run too short for the clock.
    """
    if gemm_size < 1 or buffer_bytes < 4 or repeats < 1:
        raise ConfigError("measuring the host needs a matrix size, a buffer of at least 4 bytes and one repeat or more")
    as_of = (today or date.today()).isoformat()

    def measured(value: float, dimension: Dimension, how: str) -> Quantity:
        return Quantity(value, dimension, how, Grade.MEASURED, as_of)

    gemm_s = _gemm_seconds(gemm_size, repeats, clock)
    read_s = _read_seconds(buffer_bytes // 4, repeats, clock)
    flops, read_bytes = 2.0 * gemm_size**3, 4.0 * (buffer_bytes // 4)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Device(
        name=processor_name(),
        aliases=("host", "cpu"),
        kind="cpu",
        peak={Precision.FP32: measured(flops / gemm_s, Dimension.FLOP_PER_S, "numpy fp32 matrix product")},
        memory=measured(float(host_memory_bytes()), Dimension.BYTES, "operating system"),
        memory_bandwidth=measured(
            read_bytes / read_s, Dimension.BYTES_PER_S, "numpy fp32 dot product of a vector with itself"
        ),
        scale_up=None,
        scale_out=None,
        host=None,
        power=None,
        devices_per_node=1,
        notes=f"{threads} logical processors; numpy may use fewer threads",
    )


def _gemm_seconds(size: int, repeats: int, clock: Callable[[], float]) -> float:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    out = np.empty((size, size), dtype=np.float32)
    return _best_seconds(lambda: np.matmul(a, b, out=out), repeats, clock)


def _read_seconds(elements: int, repeats: int, clock: Callable[[], float]) -> float:
    vector = np.ones(elements, dtype=np.float32)
    return _best_seconds(lambda: np.dot(vector, vector), repeats, clock)


def _best_seconds(run: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    run()
    best = float("inf")
    for _ in range(repeats):
        start = clock()
        run()
        best = min(best, clock() - start)
    if best <= 0:
        raise ConfigError("a run was too short for the clock; measure the host with larger sizes")
    return best


def host_memory_bytes(cgroup_limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Memory of the machine, or of the control group where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = cgroup_limit.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the processor calls itself."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown processor"
