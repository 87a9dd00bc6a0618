from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from numba import config

from argosy.kernels.numba_cache import UNUSED_DAYS, package_digest, place_numba_cache


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", config.CACHE_DIR)


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "package"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_text("x = 1\n")
    (folder / "inner" / "b.py").write_text("y = 2\n")
    return folder


def test_every_version_of_the_package_has_its_own_folder(package, tmp_path):
    first = place_numba_cache(package, tmp_path / "cache")
    assert first.is_dir()
    assert str(first) == config.CACHE_DIR
    assert place_numba_cache(package, tmp_path / "cache") == first
    (package / "inner" / "b.py").write_text("y = 3\n")
    second = place_numba_cache(package, tmp_path / "cache")
    assert second != first
    assert first.is_dir()


def test_the_digest_tells_files_apart_by_name_and_content(package):
    before = package_digest(package)
    (package / "a.py").rename(package / "c.py")
    renamed = package_digest(package)
    (package / "c.py").write_text("x = 1\ny = 2\n")
    assert len({before, renamed, package_digest(package)}) == 3


def test_folders_long_unused_are_removed(package, tmp_path):
    old, recent = tmp_path / "cache/numba/old", tmp_path / "cache/numba/recent"
    for folder, days in ((old, UNUSED_DAYS + 1), (recent, UNUSED_DAYS - 1)):
        folder.mkdir(parents=True)
        (folder / "f.nbi").write_text("")
        at_s = time.time() - days * 24 * 3600
        os.utime(folder, (at_s, at_s))
    place_numba_cache(package, tmp_path / "cache")
    assert not old.exists()
    assert (recent / "f.nbi").exists()


def test_without_a_folder_to_write_a_temporary_one_serves(package, tmp_path):
    (tmp_path / "cache").write_text("a file is in the way")
    folder = place_numba_cache(package, tmp_path / "cache")
    assert folder.is_dir()
    assert tmp_path / "cache" not in folder.parents
    folder.rmdir()


_SECOND_START = """
from argosy.kernels.compile_ahead import compile_ops, watching_compilation
lines = []
with watching_compilation() as count:
    compile_ops(lines.append)
print(len(count.functions), len(lines))
"""


def test_the_second_start_compiles_nothing():
    """The tests' own processes have compiled every op before, or the first of these two does."""
    for _attempt in range(2):
        finished = subprocess.run([sys.executable, "-c", _SECOND_START], capture_output=True, text=True, timeout=280)
        assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["0", "0"]
