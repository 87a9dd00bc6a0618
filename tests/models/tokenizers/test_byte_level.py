import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.errors import ModelFileError
from argosy.models.tokenizers import tokenizer_from_gguf
from argosy.models.tokenizers.byte_level import byte_level_bytes, byte_of_character, split_merge
from argosy.models.tokenizers.pre_tokenizers import RULES


def test_byte_alphabet_is_a_bijection():
    table = byte_of_character()
    assert sorted(table.values()) == list(range(256))
    assert table["A"] == 0x41
    assert table["Ġ"] == 0x20
    assert table["Ċ"] == 0x0A


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen35", "tekken"])
def test_ids_equal_a_plain_encoder(pre, byte_level_metadata, plain_bpe, multilingual):
    metadata = byte_level_metadata(pre, add_bos_token=False)
    tokenizer = tokenizer_from_gguf(metadata)
    plain = plain_bpe(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"], RULES[pre].patterns)
    normalizer = RULES[pre].normalizer()
    words = st.sampled_from(["the", " the", "hen", "world", "in", "    ", "12", "123", "é", "😊", "\n", "ि", "'S"])

    @given(st.one_of(st.lists(words, max_size=20).map("".join), st.just(multilingual)))
    @settings(max_examples=150, deadline=None)
    def check(text):
        text = text if normalizer is None else normalizer.normalize_str(text)
        assert tokenizer.encode(text) == plain.encode(text)

    check()


def test_any_text_comes_back_from_its_ids(byte_level_metadata):
    tokenizer = tokenizer_from_gguf(byte_level_metadata())

    @given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
    @settings(deadline=None)
    def check(text):
        ids = tokenizer.encode(text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
        assert tokenizer.decode(ids, skip_special_tokens=False) == text

    check()


def test_half_a_character_decodes_to_a_replacement_character(byte_level_metadata):
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    ids = tokenizer.encode("a😊")
    assert tokenizer.decode(ids[:-1]) == "a\ufffd"


def test_added_tokens_are_spelled_out_and_learned_ones_use_the_byte_alphabet(byte_level_metadata):
    tokenizer = tokenizer_from_gguf(byte_level_metadata(control=["<｜end▁é｜>"]))
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == "<｜end▁é｜>".encode()
    assert byte_level_bytes("Ã©") == "é".encode()
    assert byte_level_bytes("▁x") == "▁x".encode()


def test_a_word_that_is_a_token_is_taken_whole_only_where_the_model_ignores_merges(byte_level_metadata):
    def build(pre):
        metadata = byte_level_metadata(pre, control=[], add_bos_token=False)
        metadata["tokenizer.ggml.tokens"].append("hello")  # reachable by no merge
        metadata["tokenizer.ggml.token_type"].append(1)
        return tokenizer_from_gguf(metadata)

    assert [build("llama-bpe").token_bytes(i) for i in build("llama-bpe").encode("hello")] == [b"hello"]
    assert [build("gpt-2").token_bytes(i) for i in build("gpt-2").encode("hello")] == [b"he", b"l", b"l", b"o"]


@pytest.mark.parametrize(("merge", "halves"), [("Ġ a", ("Ġ", "a")), ("  b", (" ", "b"))])
def test_merge_is_split_at_the_first_space_after_its_first_character(merge, halves):
    assert split_merge(merge) == halves


@pytest.mark.parametrize("merge", ["ab", "a ", ""])
def test_malformed_merge_is_refused(merge):
    with pytest.raises(ModelFileError, match="merge"):
        split_merge(merge)


def test_merge_of_a_token_the_vocabulary_lacks_is_refused(byte_level_metadata):
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.merges"] = ["z z"]
    with pytest.raises(ModelFileError, match="'zz'"):
        tokenizer_from_gguf(metadata)
