"""The tokenizers of real models, against implementations that share no code with ours."""

import struct

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.models.gguf_file import GgufFile
from argosy.models.resolve import resolve
from argosy.models.tokenizers import tokenizer_from_gguf

pytestmark = pytest.mark.model

SMOLLM_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
pieces = [
    "Hello",
    " world",
    "été",
    "e\u0301",
    "  ",
    "\n\n",
    "\t",
    "中文",
    "ไทย",
    "हिन्दी",
    "العربية",
    "👨‍👩‍👧",
    "🇩🇪",
    "3.14",
    "½",
    "'s",
    "</b>",
    "\x07",
]
texts = st.one_of(
    st.lists(st.sampled_from(pieces), max_size=25).map("".join),
    st.text(alphabet=st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs", "Cn"]), max_size=40),
)


@pytest.fixture(scope="module")
def metadata():
    return {name: GgufFile(resolve(name).path).metadata for name in ("smollm2-135m", "gemma3-270m")}


def test_smollm2_ids_equal_a_plain_encoder(metadata, plain_bpe, multilingual):
    entries = metadata["smollm2-135m"]
    tokenizer = tokenizer_from_gguf(entries)
    plain = plain_bpe(entries["tokenizer.ggml.tokens"], entries["tokenizer.ggml.merges"], [r"\p{N}", SMOLLM_WORDS])
    assert tokenizer.encode(multilingual) == plain.encode(multilingual)
    assert tokenizer.decode(tokenizer.encode(multilingual)) == multilingual

    @given(texts)
    @settings(max_examples=200, deadline=None)
    def check(text):
        assert tokenizer.encode(text) == plain.encode(text)

    check()


def test_smollm2_chat_prompt_and_end_tokens(metadata):
    tokenizer = tokenizer_from_gguf(metadata["smollm2-135m"])
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids[:3] == [1, 9690, 198]
    assert ids.count(1) == 3
    assert tokenizer.encode("Hi", add_special_tokens=True) == tokenizer.encode("Hi", add_special_tokens=False)
    assert tokenizer.eos_token_ids == {0, 2}


def test_gemma3_ids_equal_sentencepiece(metadata, multilingual):
    entries = metadata["gemma3-270m"]
    tokenizer = tokenizer_from_gguf(entries)
    reference = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(entries))
    text = multilingual.replace("\x00", "")  # sentencepiece's Python API cuts at NUL
    assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text)
    assert tokenizer.encode(text)[0] == tokenizer.bos_token_id == 2
    assert tokenizer.decode(tokenizer.encode(text)) == text

    @given(texts.filter(lambda text: "\x00" not in text))
    @settings(max_examples=200, deadline=None)
    def check(text):
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text)

    check()


def test_gemma3_ends_a_turn_but_not_at_a_html_tag(metadata):
    tokenizer = tokenizer_from_gguf(metadata["gemma3-270m"])
    assert {tokenizer.token_bytes(i) for i in tokenizer.eos_token_ids} == {b"<eos>", b"<end_of_turn>"}
    assert not tokenizer.has_chat_template


def sentencepiece_model(entries):
    """The GGUF file's vocabulary as SentencePiece's own file (protocol buffer `ModelProto`).

    Converters write the marks of user-defined tokens as spaces; here they are marks again.
    """
    columns = (entries[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type"))
    model = b"".join(
        message(
            1,
            message(1, (token.replace(" ", "▁") if kind == 4 else token).encode())
            + b"\x15"
            + struct.pack("<f", score)
            + number(3, kind),
        )
        for token, score, kind in zip(*columns, strict=True)
    )
    bpe, byte_fallback, vocab_size = number(3, 2), number(35, 1), number(4, len(entries["tokenizer.ggml.tokens"]))
    ids = b"".join(
        number(field, entries[f"tokenizer.ggml.{key}_token_id"])
        for field, key in ((40, "unknown"), (41, "bos"), (42, "eos"), (43, "padding"))
    )
    names = b"".join(
        message(field, entries["tokenizer.ggml.tokens"][entries[f"tokenizer.ggml.{key}_token_id"]].encode())
        for field, key in ((45, "unknown"), (46, "bos"), (47, "eos"), (48, "padding"))
    )
    identity = (
        message(1, b"identity") + number(3, int(entries["tokenizer.ggml.add_space_prefix"])) + number(4, 0) + number(5, 1)
    )
    return model + message(2, vocab_size + bpe + byte_fallback + ids + names) + message(3, identity)


def message(field, body):
    return varint(field << 3 | 2) + varint(len(body)) + body


def number(field, value):
    return varint(field << 3) + varint(value)


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
