"""Reading the catalogue file of models."""

from __future__ import annotations

import pytest

from argosy.cost.catalogue import catalogue_text
from argosy.cost.catalogue_models import load_models
from argosy.cost.quantity import Grade
from argosy.errors import ArgosyError, ConfigError

SMALL = """
[sources.card]
text = "model card"
grade = "primary"
as_of = "2026-01-01"
[[model]]
name = "Tiny-1M"
aliases = ["org/Tiny-1M"]
source = "card"
published = { parameters = "0.001", kv_kib_per_token = "0.1" }
[model.config]
model_type = "llama"
num_hidden_layers = 2
hidden_size = 32
num_attention_heads = 4
intermediate_size = 64
vocab_size = 100
"""


def test_an_entry_has_shape_and_provenance() -> None:
    (model,) = load_models(SMALL)
    assert model.spec.name == "Tiny-1M"
    assert model.spec.num_layers == 2
    assert model.aliases == ("org/Tiny-1M",)
    assert (model.source, model.grade, model.as_of) == ("model card", Grade.PRIMARY, "2026-01-01")
    assert (model.published.parameters, model.published.active) == ("0.001", None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('source = "card"', 'source = "hearsay"', "model 'Tiny-1M': no source 'hearsay'; the file has card"),
        ('source = "card"\n', "", "model 'Tiny-1M' has no 'source'"),
        ("parameters =", "parametres =", "'parametres' that nothing reads"),
        ('aliases = ["org/Tiny-1M"]', 'aliases = "org/Tiny-1M"', "aliases a list of texts"),
        ('model_type = "llama"', 'model_type = "alpaca"', "model_type 'alpaca' is not known"),
        ("hidden_size = 32\n", "", "configuration of Tiny-1M has no 'hidden_size'"),
        ("num_attention_heads = 4", "num_attention_heads = 5", "5 heads do not divide the hidden size"),
    ],
)
def test_entries_that_are_wrong_are_refused_by_name(old: str, new: str, message: str) -> None:
    assert SMALL.count(old) == 1
    with pytest.raises(ArgosyError, match=message):
        load_models(SMALL.replace(old, new))


def test_two_models_of_one_name() -> None:
    text = catalogue_text("models.toml")
    doubled = text.replace('aliases = ["openai/gpt-oss-20b"]', 'aliases = ["openai/gpt-oss-120b"]')
    with pytest.raises(ConfigError, match="belongs to both gpt-oss-20b and gpt-oss-120b"):
        load_models(doubled)
