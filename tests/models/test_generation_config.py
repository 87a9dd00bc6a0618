"""End ids and sampling values that checkpoints suggest."""

import json

import pytest

from argosy.engine.core.sampling_params import SamplingParams
from argosy.errors import ModelFileError
from argosy.models.generation_config import generation_defaults_from_folder, generation_defaults_from_gguf


def write(folder, values):
    (folder / "generation_config.json").write_text(values if isinstance(values, str) else json.dumps(values))


def test_without_the_file_nothing_is_suggested(tmp_path):
    defaults = generation_defaults_from_folder(tmp_path)
    assert defaults.eos_token_ids == frozenset()
    assert dict(defaults.sampling) == {}


def test_values_under_the_names_of_sampling_params(tmp_path):
    stated = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    write(tmp_path, stated | {"do_sample": True, "transformers_version": "4.40", "bos_token_id": 1})
    defaults = generation_defaults_from_folder(tmp_path)
    assert dict(defaults.sampling) == stated
    params = SamplingParams(**defaults.sampling)
    assert (params.temperature, params.top_k) == (0.6, 20)


@pytest.mark.parametrize(("stated", "ids"), [(7, {7}), ([1, 106], {1, 106}), (None, set()), ([], set())])
def test_end_ids_as_one_or_several(tmp_path, stated, ids):
    write(tmp_path, {"eos_token_id": stated})
    assert generation_defaults_from_folder(tmp_path).eos_token_ids == ids


@pytest.mark.parametrize("stated", ["</s>", [1, "2"], -1, 1.5, True, {"a": 1}])
def test_end_ids_of_another_kind_are_refused(tmp_path, stated):
    write(tmp_path, {"eos_token_id": stated})
    with pytest.raises(ModelFileError, match="eos_token_id must be an id or a list of ids"):
        generation_defaults_from_folder(tmp_path)


def test_null_means_unstated(tmp_path):
    write(tmp_path, {"temperature": None, "top_k": 5})
    assert dict(generation_defaults_from_folder(tmp_path).sampling) == {"top_k": 5}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", 2.5),
        ("top_k", -2),
        ("min_p", 2),
        ("repetition_penalty", 0),
    ],
)
def test_value_out_of_range_is_refused_by_name(tmp_path, key, value):
    write(tmp_path, {key: value})
    with pytest.raises(ModelFileError, match=f"generation_config.json: {key} must be"):
        generation_defaults_from_folder(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"temperature": NaN}', "[" * 100_000])
def test_damaged_file_is_refused(tmp_path, content):
    write(tmp_path, content)
    with pytest.raises(ModelFileError, match=r"generation_config\.json"):
        generation_defaults_from_folder(tmp_path)


def test_gguf_keys(tmp_path):
    metadata = {
        "general.sampling.temp": 0.7,
        "general.sampling.top_k": 40,
        "general.sampling.top_p": 0.8,
        "general.sampling.min_p": 0.0,
        "general.sampling.penalty_repeat": 1.05,
    }
    sampling = generation_defaults_from_gguf(metadata, tmp_path / "m.gguf").sampling
    assert dict(sampling) == {
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.8,
        "min_p": 0.0,
        "repetition_penalty": 1.05,
    }
    with pytest.raises(ModelFileError, match=r"m\.gguf: general\.sampling\.top_p must be"):
        generation_defaults_from_gguf({"general.sampling.top_p": 3.0}, tmp_path / "m.gguf")
