"""Small synthetic tokenizers in the shape of GGUF metadata, and an independent byte-pair encoder to check against."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
import sentencepiece

from argosy.models.tokenizers.byte_level import byte_of_character

MULTILINGUAL = (
    "Hello world! Café déjà vu — 123 😊\n"
    "Family 👨‍👩‍👧‍👦 flags 🇩🇪🇯🇵 thumbs 👍🏽 hearts ❤️\n"
    "NFD: Cafe\u0301 de\u0301ja\u0300 A\u030angstro\u0308m, NFC: Ångström; ligature ﬁ, kelvin K\n"
    "中文分词测试。日本語のテキスト、カタカナ。한국어 문장입니다.\n"
    "العربية نصٌّ مُشكَّل، עברית עם נִיקּוּד\n"
    "ภาษาไทยไม่มีช่องว่าง हिन्दी में वाक्य, தமிழ் எழுத்து\n"
    "Русский текст, Ελληνικά, ČŠŽ, İstanbul ǅ\n"
    "numbers 0 12 123 1234 12345 3.14159 1,000,000 ½ ² Ⅷ ٣٤٥\n"
    "def f(x):\n\tif x  ==  1:\n\t\treturn {'a': [1, 2]}  # it's DON'T we'LL\r\n"
    "spaces:   three    four\u00a0nbsp\u3000wide\u200bzero\ttab\n\n\n\nend \x00\x07\x1b[0m\x7f   "
)

CORPUS = [
    "the quick brown fox jumps over the lazy dog and the hen then bathes in the thin ether",
    "Der schnelle braune Fuchs springt über den faulen Hund, während Bäume blühen",
    "быстрая коричневая лиса прыгает через ленивую собаку и снова прыгает",
    "敏捷的棕色狐狸跳过懒狗 敏捷的狐狸",
    "def main(args):    return [x  for x in args if x >= 10]   # 100 200 300",
    "banana bandana ananas anana nana aa aaa aaaa aaaaa aaaaaaaa",
] * 8


@pytest.fixture
def multilingual() -> str:
    return MULTILINGUAL


class PlainBpe:
    """Byte-level BPE in plain Python, straight from the definition: join the best-ranked pair until none is left.

    Bytes without a token are left out, as in the original tokenizers (SmolLM2 has none for six control characters).
    """

    def __init__(self, tokens: Sequence[str], merges: Sequence[str], patterns: Sequence[str]) -> None:
        self.ids = {token: n for n, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): n for n, merge in enumerate(merges)}
        self.patterns = [regex.compile(pattern) for pattern in patterns]
        self.characters = {byte: character for character, byte in byte_of_character().items()}

    def encode(self, text: str) -> list[int]:
        words = [text] if text else []
        for pattern in self.patterns:
            words = [piece for word in words for piece in isolate(pattern, word)]
        return [self.ids[token] for word in words for token in self._merge(word)]

    def _merge(self, word: str) -> list[str]:
        parts = [c for c in (self.characters[byte] for byte in word.encode()) if c in self.ids]
        while True:
            pairs = [(self.ranks.get((a, b)), n) for n, (a, b) in enumerate(pairwise(parts))]
            ranked = [(rank, n) for rank, n in pairs if rank is not None]
            if not ranked:
                return parts
            _, n = min(ranked)
            parts[n : n + 2] = [parts[n] + parts[n + 1]]


def isolate(pattern: Any, text: str) -> list[str]:
    """Matches and the gaps between them, in order."""
    pieces, at = [], 0
    for match in pattern.finditer(text):
        pieces += [text[at : match.start()], match.group()]
        at = match.end()
    return [piece for piece in [*pieces, text[at:]] if piece]


@pytest.fixture
def plain_bpe() -> type[PlainBpe]:
    return PlainBpe


@pytest.fixture
def isolated() -> Callable[[Any, str], list[str]]:
    return isolate


@pytest.fixture
def byte_level_metadata() -> Callable[..., dict[str, Any]]:
    """Builds GGUF metadata of a byte-level tokenizer: 256 byte tokens, some merges, then `control` tokens."""

    def build(pre: str = "gpt-2", control: Sequence[str] = ("<|endoftext|>",), **more: Any) -> dict[str, Any]:
        merges = ["t h", "th e", "Ġ the", "h e", "Ġ Ġ", "ĠĠ ĠĠ", "i n", "Ġ w", "o r", "Ġw or", "l d", "1 2", "Ã ©", "ð Ł"]
        tokens = [*byte_of_character(), *(merge.replace(" ", "") for merge in merges)]
        metadata = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": [*tokens, *control],
            "tokenizer.ggml.token_type": [1] * len(tokens) + [3] * len(control),
            "tokenizer.ggml.merges": merges,
        }
        return metadata | {f"tokenizer.ggml.{key}": value for key, value in more.items()}

    return build


@pytest.fixture(scope="session")
def train_sentencepiece() -> Callable[..., bytes]:
    """Trains a small SentencePiece BPE model with the identity normaliser and returns its file's bytes."""

    def train(vocab_size: int = 420, corpus: Sequence[str] = CORPUS, **options: Any) -> bytes:
        model = io.BytesIO()
        defaults = {
            "model_type": "bpe",
            "byte_fallback": True,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "character_coverage": 1.0,
            "hard_vocab_limit": False,
            "allow_whitespace_only_pieces": True,
            "minloglevel": 2,
        }
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus), model_writer=model, vocab_size=vocab_size, **{**defaults, **options}
        )
        return model.getvalue()

    return train


@pytest.fixture(scope="session")
def sentencepiece_metadata() -> Callable[..., dict[str, Any]]:
    """GGUF metadata of a SentencePiece model, as converters write it: user-defined tokens with real spaces."""

    def export(model: bytes, **more: Any) -> dict[str, Any]:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        ids = range(processor.get_piece_size())
        kinds = [
            (2, processor.is_unknown),
            (3, processor.is_control),
            (6, processor.is_byte),
        ]
        user_defined = set(more.pop("user_defined", ()))
        tokens = [processor.id_to_piece(n) for n in ids]
        types = [next((kind for kind, check in kinds if check(n)), 4 if tokens[n] in user_defined else 1) for n in ids]
        metadata = {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": [t.replace("▁", " ") if k == 4 else t for t, k in zip(tokens, types, strict=True)],
            "tokenizer.ggml.scores": [processor.get_score(n) for n in ids],
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.unknown_token_id": processor.unk_id(),
            "tokenizer.ggml.bos_token_id": processor.bos_id(),
            "tokenizer.ggml.eos_token_id": processor.eos_id(),
        }
        return metadata | {f"tokenizer.ggml.{key}": value for key, value in more.items()}

    return export


@pytest.fixture
def sentencepiece_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes a `tokenizer.model` into a fresh folder."""

    def write(model: bytes) -> Path:
        (tmp_path / "tokenizer.model").write_bytes(model)
        return tmp_path

    return write
