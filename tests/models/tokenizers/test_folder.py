import json
import warnings

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from argosy.errors import ConfigError, ModelFileError, UnsupportedModel
from argosy.models.tokenizers import tokenizer_from_folder, tokenizer_from_gguf


@pytest.fixture
def backend(byte_level_metadata):
    """A byte-level tokenizer that adds BOS."""
    inner = tokenizer_from_gguf(byte_level_metadata("qwen2", control=["<s>", "</s>"])).backend
    inner.decoder = decoders.ByteLevel()
    bos = inner.token_to_id("<s>")
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return inner


@pytest.fixture
def folder(tmp_path, backend):
    backend.save(str(tmp_path / "tokenizer.json"))
    write(
        tmp_path,
        "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>"},
    )
    return tmp_path


def write(folder, name, content):
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def update(folder, **config):
    path = folder / "tokenizer_config.json"
    write(folder, path.name, json.loads(path.read_text()) | config)


def reference(folder):
    from transformers import PreTrainedTokenizerFast

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PreTrainedTokenizerFast.from_pretrained(folder)


def test_ids_equal_transformers(folder, multilingual):
    tokenizer, expected = tokenizer_from_folder(folder), reference(folder)
    for text in (multilingual, "", "the world", "<s>x</s>y", "e\u0301"):
        assert tokenizer.encode(text, add_special_tokens=False) == expected.encode(text, add_special_tokens=False)
    assert tokenizer.encode(multilingual) == expected.encode(multilingual)
    assert tokenizer.vocab_size == expected.vocab_size
    assert tokenizer.special_token_ids == set(expected.all_special_ids)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (expected.bos_token_id, {expected.eos_token_id})


def test_padding_and_truncation_left_on_by_a_trainer_are_off(folder, backend):
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = tokenizer_from_folder(folder)
    assert len(tokenizer.encode("x" * 50)) == 51
    assert len(tokenizer.encode("x")) == 2


def test_decoding_gives_the_text_back(folder, multilingual):
    import unicodedata

    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.decode(tokenizer.encode(multilingual)) == unicodedata.normalize("NFC", multilingual)


@pytest.mark.parametrize(
    ("config", "start", "end"),
    [
        ({}, ["<s>"], []),
        ({"add_bos_token": False}, [], []),
        ({"add_bos_token": True, "add_eos_token": True}, ["<s>"], ["</s>"]),
        ({"add_eos_token": True}, ["<s>"], ["</s>"]),
        ({"add_bos_token": True, "bos_token": None}, [], []),
    ],
)
def test_configuration_decides_on_bos_and_eos(config, start, end, folder, backend):
    update(folder, **config)
    ids = tokenizer_from_folder(folder).encode("x")
    expected = [*start, "x", *end]
    assert ids == [backend.token_to_id(token) for token in expected]


def test_tokens_listed_only_in_the_configuration_are_added(folder, backend):
    first = backend.get_vocab_size()
    update(
        folder,
        added_tokens_decoder={
            str(first): {"content": "<tool é>", "special": False, "normalized": False},
            str(first + 1): {"content": "<|im_end|>", "special": True},
        },
    )
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.encode("a<tool é>b", add_special_tokens=False)[1] == first
    assert tokenizer.decode([first, first + 1]) == "<tool é>"
    assert tokenizer.decode([first + 1], skip_special_tokens=False) == "<|im_end|>"


def test_files_that_disagree_on_an_id_are_refused(folder):
    update(folder, added_tokens_decoder={"9999": {"content": "<new>", "special": True}})
    with pytest.raises(ModelFileError, match=r"'<new>'.*9999"):
        tokenizer_from_folder(folder)


def test_names_in_the_configuration_make_tokens_special(folder, backend):
    update(folder, additional_special_tokens=["the"], pad_token={"content": "12", "special": True})
    tokenizer = tokenizer_from_folder(folder)
    assert {backend.token_to_id("the"), backend.token_to_id("12")} <= tokenizer.special_token_ids


def test_special_tokens_map_fills_in_for_the_configuration(folder, backend):
    (folder / "tokenizer_config.json").unlink()
    write(folder, "special_tokens_map.json", {"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.eos_token_ids == {backend.token_to_id("</s>")}


@pytest.mark.parametrize(("value", "expected"), [(5, {5}), ([5, 7], {5, 7}), (None, set())])
def test_end_tokens_of_the_generation_config_are_united(value, expected, folder, backend):
    write(folder, "generation_config.json", {"eos_token_id": value})
    assert tokenizer_from_folder(folder).eos_token_ids == {backend.token_to_id("</s>")} | expected


def test_templates_by_name_and_by_file(folder):
    update(folder, chat_template=[{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}])
    tokenizer = tokenizer_from_folder(folder)
    assert (tokenizer.apply_chat_template([]), tokenizer.apply_chat_template([], tools=[{}])) == ("d", "t")
    (folder / "chat_template.jinja").write_text("file{{ eos_token }}")
    tokenizer = tokenizer_from_folder(folder)
    assert (tokenizer.apply_chat_template([]), tokenizer.apply_chat_template([], tools=[{}])) == ("file</s>", "t")
    assert tokenizer_from_folder(folder, chat_template="mine").apply_chat_template([], tools=[{}]) == "mine"


def test_a_broken_template_is_refused_with_a_remedy(folder):
    update(folder, chat_template="{% for %}")
    with pytest.raises(UnsupportedModel, match="--chat-template"):
        tokenizer_from_folder(folder)
    with pytest.raises(ConfigError):
        tokenizer_from_folder(folder, chat_template="{% for %}")


def test_sentencepiece_style_tokenizer_json(tmp_path):
    vocab = {"<unk>": 0, "<0x0A>": 1, "<0xC3>": 2, "<0xA9>": 3, "▁": 4, "a": 5, "▁a": 6}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_tokens([AddedToken("▁▁▁", normalized=False)])
    inner.add_special_tokens(["<▁end>"])
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_from_folder(tmp_path)
    assert [tokenizer.token_bytes(i) for i in (1, 2, 3, 6, 7)] == [b"\n", b"\xc3", b"\xa9", b" a", b"   "]
    assert tokenizer.token_bytes(8) == "<▁end>".encode()
    assert tokenizer.decode(tokenizer.encode(" a aé\n")) == " a aé\n"


def test_a_tokenizer_without_fixed_bytes_is_refused(tmp_path):
    inner = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    inner.decoder = decoders.WordPiece()
    inner.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"model": 3}'),
        ("tokenizer_config.json", "nope"),
        ("added_tokens.json", "[]"),
    ],
)
def test_damaged_files_are_named(name, text, folder):
    (folder / name).write_text(text)
    with pytest.raises(ModelFileError, match=name):
        tokenizer_from_folder(folder)


def test_an_empty_folder_says_what_is_missing(tmp_path):
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        tokenizer_from_folder(tmp_path)
