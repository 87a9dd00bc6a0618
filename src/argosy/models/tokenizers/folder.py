"""Tokenizers from a Hugging Face folder: `tokenizer.json` and its companions, or a lone `tokenizer.model`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from argosy.errors import ConfigError, ModelFileError, UnsupportedModel
from argosy.models.chat_template import ChatTemplate
from argosy.models.tokenizers import score_bpe
from argosy.models.tokenizers.byte_level import byte_level_bytes
from argosy.models.tokenizers.sentencepiece_file import read_sentencepiece
from argosy.models.tokenizers.text_tokenizer import TextTokenizer
from argosy.models.tokenizers.vocabulary import SPACE_MARK, TokenType, byte_token_value

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def tokenizer_from_folder(path: Path, *, chat_template: str | None = None) -> TextTokenizer:
    """Load the tokenizer of a Hugging Face folder; `chat_template` replaces the folder's own templates.

    Read are tokenizer.json (or tokenizer.model where there is none), tokenizer_config.json, special_tokens_map.json,
    added_tokens.json, generation_config.json (end tokens), chat_template.jinja and chat_template.json.

    Raises:
        ModelFileError: a file is missing, damaged, or contradicts another.
        UnsupportedModel: a tokenizer whose tokens have no fixed bytes (WordPiece), or a chat template that cannot be
            compiled.
        ConfigError: `chat_template` cannot be compiled.
    """
    config = {**_read_json(path / "special_tokens_map.json"), **_read_json(path / "tokenizer_config.json")}
    if (path / "tokenizer.json").is_file():
        tokenizer = _from_tokenizer_json(path, config)
    elif (path / "tokenizer.model").is_file():
        tokenizer = _from_sentencepiece(path, config)
    else:
        raise ModelFileError(f"{path} has no tokenizer.json and no tokenizer.model; download the model again")
    tokenizer = replace(tokenizer, eos_token_ids=tokenizer.eos_token_ids | _generation_eos(path, tokenizer.vocab_size))
    if chat_template is not None:
        return replace(tokenizer, chat_template=ChatTemplate(chat_template))
    sources = _template_sources(path, config)
    return replace(tokenizer, chat_template=_template(sources, "default"), tool_template=_template(sources, "tool_use"))


def _from_tokenizer_json(path: Path, config: Mapping[str, Any]) -> TextTokenizer:
    text = _read_text(path / "tokenizer.json")
    try:
        backend = Tokenizer.from_str(text)
        description = json.loads(text)
    except Exception as error:  # the library raises bare Exception
        raise ModelFileError(f"{path / 'tokenizer.json'} cannot be read ({_one_line(error)})") from error
    # Both are settings for training batches; in serving they would cut or pad prompts.
    backend.no_truncation()
    backend.no_padding()
    special = _special_tokens(config)
    _add_missing_tokens(backend, config, _read_json(path / "added_tokens.json"), frozenset(special.values()))
    added = backend.get_added_tokens_decoder()
    special_ids = {i for i, token in added.items() if token.special or token.content in set(special.values())}
    special_ids |= {i for token in _additional_special_tokens(config) if (i := backend.token_to_id(token)) is not None}
    bos, eos = (_id_of(backend, special.get(name)) for name in ("bos_token", "eos_token"))
    prefix, suffix = _edges(backend, config, bos, eos)
    return TextTokenizer(
        backend=backend,
        table=_token_table(backend, description, special_ids),
        special_token_ids=frozenset(special_ids),
        eos_token_ids=frozenset(() if eos is None else (eos,)),
        bos_token_id=bos,
        prefix_ids=prefix,
        suffix_ids=suffix,
        template_tokens=special,
    )


def _from_sentencepiece(path: Path, config: Mapping[str, Any]) -> TextTokenizer:
    file = read_sentencepiece(path / "tokenizer.model")
    vocabulary = file.vocabulary
    foreign = [
        t for t, _ in _declared_added_tokens(config, _read_json(path / "added_tokens.json")) if t not in vocabulary.tokens
    ]
    if foreign:
        raise UnsupportedModel(
            f"{path} adds the token {foreign[0]!r} to its tokenizer.model; save the tokenizer as tokenizer.json first"
        )
    add_bos = config.get("add_bos_token", True) and file.bos_id is not None
    add_eos = config.get("add_eos_token", False) and file.eos_id is not None
    names = {"bos_token": file.bos_id, "eos_token": file.eos_id, "unk_token": file.unknown_id}
    return TextTokenizer(
        backend=score_bpe.build_score_bpe(vocabulary, file.unknown_id),
        table=score_bpe.token_table(vocabulary),
        special_token_ids=frozenset(vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN)),
        eos_token_ids=frozenset(() if file.eos_id is None else (file.eos_id,)),
        bos_token_id=file.bos_id,
        prefix_ids=(file.bos_id,) if add_bos and file.bos_id is not None else (),
        suffix_ids=(file.eos_id,) if add_eos and file.eos_id is not None else (),
        prepare=score_bpe.space_prefixer(vocabulary) if file.add_space_prefix else None,
        template_tokens={name: vocabulary.tokens[i] for name, i in names.items() if i is not None},
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} cannot be read ({_one_line(error)})") from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ModelFileError(f"{path} is not valid JSON ({error}); download the model again") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} is not a JSON object; download the model again")
    return content


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _content(token: Any) -> str | None:
    """A special token is written as its spelling or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {name: _content(config.get(name)) for name in _SPECIAL_NAMES}
    return {name: token for name, token in found.items() if token is not None}


def _additional_special_tokens(config: Mapping[str, Any]) -> Iterator[str]:
    tokens = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    for token in tokens.values() if isinstance(tokens, dict) else tokens:
        content = _content(token)
        if content is not None:
            yield content


