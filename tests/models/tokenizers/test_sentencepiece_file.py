import contextlib

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.tokenizers import tokenizer_from_folder
from argosy.models.tokenizers.sentencepiece_file import read_sentencepiece


def test_pieces_scores_and_types_are_read(train_sentencepiece, sentencepiece_folder):
    model = train_sentencepiece(user_defined_symbols=["<u>"])
    file = read_sentencepiece(sentencepiece_folder(model) / "tokenizer.model")
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = range(reference.get_piece_size())
    assert file.vocabulary.tokens == tuple(reference.id_to_piece(n) for n in ids)
    assert file.vocabulary.scores == tuple(reference.get_score(n) for n in ids)
    assert [n for n in ids if file.vocabulary.types[n] == 3] == [n for n in ids if reference.is_control(n)]
    assert [n for n in ids if file.vocabulary.types[n] == 6] == [n for n in ids if reference.is_byte(n)]
    assert file.vocabulary.types[file.vocabulary.tokens.index("<u>")] == 4
    assert (file.unknown_id, file.bos_id, file.eos_id) == (reference.unk_id(), reference.bos_id(), reference.eos_id())


def test_switches_are_read(train_sentencepiece, sentencepiece_folder):
    model = train_sentencepiece(add_dummy_prefix=False, bos_id=-1, eos_id=2, unk_id=1, pad_id=0)
    file = read_sentencepiece(sentencepiece_folder(model) / "tokenizer.model")
    assert not file.add_space_prefix
    assert (file.unknown_id, file.bos_id, file.eos_id) == (1, None, 2)


def test_a_folder_with_only_a_sentencepiece_file_loads(train_sentencepiece, sentencepiece_folder, multilingual):
    model = train_sentencepiece()
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = tokenizer_from_folder(sentencepiece_folder(model))
    text = multilingual.replace("\x00", "")
    assert tokenizer.encode(text) == [reference.bos_id(), *reference.encode(text)]
    assert tokenizer.eos_token_ids == {reference.eos_id()}
    assert tokenizer.special_token_ids == {0, 1, 2}


def test_a_token_added_beside_a_sentencepiece_file_is_refused(train_sentencepiece, sentencepiece_folder):
    folder = sentencepiece_folder(train_sentencepiece())
    (folder / "added_tokens.json").write_text('{"<tool>": 420}')
    with pytest.raises(UnsupportedModel, match="<tool>"):
        tokenizer_from_folder(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "unigram", "vocab_size": 360}, "'unigram'"),
        ({"normalization_rule_name": "nmt_nfkc"}, "nmt_nfkc"),
        ({"remove_extra_whitespaces": True}, "extra whitespace"),
        ({"treat_whitespace_as_suffix": True}, "spaces"),
    ],
)
def test_what_cannot_be_rebuilt_exactly_is_refused(options, message, train_sentencepiece, sentencepiece_folder):
    path = sentencepiece_folder(train_sentencepiece(**options)) / "tokenizer.model"
    with pytest.raises(UnsupportedModel, match=message):
        read_sentencepiece(path)


def test_a_damaged_file_is_a_typed_error(train_sentencepiece, sentencepiece_folder):
    model = train_sentencepiece()
    path = sentencepiece_folder(model) / "tokenizer.model"

    @given(st.integers(0, len(model) - 1), st.integers(0, 255))
    @settings(max_examples=200, deadline=None)
    def check(at, byte):
        for damaged in (model[:at], model[:at] + bytes([byte]) + model[at + 1 :]):
            path.write_bytes(damaged)
            with contextlib.suppress(ModelFileError, UnsupportedModel):
                read_sentencepiece(path)

    check()


def test_a_truncated_file_is_refused(train_sentencepiece, sentencepiece_folder):
    path = sentencepiece_folder(train_sentencepiece()[:-7]) / "tokenizer.model"
    with pytest.raises(ModelFileError, match=r"tokenizer\.model"):
        read_sentencepiece(path)
