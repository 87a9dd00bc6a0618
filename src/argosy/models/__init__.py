"""From a model's name to a running decoder and its tokenizer."""
