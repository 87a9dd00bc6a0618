"""Tokenizers from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from argosy.errors import ConfigError, ModelFileError, UnsupportedModel
from argosy.models.chat_template import ChatTemplate
from argosy.models.tokenizers import byte_level, score_bpe
from argosy.models.tokenizers.end_tokens import end_token_ids
from argosy.models.tokenizers.pre_tokenizers import pre_tokenizer_rule
from argosy.models.tokenizers.text_tokenizer import TextTokenizer
from argosy.models.tokenizers.vocabulary import TokenType, Vocabulary

_PREFIX = "tokenizer.ggml."
_TEMPLATE_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
# What SentencePiece, and llama.cpp after it, assume where the file is silent.
_SENTENCEPIECE_DEFAULTS = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def tokenizer_from_gguf(metadata: Mapping[str, Any], *, chat_template: str | None = None) -> TextTokenizer:
    """Rebuild the tokenizer of a GGUF file; `chat_template` replaces the file's own templates.

    Args:
        metadata: GGUF keys and plain Python values (`tokenizer.ggml.*`, `tokenizer.chat_template`).
        chat_template: Jinja source.

    Raises:
        ModelFileError: the metadata contradicts itself or lacks a part.
        UnsupportedModel: another tokenizer than byte-level BPE ("gpt2") or SentencePiece BPE ("llama"), an unknown
            pre-tokenizer, or a chat template of the file that cannot be compiled.
        ConfigError: `chat_template` cannot be compiled.
    """
    model = metadata.get(_PREFIX + "model")
    if model == "gpt2":
        tokenizer = _byte_level(metadata)
    elif model == "llama":
        tokenizer = _sentencepiece(metadata)
    else:
        raise UnsupportedModel(
            f"the tokenizer is of kind {model!r} (tokenizer.ggml.model); 'gpt2' (byte-level BPE) and 'llama' "
            "(SentencePiece BPE) can be run"
        )
    if chat_template is not None:
        return replace(tokenizer, chat_template=ChatTemplate(chat_template))
    return replace(
        tokenizer,
        chat_template=_template(metadata, "tokenizer.chat_template"),
        tool_template=_template(metadata, "tokenizer.chat_template.tool_use"),
    )


def _byte_level(metadata: Mapping[str, Any]) -> TextTokenizer:
    rule = pre_tokenizer_rule(metadata.get(_PREFIX + "pre"))
    vocabulary = _vocabulary(metadata)
    merges = metadata.get(_PREFIX + "merges")
    if merges is None:
        raise ModelFileError("the GGUF file has no tokenizer.ggml.merges; convert the model again")
    if metadata.get(_PREFIX + "add_space_prefix"):
        raise UnsupportedModel("tokenizer.ggml.add_space_prefix is set for a byte-level tokenizer, which cannot be run")
    prefix, suffix = _edges(metadata, vocabulary, add_bos=rule.add_bos)
    return TextTokenizer(
        backend=byte_level.build_byte_level(vocabulary, merges, rule),
        table=byte_level.token_table(vocabulary),
        special_token_ids=_special_ids(vocabulary, metadata),
        eos_token_ids=end_token_ids(vocabulary, metadata),
        bos_token_id=_token_id(metadata, vocabulary, "bos_token_id"),
        prefix_ids=prefix,
        suffix_ids=suffix,
        template_tokens=_template_tokens(metadata, vocabulary),
    )


def _sentencepiece(metadata: Mapping[str, Any]) -> TextTokenizer:
    if metadata.get(_PREFIX + "remove_extra_whitespaces"):
        raise UnsupportedModel("tokenizer.ggml.remove_extra_whitespaces is set, which only T5-style tokenizers support")
    vocabulary = _vocabulary(metadata)
    defaults = {f"{_PREFIX}{key}": value for key, value in _SENTENCEPIECE_DEFAULTS.items() if value < len(vocabulary)}
    metadata = {**defaults, **metadata}
    prefix, suffix = _edges(metadata, vocabulary, add_bos=True)
    unknown_id = _token_id(metadata, vocabulary, "unknown_token_id")
    add_space = metadata.get(_PREFIX + "add_space_prefix", True)
    return TextTokenizer(
        backend=score_bpe.build_score_bpe(vocabulary, unknown_id or 0),
        table=score_bpe.token_table(vocabulary),
        special_token_ids=_special_ids(vocabulary, metadata),
        eos_token_ids=end_token_ids(vocabulary, metadata),
        bos_token_id=_token_id(metadata, vocabulary, "bos_token_id"),
        prefix_ids=prefix,
        suffix_ids=suffix,
        prepare=score_bpe.space_prefixer(vocabulary) if add_space else None,
        template_tokens=_template_tokens(metadata, vocabulary),
    )


def _vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    tokens = metadata.get(_PREFIX + "tokens")
    if tokens is None:
        raise ModelFileError("the GGUF file has no tokenizer.ggml.tokens; download or convert the model again")
    types = metadata.get(_PREFIX + "token_type")
    return Vocabulary(
        tokens=tuple(tokens),
        types=tuple(types) if types is not None else (TokenType.NORMAL,) * len(tokens),
        scores=tuple(metadata.get(_PREFIX + "scores") or ()),
    )


def _token_id(metadata: Mapping[str, Any], vocabulary: Vocabulary, key: str) -> int | None:
    return vocabulary.check_id(_PREFIX + key, metadata.get(_PREFIX + key))


def _edges(metadata: Mapping[str, Any], vocabulary: Vocabulary, *, add_bos: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids put before and after a text."""
    edges = []
    for name, default in (("bos", add_bos), ("eos", False)):
        token_id = _token_id(metadata, vocabulary, f"{name}_token_id")
        wanted = metadata.get(f"{_PREFIX}add_{name}_token", default)
        if wanted and token_id is None:
            raise ModelFileError(f"texts should get a {name.upper()} token, but tokenizer.ggml.{name}_token_id is missing")
        edges.append((token_id,) if wanted and token_id is not None else ())
    return edges[0], edges[1]


def _special_ids(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> frozenset[int]:
    return frozenset(vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN)) | end_token_ids(vocabulary, metadata)


def _template_tokens(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, str]:
    ids = {name: _token_id(metadata, vocabulary, key) for name, key in _TEMPLATE_TOKENS.items()}
    return {name: vocabulary.tokens[token_id] for name, token_id in ids.items() if token_id is not None}


def _template(metadata: Mapping[str, Any], key: str) -> ChatTemplate | None:
    source = metadata.get(key)
    if not source:
        return None
    try:
        return ChatTemplate(source)
    except ConfigError as error:
        raise UnsupportedModel(f"{key}: {error}; pass a corrected one with --chat-template FILE") from error
