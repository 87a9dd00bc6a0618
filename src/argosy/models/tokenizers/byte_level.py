"""Byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM …): every byte has a printable character, so no text is unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from argosy.errors import ModelFileError
from argosy.models.tokenizers.pre_tokenizers import PreTokenizerRule
from argosy.models.tokenizers.vocabulary import TokenType, Vocabulary, spellings


@cache
def byte_of_character() -> Mapping[str, int]:
    """GPT-2's map from printable characters to bytes (Radford et al. 2019, `bytes_to_unicode`).

    Printable Latin-1 stands for itself; the other 68 bytes, in order, get the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(hidden)}
    return MappingProxyType(table)


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a byte-level token; one spelled outside the byte alphabet is its own UTF-8."""
    table = byte_of_character()
    try:
        return bytes([table[character] for character in token])
    except KeyError:
        return token.encode()


def token_table(vocabulary: Vocabulary) -> list[bytes]:
    """Per id the bytes it adds to a text. Only normal tokens use the byte alphabet; added ones are spelled out."""
    return [
        byte_level_bytes(token) if token_type == TokenType.NORMAL else token.encode()
        for token, token_type in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]


def split_merge(merge: str) -> tuple[str, str]:
    """The two halves of a merge written "left right"; the left half may itself start with a space."""
    at = merge.find(" ", 1)
    if at < 0 or at == len(merge) - 1:
        raise ModelFileError(
            f"the tokenizer's merge {merge!r} is not two tokens with a space between; convert the model again"
        )
    return merge[:at], merge[at + 1 :]


def build_byte_level(vocabulary: Vocabulary, merges: Sequence[str], rule: PreTokenizerRule) -> Tokenizer:
    """A `tokenizers` object with exactly the ids of `vocabulary`.

    Control tokens are recognised in the raw text, user-defined ones too; neither is ever merged. Vocabularies that lack a
    byte (SmolLM2 has no token for some control characters) leave it out of the text, as their original tokenizers do.

    Raises:
        ModelFileError: a merge is malformed or names a token the vocabulary lacks.
    """
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    pairs = [split_merge(merge) for merge in merges]
    for left, right in pairs:
        missing = next((part for part in (left, right, left + right) if part not in ids), None)
        if missing is not None:
            raise ModelFileError(f"the merge {left!r} + {right!r} needs the token {missing!r}, which the vocabulary lacks")
    backend = Tokenizer(BPE(vocab=ids, merges=pairs, ignore_merges=rule.ignore_merges))
    backend.pre_tokenizer = rule.build()
    normalizer = rule.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    added = vocabulary.ids_of(TokenType.USER_DEFINED)
    control = vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN)
    backend.add_tokens([AddedToken(token, normalized=False) for token in spellings(vocabulary.tokens, added)])
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in spellings(vocabulary.tokens, control)]
    )
    return backend
