"""How many threads this process should compute with."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

_CPU_FOLDER = Path("/sys/devices/system/cpu")
_CGROUP_FOLDER = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Physical cores that this process may use, at least 1.

    Two hardware threads of one core share its arithmetic units, so they count once. A CPU quota of the process's control
    group counts as that many cores, rounded down: threads beyond a quota make the kernel stop all of them for the rest of
    a period.
    """
    cores = num_physical_cores(_allowed_cpus(), _CPU_FOLDER)
    quota = cpu_quota(_CGROUP_FOLDER, _own_cgroup())
    return max(1, cores if quota is None else min(cores, math.floor(quota)))


def _allowed_cpus() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def num_physical_cores(cpus: Iterable[int], cpu_folder: Path) -> int:
    """Cores that `cpus` (numbers of hardware threads) belong to, by the `topology` files under `cpu_folder`.

    A CPU whose files cannot be read counts as a core of its own.
    """
    cores: set[object] = set()
    for cpu in cpus:
        topology = cpu_folder / f"cpu{cpu}" / "topology"
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            cores.add(cpu)
    return len(cores)


def cpu_quota(cgroup_folder: Path, own_path: str) -> float | None:
    """The tightest CPU quota, in cores, of control group `own_path` and its ancestors; None without any.

    Reads version 2's `cpu.max` and version 1's `cpu.cfs_quota_us`.
    """
    tightest = None
    groups = [part for part in own_path.split("/") if part]
    for depth in range(len(groups) + 1):
        group = "/".join(groups[:depth])
        for quota in (_quota_v2(cgroup_folder / group), _quota_v1(cgroup_folder / "cpu" / group)):
            if quota is not None:
                tightest = quota if tightest is None else min(tightest, quota)
    return tightest


def _own_cgroup() -> str:
    """The path of this process's control group: that of version 2 or of version 1's CPU controller; "" if unknown."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            return path
    return ""


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
