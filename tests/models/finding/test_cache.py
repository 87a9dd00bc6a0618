import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from argosy.errors import FetchError
from argosy.models import cache as cache_module
from argosy.models.cache import ModelCache, default_cache_dir, file_sha256, format_bytes, writing_to


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ARGOSY_HOME": "/a", "XDG_CACHE_HOME": "/x"}, "/a"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/argosy"),
        ({"XDG_CACHE_HOME": ""}, "/home/someone/.cache/argosy"),
        ({}, "/home/someone/.cache/argosy"),
    ],
)
def test_where_the_cache_is(monkeypatch, variables, expected):
    for name in ("ARGOSY_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_cache_dir() == Path(expected)


def publish(cache: ModelCache, content: bytes) -> tuple[Path, str]:
    temporary, final = cache.root / "temporary", cache.model_path("m.gguf")
    cache.root.mkdir(exist_ok=True)
    temporary.write_bytes(content)
    sha256 = file_sha256(temporary)
    cache.publish(temporary, final, sha256=sha256)
    return final, sha256


def test_a_published_file_is_intact_without_being_read_again(tmp_path, monkeypatch):
    cache = ModelCache(tmp_path)
    path, sha256 = publish(cache, b"weights")
    monkeypatch.setattr(cache_module, "file_sha256", lambda path: pytest.fail("read again"))
    assert cache.is_intact(path, size_bytes=7, sha256=sha256)


def test_another_size_another_content_and_absence_are_noticed(tmp_path):
    cache = ModelCache(tmp_path)
    path, sha256 = publish(cache, b"weights")
    assert not cache.is_intact(path, size_bytes=8, sha256=sha256)
    assert not cache.is_intact(path, size_bytes=7, sha256="0" * 64)
    path.write_bytes(b"weighty")
    os.utime(path, ns=(1, 1))
    assert not cache.is_intact(path, size_bytes=7, sha256=sha256)
    cache.discard(path)
    assert not cache.is_intact(path, size_bytes=7, sha256=sha256)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("stamp", [None, "", "[]", '{"sha256": 1}'])
def test_without_a_usable_stamp_the_file_is_read_and_stamped(tmp_path, stamp):
    cache = ModelCache(tmp_path)
    path, sha256 = publish(cache, b"weights")
    stamp_path = path.with_name("m.gguf.json")
    good = stamp_path.read_text()
    stamp_path.unlink() if stamp is None else stamp_path.write_text(stamp)
    assert cache.is_intact(path, size_bytes=7, sha256=sha256)
    assert stamp_path.read_text() == good


def test_too_little_space_names_both_numbers_and_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1_500_000))
    cache = ModelCache(tmp_path / "not" / "yet")
    cache.check_free_space(1_500_000, "model x")
    with pytest.raises(
        FetchError, match=r"for model x: 2000000 bytes \(2\.0 MB\) are needed .* 1500000 bytes .* ARGOSY_HOME"
    ):
        cache.check_free_space(2_000_000, "model x")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOTDIR])
def test_a_cache_that_refuses_to_be_written_says_so(tmp_path, code):
    with pytest.raises(FetchError, match="cannot write to the model cache"), writing_to(tmp_path):
        raise OSError(code, os.strerror(code))


def test_other_failures_of_the_system_are_not_hidden(tmp_path):
    with pytest.raises(OSError, match="I/O"), writing_to(tmp_path):
        raise OSError(errno.EIO, "I/O error")


def test_the_lock_is_held_by_one_process_and_free_when_it_dies(tmp_path):
    script = (
        "import sys, time, pathlib; from argosy.models.cache import ModelCache\n"
        "with ModelCache(pathlib.Path(sys.argv[1])).lock('m'): print('held', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    waited = []

    def holder_dies() -> None:
        waited.append(True)
        child.kill()
        child.wait()

    with ModelCache(tmp_path).lock("m", holder_dies):
        assert waited == [True]
    child.stdout.close()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (98_362_432, "98.4 MB"), (10**15, "1000.0 TB")]
)
def test_sizes_as_people_write_them(count, text):
    assert format_bytes(count) == text