def _declared_added_tokens(config: Mapping[str, Any], added: Mapping[str, Any]) -> list[tuple[str, AddedToken]]:
    """Tokens that tokenizer_config.json and added_tokens.json list with an id, in order of id."""
    declared: dict[int, AddedToken] = {}
    for content, token_id in added.items():
        declared[int(token_id)] = AddedToken(content, normalized=False)
    for token_id, token in (config.get("added_tokens_decoder") or {}).items():
        flags = {key: bool(token.get(key, False)) for key in ("lstrip", "rstrip", "single_word", "normalized", "special")}
        declared[int(token_id)] = AddedToken(str(token.get("content", "")), **flags)
    return [(declared[token_id].content, declared[token_id]) for token_id in sorted(declared)]


def _add_missing_tokens(
    backend: Tokenizer, config: Mapping[str, Any], added: Mapping[str, Any], special: frozenset[str]
) -> None:
    for content, token in _declared_added_tokens(config, added):
        if backend.token_to_id(content) is None:
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    expected = {str(t.get("content")): int(i) for i, t in (config.get("added_tokens_decoder") or {}).items()}
    expected |= {content: int(token_id) for content, token_id in added.items()}
    for content, token_id in expected.items():
        if backend.token_to_id(content) != token_id:
            raise ModelFileError(
                f"the tokenizer's files disagree: the token {content!r} has id {backend.token_to_id(content)} in "
                f"tokenizer.json and {token_id} beside it; download the model again"
            )
    # A name in the configuration makes a token special, whatever tokenizer.json says (as in transformers).
    already = {token.content for token in backend.get_added_tokens_decoder().values()}
    known = [token for token in sorted(special - already) if backend.token_to_id(token) is not None]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in known])


def _id_of(backend: Tokenizer, token: str | None) -> int | None:
    return None if token is None else backend.token_to_id(token)


def _edges(
    backend: Tokenizer, config: Mapping[str, Any], bos: int | None, eos: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids the post-processor puts around a text; `add_bos_token` and `add_eos_token` of the configuration win over it."""
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    start = next((n for n in range(len(full) - len(bare) + 1) if full[n : n + len(bare)] == bare), 0)
    prefix, suffix = tuple(full[:start]), tuple(full[start + len(bare) :])
    if "add_bos_token" in config:
        prefix = (bos,) if config["add_bos_token"] and bos is not None else ()
    if "add_eos_token" in config:
        suffix = (eos,) if config["add_eos_token"] and eos is not None else ()
    return prefix, suffix


def _token_table(backend: Tokenizer, description: Mapping[str, Any], special_ids: set[int]) -> list[bytes]:
    spelled = {token_id: token for token, token_id in backend.get_vocab(with_added_tokens=True).items()}
    table = [b""] * (max(spelled, default=-1) + 1)
    learned, added = _byte_rules(description)
    added_ids = set(backend.get_added_tokens_decoder())
    for token_id, token in spelled.items():
        rule = str.encode if token_id in special_ids else added if token_id in added_ids else learned
        table[token_id] = rule(token)
    return table


_ByteRule = Callable[[str], bytes]


def _byte_rules(description: Mapping[str, Any]) -> tuple[_ByteRule, _ByteRule]:
    """How learned and how added tokens become bytes, read off the `decoder` section of tokenizer.json."""
    parts = list(_flatten(description.get("decoder") or {}))
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        return byte_level_bytes, str.encode
    marks_spaces = any(part.get("type") == "Replace" and part.get("content") == " " for part in parts)
    if "Metaspace" in kinds or marks_spaces:
        learned = _sentencepiece_bytes_with_fallback if "ByteFallback" in kinds else _sentencepiece_bytes
        return learned, _sentencepiece_bytes
    named = ", ".join(sorted(str(kind) for kind in kinds)) or "none"
    raise UnsupportedModel(f"tokenizer.json has the decoder {named}; ByteLevel and SentencePiece-style ones can be run")


def _flatten(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder.get("type") == "Sequence":
        for part in decoder.get("decoders", ()):
            yield from _flatten(part)
    elif decoder:
        yield decoder


def _sentencepiece_bytes(token: str) -> bytes:
    return token.replace(SPACE_MARK, " ").encode()


def _sentencepiece_bytes_with_fallback(token: str) -> bytes:
    byte = byte_token_value(token)
    return _sentencepiece_bytes(token) if byte is None else bytes([byte])


def _generation_eos(path: Path, vocab_size: int) -> frozenset[int]:
    value = _read_json(path / "generation_config.json").get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    return frozenset(i for i in ids if isinstance(i, int) and 0 <= i < vocab_size)


def _template_sources(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name. A chat_template.jinja beside the configuration wins over what is written inside it."""
    inline = _read_json(path / "chat_template.json").get("chat_template") or config.get("chat_template") or {}
    if isinstance(inline, str):
        inline = {"default": inline}
    elif isinstance(inline, list):
        inline = {entry["name"]: entry["template"] for entry in inline if isinstance(entry, dict) and "name" in entry}
    sources = dict(inline)
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        sources[file.stem] = _read_text(file)
    if (path / "chat_template.jinja").is_file():
        sources["default"] = _read_text(path / "chat_template.jinja")
    return sources


def _template(sources: Mapping[str, str], name: str) -> ChatTemplate | None:
    source = sources.get(name)
    if not source:
        return None
    try:
        return ChatTemplate(source)
    except ConfigError as error:
        raise UnsupportedModel(
            f"the model's chat template: {error}; pass a corrected one with --chat-template FILE"
        ) from error
