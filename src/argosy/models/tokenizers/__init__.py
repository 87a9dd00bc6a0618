"""Tokenizers rebuilt from the files a checkpoint ships, as `tokenizers` objects."""

from argosy.models.tokenizers.folder import tokenizer_from_folder
from argosy.models.tokenizers.gguf import tokenizer_from_gguf

__all__ = ["tokenizer_from_folder", "tokenizer_from_gguf"]
