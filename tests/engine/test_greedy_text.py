"""Greedy text of the real models through the whole engine: 20 prompts x 64 tokens, equal to that of transformers."""

from __future__ import annotations

import pytest
import torch

from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.llm import LLM

PROMPTS = [
    "The lighthouse keeper climbed the stairs and",
    "A recipe for bread: flour, water, salt and",
    "In 1492",
    "def add(a, b):\n    return",
    "for i in range(10):\n    print(",
    "The three primary colours are red,",
    "Once upon a time, in a village by the sea, there lived an old fisherman who every morning",
    "What is the boiling point of water? The boiling point of water is",
    "Le chat est assis sur",
    "Der Zug nach Hamburg fährt um",
    "2, 4, 6, 8,",
    "To be, or not to be, that is",
    "The mitochondria is",
    "SELECT * FROM ships WHERE",
    "Dear Ana,\n\nthank you for",
    "Monday, Tuesday, Wednesday,",
    "The moon orbits the earth because of",
    "Café, thé, 🍵 and",
    "<ul>\n  <li>One</li>\n  <li>",
    "My favourite book is about a captain who",
]


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_greedy_text_is_that_of_transformers(name, transformers_reference):
    """Every token must be the arg max of transformers' logits after the same tokens, which by induction is its own text."""
    reference = transformers_reference(name)
    with LLM(name, dtype="float32", max_model_len=256, num_blocks_override=512) as llm:
        outputs = llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True))
        for output in outputs:
            prompt, generated = list(output.prompt_token_ids), list(output.completions[0].token_ids)
            assert len(generated) == 64
            with torch.inference_mode():
                logits = reference(torch.tensor([prompt + generated])).logits[0]
            assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == generated, output.prompt
            assert output.completions[0].text == llm.tokenizer.decode(generated)
