from __future__ import annotations

import os

import pytest

from argosy.kernels import cores
from argosy.kernels.cores import cpu_quota, num_physical_cores, usable_cores


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_hardware_threads_of_one_core_count_once(tmp_path):
    for cpu, (package, core) in enumerate([(0, 0), (0, 1), (0, 0), (0, 1), (1, 0)]):
        write(tmp_path / f"cpu{cpu}/topology/physical_package_id", f"{package}\n")
        write(tmp_path / f"cpu{cpu}/topology/core_id", f"{core}\n")
    assert num_physical_cores(range(5), tmp_path) == 3
    assert num_physical_cores([0, 2], tmp_path) == 1
    assert num_physical_cores([0, 1, 7], tmp_path) == 3


def test_the_tightest_quota_up_the_tree_counts(tmp_path):
    assert cpu_quota(tmp_path, "/a/b") is None
    write(tmp_path / "a/cpu.max", "150000 100000\n")
    write(tmp_path / "a/b/cpu.max", "max 100000\n")
    assert cpu_quota(tmp_path, "/a/b") == 1.5
    write(tmp_path / "cpu.max", "50000 100000\n")
    assert cpu_quota(tmp_path, "/a/b") == 0.5
    assert cpu_quota(tmp_path, "") == 0.5


def test_quotas_of_version_1(tmp_path):
    write(tmp_path / "cpu/a/cpu.cfs_quota_us", "300000\n")
    write(tmp_path / "cpu/a/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(tmp_path, "/a") == 3.0
    write(tmp_path / "cpu/a/cpu.cfs_quota_us", "-1\n")
    assert cpu_quota(tmp_path, "/a") is None


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (2.9, 2), (0.3, 1), (16.0, 4)])
def test_a_quota_limits_the_cores(monkeypatch, quota, expected):
    monkeypatch.setattr(cores, "num_physical_cores", lambda cpus, folder: 4)
    monkeypatch.setattr(cores, "cpu_quota", lambda folder, path: quota)
    assert usable_cores() == expected


def test_affinity_limits_the_cores():
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
