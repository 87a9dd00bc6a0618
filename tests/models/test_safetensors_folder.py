"""Folders of safetensors files: what is read, one tensor at a time, and what is refused."""

import json
import struct
import weakref

import pytest
import torch
from safetensors.torch import save_file

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.safetensors_folder import open_safetensors_folder
from argosy.models.safetensors_weights import language_model_name, weights_from_folder

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


@pytest.fixture
def sharded(folder):
    """Two shards with three tensors."""
    save_file({"a": torch.ones(2), "b": torch.full((3,), 2.0)}, folder / "model-1.safetensors")
    save_file({"c": torch.full((4,), 3.0)}, folder / "model-2.safetensors")
    write_index(folder, {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"})
    return folder


def write_index(folder, weight_map) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_single_file_in_each_readable_type(folder, dtype):
    stored = {"x": torch.randn(3, 5).to(dtype), "y": torch.randn(7).to(dtype)}
    save_file(stored, folder / "model.safetensors")
    opened = open_safetensors_folder(folder)
    assert opened.weights_bytes == 22 * dtype.itemsize
    weights = dict(weights_from_folder(opened))
    assert all(weights[name].dtype == dtype and torch.equal(weights[name], stored[name]) for name in stored)
    assert set(weights) == set(stored)


def test_shards_are_read_by_the_index(sharded):
    weights = dict(weights_from_folder(open_safetensors_folder(sharded)))
    assert {name: w.tolist() for name, w in weights.items()} == {"a": [1.0] * 2, "b": [2.0] * 3, "c": [3.0] * 4}


def test_files_that_the_index_does_not_name_are_left_alone(sharded):
    save_file({"a": torch.zeros(9)}, sharded / "consolidated.safetensors")
    assert dict(weights_from_folder(open_safetensors_folder(sharded)))["a"].tolist() == [1.0, 1.0]


def test_one_tensor_is_held_at_a_time(sharded):
    earlier = []
    for _, tensor in weights_from_folder(open_safetensors_folder(sharded)):
        assert all(reference() is None for reference in earlier)
        earlier.append(weakref.ref(tensor))
    assert len(earlier) == 3


def test_missing_shard_is_named(sharded):
    (sharded / "model-2.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"shard model-2\.safetensors named by .* is missing"):
        open_safetensors_folder(sharded)


def test_tensor_the_index_lacks_is_named(sharded):
    write_index(sharded, {"a": "model-1.safetensors", "c": "model-2.safetensors"})
    with pytest.raises(ModelFileError, match=r"model-1\.safetensors holds 'b', which .* does not put there"):
        open_safetensors_folder(sharded)


def test_tensor_the_shard_lacks_is_named(sharded):
    write_index(sharded, dict.fromkeys("abd", "model-1.safetensors"))
    with pytest.raises(ModelFileError, match=r"model-1\.safetensors lacks 'd'"):
        open_safetensors_folder(sharded)


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..\\x.safetensors", "x.bin", 3]
)
def test_index_cannot_point_outside_the_folder(sharded, shard):
    write_index(sharded, {"a": shard})
    with pytest.raises(ModelFileError, match="no file name of this folder"):
        open_safetensors_folder(sharded)


@pytest.mark.parametrize("index", ["[]", '{"weight_map": {}}', '{"weight_map": []}', "{", "{}"])
def test_damaged_index_is_refused(folder, index):
    (folder / INDEX).write_text(index)
    with pytest.raises(ModelFileError, match=INDEX.replace(".", r"\.")):
        open_safetensors_folder(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 2**40) + b"{}",
        struct.pack("<Q", 200_000_000) + b"{" + b" " * 64,
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 12) + b'{"a": "b"}  ',
    ],
)
def test_damaged_file_is_refused_by_name(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"model\.safetensors is not a sound safetensors file") as caught:
        open_safetensors_folder(folder)
    assert "\n" not in str(caught.value)


def test_every_truncation_is_refused(folder):
    path = folder / "model.safetensors"
    save_file({"x": torch.ones(4, 4)}, path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            open_safetensors_folder(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e4m3fn, torch.int64])
def test_other_element_types_are_refused_by_name(folder, dtype):
    save_file({"layer.weight": torch.zeros(2).to(dtype)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"tensor 'layer\.weight' is of type \w+; supported are F32, F16, BF16"):
        open_safetensors_folder(folder)


def test_quantised_folder_is_refused_with_its_method(folder):
    (folder / "config.json").write_text('{"model_type": "llama", "quantization_config": {"quant_method": "awq"}}')
    save_file({"x": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="quantised by 'awq'"):
        open_safetensors_folder(folder)


def test_folder_without_weights_or_configuration_is_refused(folder):
    with pytest.raises(ModelFileError, match=r"neither model\.safetensors nor"):
        open_safetensors_folder(folder)
    save_file({}, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match="holds no weights"):
        open_safetensors_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelFileError, match=r"cannot read .*config\.json"):
        open_safetensors_folder(folder)


@pytest.mark.parametrize("config", ["", "[1]", "{", "\x00", '{"a": NaN, }'])
def test_damaged_configuration_is_refused(folder, config):
    (folder / "config.json").write_text(config)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        open_safetensors_folder(folder)


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("model.norm.weight", "model.norm.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.language_model.norm.weight", "model.norm.weight"),
        ("vision_tower.encoder.weight", None),
        ("model.vision_tower.encoder.weight", None),
        ("multi_modal_projector.norm.weight", None),
        ("model.multi_modal_projector.norm.weight", None),
    ],
)
def test_language_model_of_a_vision_checkpoint(stored, name):
    assert language_model_name(stored) == name
