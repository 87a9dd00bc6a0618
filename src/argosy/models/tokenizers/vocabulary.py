"""A vocabulary as model files store it: spelling, type and score of every id."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from argosy.errors import ModelFileError

SPACE_MARK = "▁"  # U+2581, SentencePiece's spelling of a space
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenType(IntEnum):
    """Types of `tokenizer.ggml.token_type`, numbered as in SentencePiece's `ModelProto.SentencePiece.Type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Parallel sequences indexed by token id. `scores` may be empty where the algorithm does not use them.

    Raises:
        ModelFileError: the lengths differ, a spelling occurs twice, or a type is unknown.
    """

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ModelFileError("the tokenizer's vocabulary is empty; download or convert the model again")
        if len(self.types) != len(self.tokens) or (self.scores and len(self.scores) != len(self.tokens)):
            raise ModelFileError(
                f"the tokenizer has {len(self.tokens)} tokens but {len(self.types)} types and {len(self.scores)} scores; "
                "download or convert the model again"
            )
        if len(set(self.tokens)) != len(self.tokens):
            seen: set[str] = set()
            twice = next(token for token in self.tokens if token in seen or seen.add(token))  # type: ignore[func-returns-value]
            raise ModelFileError(f"the tokenizer lists the token {twice!r} twice; convert the model again")
        unknown_types = set(self.types) - set(TokenType)
        if unknown_types:
            raise ModelFileError(f"the tokenizer uses the unknown token type {min(unknown_types)}; convert the model again")

    def __len__(self) -> int:
        return len(self.tokens)

    def ids_of(self, *types: TokenType) -> Iterator[int]:
        """Ids whose type is one of `types`, ascending."""
        return (token_id for token_id, token_type in enumerate(self.types) if token_type in types)

    def check_id(self, name: str, token_id: int | None) -> int | None:
        """`token_id` itself. Raises ModelFileError naming `name` where it is outside the vocabulary."""
        if token_id is not None and not 0 <= token_id < len(self.tokens):
            raise ModelFileError(f"{name} is {token_id}, outside the vocabulary of {len(self.tokens)} tokens")
        return token_id


def sentencepiece_bytes(token: str, token_type: int) -> bytes:
    """Bytes of a SentencePiece token: `▁` is a space, a BYTE token `<0xNN>` is that byte, a control token its spelling."""
    if token_type == TokenType.BYTE:
        match = _BYTE_TOKEN.fullmatch(token)
        if match is None:
            raise ModelFileError(f"the byte token {token!r} is not spelled <0xNN>; convert the model again")
        return bytes.fromhex(match[1])
    if token_type in (TokenType.CONTROL, TokenType.UNKNOWN):
        return token.encode()
    return token.replace(SPACE_MARK, " ").encode()


def byte_token_value(token: str) -> int | None:
    """The byte a token spelled `<0xNN>` stands for, or None for any other spelling."""
    match = _BYTE_TOKEN.fullmatch(token)
    return int(match[1], 16) if match else None


def spellings(tokens: Sequence[str], ids: Iterator[int]) -> list[str]:
    """Spellings of `ids`, empty ones left out: an empty token can never occur in a text."""
    return [tokens[token_id] for token_id in ids if tokens[token_id]]
