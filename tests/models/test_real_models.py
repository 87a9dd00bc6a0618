"""SmolLM2 and Gemma 3 from their published files, against transformers."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from argosy.models.architectures.attention import SingleSequenceAttention
from argosy.models.checkpoint import load_config
from argosy.models.loader import load_model
from argosy.models.resolve import resolve

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is a city that has been known for its",
    "Once upon a time there was a small ship that sailed across the",
    "Water boils at a temperature of one hundred degrees when the pressure",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "import numpy as np\n\nx = np.linspace(0, 1,",
    "The quick brown fox jumps over the lazy dog and then it",
    "In the year 1969 the first people landed on the surface of",
    "To make a good soup you need onions, carrots, salt and",
    "Photosynthesis is the process by which plants turn light into energy and",
    "Une petite maison se trouve au bord de la mer, où",
    "Der schnelle braune Fuchs springt über den faulen Hund und",
    "1, 1, 2, 3, 5, 8, 13, 21, 34",
    "Dear Sir or Madam, I am writing to you about the",
    "The three laws of motion were first written down by Isaac Newton",
    "SELECT name, age FROM users WHERE age > 30 ORDER BY",
    "A list of the planets, from the sun: Mercury, Venus, Earth",
    "My favourite kind of music is the kind that makes people want",
    "Question: What is the largest ocean on Earth? Answer: The largest",
    "Café déjà vu, naïve résumé, and other words that English took",
    "<html>\n<head>\n<title>My first page</title>\n",
]


@pytest.mark.parametrize(
    ("name", "architecture", "parameters"), [("smollm2-135m", "llama", 134_515_008), ("gemma3-270m", "gemma3", 268_098_176)]
)
def test_configuration_of_the_published_file(name, architecture, parameters):
    checkpoint = load_config(name)
    assert checkpoint.config.architecture == architecture
    assert checkpoint.num_parameters == parameters
    assert checkpoint.config.tie_embeddings


@pytest.mark.slow
def test_smollm2_logits_equal_transformers_own_reading_of_the_file():
    path = str(resolve("smollm2-135m").path)
    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(**load_gguf_checkpoint(path)["config"]))
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=reference)["tensors"]
    reference = AutoModelForCausalLM.from_config(reference.config, dtype=torch.float32).eval()
    missing, unexpected = reference.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model = load_model("smollm2-135m")
    ids = torch.tensor(model.tokenizer.encode(" ".join(PROMPTS)))
    with torch.inference_mode():
        expected = reference(ids[None]).logits[0]
        hidden = model.decoder(ids, torch.arange(len(ids)), SingleSequenceAttention())
        torch.testing.assert_close(model.decoder.logits(hidden), expected, rtol=1e-4, atol=2e-3)
