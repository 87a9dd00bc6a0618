"""Tokenizers and executors that are pure functions of the tokens, so that a test can say what must come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest


class PieceTokenizer:
    """Token i is the i-th of some byte strings. `encode` is the identity on Latin-1 code points."""

    def __init__(self, pieces: Sequence[bytes], special_token_ids: Sequence[int] = (), eos: Sequence[int] = ()) -> None:
        self._pieces = tuple(pieces)
        self.vocab_size = len(pieces)
        self.bos_token_id = None
        self.special_token_ids = frozenset(special_token_ids)
        self.eos_token_ids = frozenset(eos)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        silent = self.special_token_ids if skip_special_tokens else frozenset()
        return b"".join(self.token_bytes(i) for i in ids if i not in silent).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id] if token_id < len(self._pieces) else b""

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> str:
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"

    @property
    def has_chat_template(self) -> bool:
        return True


@pytest.fixture(scope="session")
def piece_tokenizer() -> Callable[..., PieceTokenizer]:
    return PieceTokenizer


@pytest.fixture(scope="session")
def byte_tokenizer() -> PieceTokenizer:
    """Tokens 0..255 are bytes; 256 and 257 are special and end a sequence; 258 is special only."""
    pieces = [bytes([b]) for b in range(256)] + [b"<eos>", b"<end>", b"<mark>"]
    return PieceTokenizer(pieces, special_token_ids=(256, 257, 258), eos=(256, 257))
