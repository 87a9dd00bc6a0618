import json
import sys
from pathlib import Path

import pytest

from argosy.cost.catalogue import find_model
from argosy.cost.quantity import Grade
from argosy.errors import ConfigError
from argosy.planner.model_source import find_spec

LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}


def test_a_name_a_file_a_folder_and_a_shape_say_the_same(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    known = find_model("Llama-3.2-1B")
    of_name, grade = find_spec("meta-llama/Llama-3.2-1B")
    assert of_name == known
    assert grade in set(Grade)
    for path in (tmp_path, tmp_path / "config.json"):
        spec, grade = find_spec(str(path))
        assert (spec.layers, spec.vocab_size, grade) == (known.layers, known.vocab_size, Grade.PRIMARY)
    assert find_spec(known) == (known, Grade.PRIMARY)


@pytest.mark.parametrize("text", ["{", "[]", '"llama"'])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"model configuration .* is not"):
        find_spec(str(path))


def test_a_near_name_is_offered():
    with pytest.raises(ConfigError, match=r"Llama-3\.1-8B"):
        find_spec("Llama-3.1-8")


def test_gguf_without_its_reader_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "argosy.models.gguf_file", None)
    with pytest.raises(ConfigError, match=r"argosy\[serve\]"):
        find_spec(str(tmp_path / "model.gguf"))
