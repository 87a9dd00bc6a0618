import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.errors import ModelFileError
from argosy.models.tokenizers import tokenizer_from_gguf
from argosy.models.tokenizers.score_bpe import merges_from_scores, space_prefixer
from argosy.models.tokenizers.vocabulary import Vocabulary

WORDS = [
    "the",
    "then",
    "anana",
    "nana",
    "aaaa",
    "Bäume",
    "лиса",
    "狐狸",
    "args",
    " ",
    "   ",
    "\n",
    "\t",
    "100",
    "😊",
    "é",
    "e\u0301",
    "क",
    "<u>",
]
texts = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=30).map("".join),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40),
    st.text(alphabet="anbt e\u2581", max_size=60),
).filter(lambda text: "\x00" not in text)  # sentencepiece's Python API cuts at NUL


@pytest.mark.parametrize("add_space_prefix", [True, False])
def test_ids_equal_sentencepiece(add_space_prefix, train_sentencepiece, sentencepiece_metadata):
    model = train_sentencepiece(add_dummy_prefix=add_space_prefix, user_defined_symbols=["<u>", "▁▁▁▁"])
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    metadata = sentencepiece_metadata(
        model, add_space_prefix=add_space_prefix, add_bos_token=False, user_defined=["<u>", "▁▁▁▁"]
    )
    tokenizer = tokenizer_from_gguf(metadata)

    @given(texts)
    @settings(max_examples=500, deadline=None)
    def check(text):
        # Spelled-out control tokens are recognised here on purpose, and are plain text to sentencepiece.
        if any(token in text for token in ("<s>", "</s>", "<unk>")):
            return
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text)
        prefix = " " if add_space_prefix and text else ""
        assert tokenizer.decode(ids) == prefix + text.replace("▁", " ")

    check()


@pytest.mark.parametrize("alphabet", ["ab ", "aab", "anb "])
def test_ids_equal_sentencepiece_where_tokens_overlap_themselves(alphabet, train_sentencepiece, sentencepiece_metadata):
    """Few letters make tokens like `anana`, which text can be cut into in many ways."""
    pseudo = [alphabet[(n * n + n // 3) % len(alphabet)] for n in range(6000)]
    corpus = ["".join(pseudo[n : n + 40]).strip() or "a" for n in range(0, 6000, 37)]
    model = train_sentencepiece(vocab_size=330, corpus=corpus)
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata(model, add_bos_token=False))

    @given(st.text(alphabet=alphabet, max_size=80))
    @settings(max_examples=400, deadline=None)
    def check(text):
        assert tokenizer.encode(text) == reference.encode(text)

    check()


def test_a_character_outside_the_vocabulary_becomes_its_bytes(train_sentencepiece, sentencepiece_metadata):
    tokenizer = tokenizer_from_gguf(
        sentencepiece_metadata(train_sentencepiece(), add_bos_token=False, add_space_prefix=False)
    )
    ids = tokenizer.encode("😊")
    assert [tokenizer.token_bytes(i) for i in ids] == [bytes([b]) for b in "😊".encode()]
    assert tokenizer.decode(ids[:3]) == "\ufffd"
    assert tokenizer.decode(ids) == "😊"


def test_without_byte_tokens_unknown_characters_become_one_unknown_token(train_sentencepiece, sentencepiece_metadata):
    model = train_sentencepiece(byte_fallback=False, vocab_size=200)
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata(model, add_bos_token=False))
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert tokenizer.encode("a😊😊b") == reference.encode("a😊😊b")
    assert tokenizer.encode("a😊😊b").count(reference.unk_id()) == 1


def test_space_is_put_before_the_text_and_after_each_control_token():
    vocabulary = Vocabulary(("<unk>", "<s>", "</s>", "a"), (2, 3, 3, 1), (0.0,) * 4)
    prefix = space_prefixer(vocabulary)
    assert prefix("a") == " a"
    assert prefix("") == ""
    assert prefix("<s>a</s><s> a") == "<s> a</s><s>  a"
    assert prefix("<s>") == "<s>"


def test_longer_control_token_wins_over_its_prefix():
    vocabulary = Vocabulary(("<unk>", "<s>", "<s>x", "a"), (2, 3, 3, 1), (0.0,) * 4)
    assert space_prefixer(vocabulary)("<s>xa") == "<s>x a"


def test_merges_leave_out_control_byte_and_user_defined_tokens():
    vocabulary = Vocabulary(("a", "b", "ab", "<0x0A>", "<s>", "aab"), (1, 1, 1, 6, 3, 4), (-2.0, -3.0, 0.0, 0.0, 0.0, 0.0))
    assert merges_from_scores(vocabulary) == [("a", "b")]


def test_higher_score_merges_first_and_longest_left_part_first():
    tokens = ("a", "n", "an", "na", "ana")
    vocabulary = Vocabulary(tokens, (1,) * 5, (-9.0, -9.0, -1.0, -2.0, -0.5))
    assert merges_from_scores(vocabulary) == [("an", "a"), ("a", "na"), ("a", "n"), ("n", "a")]


def test_missing_scores_are_refused():
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a"],
        "tokenizer.ggml.token_type": [2, 3, 3, 1],
    }
    with pytest.raises(ModelFileError, match="scores"):
        tokenizer_from_gguf(metadata)
