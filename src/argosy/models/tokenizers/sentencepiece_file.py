"""Reads `tokenizer.model`, SentencePiece's own file, without the sentencepiece library.

The file is a protocol-buffer `ModelProto` (sentencepiece_model.proto). Only the fields that decide how text is cut are
read: pieces, the algorithm, and the normaliser's switches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.tokenizers.vocabulary import Vocabulary

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_ALGORITHMS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}

_Field = tuple[int, int | bytes]


@dataclass(frozen=True, slots=True)
class SentencePieceFile:
    """What a `tokenizer.model` says.

    Attributes:
        add_space_prefix: a text is encoded as if a space stood before it (`add_dummy_prefix`).
        unknown_id, bos_id, eos_id: None where the file disables the token.
    """

    vocabulary: Vocabulary
    add_space_prefix: bool
    unknown_id: int
    bos_id: int | None
    eos_id: int | None


def read_sentencepiece(path: Path) -> SentencePieceFile:
    """Read a BPE model with the identity normaliser, the kind Llama 2, Mistral and Gemma ship.

    Raises:
        ModelFileError: the file is damaged.
        UnsupportedModel: another algorithm than BPE, or text rewriting (NFKC, whitespace squeezing, suffix marks).
    """
    try:
        top = list(_fields(path.read_bytes()))
        pieces = [_piece(body) for number, body in top if number == 1 and isinstance(body, bytes)]
        trainer = dict(_fields(_message(top, 2)))
        normalizer = dict(_fields(_message(top, 3)))
    except (ValueError, IndexError, struct.error) as error:
        raise ModelFileError(f"{path.name} is damaged ({error}); download the model again") from error
    _check_supported(path.name, trainer, normalizer)
    tokens, scores, types = (tuple(column) for column in zip(*pieces, strict=True)) if pieces else ((), (), ())
    vocabulary = Vocabulary(tokens, types, scores)
    return SentencePieceFile(
        vocabulary=vocabulary,
        add_space_prefix=bool(normalizer.get(3, 1)),
        unknown_id=_signed(trainer.get(40, 0)) or 0,
        bos_id=vocabulary.check_id("bos_id", _signed(trainer.get(41, 1))),
        eos_id=vocabulary.check_id("eos_id", _signed(trainer.get(42, 2))),
    )


def _check_supported(name: str, trainer: dict[int, int | bytes], normalizer: dict[int, int | bytes]) -> None:
    remedy = "convert it to a tokenizer.json with the model's own tools"
    algorithm = trainer.get(3, 1)
    if algorithm != 2:
        kind = _ALGORITHMS.get(algorithm, algorithm) if isinstance(algorithm, int) else algorithm
        raise UnsupportedModel(f"{name} uses the SentencePiece algorithm {kind!r}, only 'bpe' can be read; {remedy}")
    if normalizer.get(2):
        raise UnsupportedModel(f"{name} rewrites text with normaliser rules ({_text(normalizer.get(1))}); {remedy}")
    if normalizer.get(4, 1):
        raise UnsupportedModel(f"{name} removes extra whitespace, which cannot be undone in output; {remedy}")
    if trainer.get(24, 0) or not normalizer.get(5, 1):
        raise UnsupportedModel(f"{name} marks spaces in an unusual way; {remedy}")


def _fields(buffer: bytes) -> Iterator[_Field]:
    at = 0
    while at < len(buffer):
        key, at = _varint(buffer, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(buffer, at)
            yield number, value
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(wire)
        if wire == _BYTES:
            length, at = _varint(buffer, at)
        if length is None or at + length > len(buffer):
            raise ValueError(f"field {number} at byte {at}")
        yield number, buffer[at : at + length]
        at += length


def _varint(buffer: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"varint at byte {at}")


def _message(fields: list[_Field], number: int) -> bytes:
    return next((body for n, body in fields if n == number and isinstance(body, bytes)), b"")


def _piece(body: bytes) -> tuple[str, float, int]:
    fields = dict(_fields(body))
    spelling, score, token_type = fields.get(1, b""), fields.get(2, b"\0\0\0\0"), fields.get(3, 1)
    if not isinstance(spelling, bytes) or not isinstance(score, bytes) or not isinstance(token_type, int):
        raise ValueError("a piece has fields of the wrong type")
    return spelling.decode(), struct.unpack("<f", score)[0], token_type


def _signed(value: int | bytes) -> int | None:
    """An id: a negative one (64-bit two's complement) means that the token is disabled."""
    return value if isinstance(value, int) and value < 1 << 63 else None


def _text(value: int | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else "unnamed"
