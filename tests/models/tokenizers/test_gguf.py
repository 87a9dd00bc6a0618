import pytest

from argosy.errors import ConfigError, InvalidRequest, ModelFileError, UnsupportedModel
from argosy.models.tokenizers import tokenizer_from_gguf

LLAMA3_CONTROL = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
]
LLAMA3_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


@pytest.fixture
def llama3(byte_level_metadata):
    metadata = byte_level_metadata("llama-bpe", control=LLAMA3_CONTROL)
    first = metadata["tokenizer.ggml.tokens"].index("<|begin_of_text|>")
    metadata |= {"tokenizer.ggml.bos_token_id": first, "tokenizer.ggml.eos_token_id": first + 1}
    return tokenizer_from_gguf(metadata | {"tokenizer.chat_template": LLAMA3_TEMPLATE}), first


def test_a_chat_gets_one_bos_and_a_completion_gets_one_bos(llama3):
    tokenizer, bos = llama3
    text = tokenizer.apply_chat_template([{"role": "user", "content": "in the world"}])
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids[:2] == [bos, bos + 2]
    assert ids.count(bos) == 1
    assert tokenizer.encode("in the world")[0] == bos
    assert tokenizer.encode("in the world").count(bos) == 1
    assert tokenizer.encode("") == [bos]


def test_a_bos_spelled_out_in_the_text_is_not_doubled(llama3):
    tokenizer, bos = llama3
    assert tokenizer.encode("<|begin_of_text|>the") == tokenizer.encode("the")
    assert tokenizer.encode(tokenizer.apply_chat_template([{"role": "user", "content": "x"}])).count(bos) == 1


def test_end_tokens_are_those_named_and_those_spelled_like_one(llama3):
    tokenizer, bos = llama3
    assert tokenizer.eos_token_ids == {bos + 1, bos + 4, bos + 5}


def test_special_tokens_are_skipped_or_spelled(llama3):
    tokenizer, bos = llama3
    ids = tokenizer.encode("the<|eot_id|>hen")
    assert tokenizer.decode(ids) == "thehen"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|begin_of_text|>the<|eot_id|>hen"
    assert tokenizer.special_token_ids == set(range(bos, bos + 6))


def test_ids_outside_the_vocabulary_have_no_bytes(llama3):
    tokenizer, _ = llama3
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.token_bytes(-1) == b""
    assert tokenizer.decode([tokenizer.vocab_size, -5]) == ""


def test_eos_is_added_where_the_file_says_so(byte_level_metadata):
    metadata = byte_level_metadata(control=["<s>", "</s>"], add_bos_token=True, add_eos_token=True)
    last = len(metadata["tokenizer.ggml.tokens"]) - 1
    tokenizer = tokenizer_from_gguf(
        metadata | {"tokenizer.ggml.bos_token_id": last - 1, "tokenizer.ggml.eos_token_id": last}
    )
    assert tokenizer.encode("x")[0] == last - 1
    assert tokenizer.encode("x")[-1] == last
    assert tokenizer.encode("x</s>").count(last) == 1
    assert tokenizer.encode("") == [last - 1, last]
    assert tokenizer.encode("x", add_special_tokens=False) == tokenizer.encode("x")[1:-1]


@pytest.mark.parametrize(
    ("control", "user_defined", "ends"),
    [
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], [], {"<|endoftext|>", "<|im_end|>"}),
        (["<|im_start|>"], ["<|im_end|>"], {"<|im_end|>"}),
        (["<eos>", "<start_of_turn>", "<end_of_turn>"], ["<s>", "</s>"], {"<eos>", "<end_of_turn>"}),
        (["<s>", "</s>"], [], {"</s>"}),
        (["<|return|>", "<|call|>", "<|end|>"], [], {"<|return|>", "<|call|>"}),
        (["<|end|>"], [], {"<|end|>"}),
        (["<|file_sep|>", "<|fim_pad|>", "<|repo_name|>"], [], set()),
    ],
)
def test_end_tokens_by_spelling(control, user_defined, ends, byte_level_metadata):
    metadata = byte_level_metadata(control=[*control, *user_defined])
    types = metadata["tokenizer.ggml.token_type"]
    types[len(types) - len(user_defined) :] = [4] * len(user_defined)
    tokenizer = tokenizer_from_gguf(metadata)
    assert {tokenizer.token_bytes(i).decode() for i in tokenizer.eos_token_ids} == ends


def test_user_defined_tokens_are_found_in_text_and_are_not_special(byte_level_metadata):
    metadata = byte_level_metadata(control=["<tool>"])
    metadata["tokenizer.ggml.token_type"][-1] = 4
    tokenizer = tokenizer_from_gguf(metadata)
    tool = tokenizer.vocab_size - 1
    assert tokenizer.encode("a<tool>b")[1] == tool
    assert tokenizer.decode(tokenizer.encode("a<tool>b")) == "a<tool>b"
    assert tool not in tokenizer.special_token_ids


def test_sentencepiece_adds_bos_and_prefixes_each_piece_between_control_tokens(train_sentencepiece, sentencepiece_metadata):
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata(train_sentencepiece()))
    text = "the</s>the"
    spelled = [tokenizer.token_bytes(i) for i in tokenizer.encode(text)]
    assert b"".join(spelled) == b"<s> the</s> the"
    assert tokenizer.bos_token_id == tokenizer.encode("x")[0]
    assert tokenizer.encode("<s>the") == tokenizer.encode("the")


def test_tool_template_is_used_when_tools_are_given(byte_level_metadata):
    metadata = byte_level_metadata() | {
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_template.tool_use": "tools: {{ tools | length }}",
    }
    tokenizer = tokenizer_from_gguf(metadata)
    assert tokenizer.apply_chat_template([], tools=[{"type": "function"}]) == "tools: 1"
    assert tokenizer.apply_chat_template([], tools=[]) == "plain"


def test_a_given_template_replaces_those_of_the_file(byte_level_metadata):
    metadata = byte_level_metadata() | {"tokenizer.chat_template": "{% broken", "tokenizer.chat_template.tool_use": "x"}
    tokenizer = tokenizer_from_gguf(metadata, chat_template="mine")
    assert tokenizer.apply_chat_template([], tools=[{}]) == "mine"


def test_a_broken_template_is_named_with_a_remedy(byte_level_metadata):
    with pytest.raises(UnsupportedModel, match=r"line 2.*--chat-template"):
        tokenizer_from_gguf(byte_level_metadata() | {"tokenizer.chat_template": "x\n{% if %}"})
    with pytest.raises(ConfigError, match="line 1"):
        tokenizer_from_gguf(byte_level_metadata(), chat_template="{% if %}")


def test_without_a_template_chat_says_what_to_do(byte_level_metadata):
    tokenizer = tokenizer_from_gguf(byte_level_metadata())
    assert not tokenizer.has_chat_template
    with pytest.raises(InvalidRequest, match="--chat-template"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])


def test_a_lone_surrogate_is_refused(byte_level_metadata):
    with pytest.raises(InvalidRequest, match="surrogate"):
        tokenizer_from_gguf(byte_level_metadata()).encode("a\ud83db")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tokenizer.ggml.model": "t5"}, UnsupportedModel, "'t5'"),
        ({"tokenizer.ggml.model": None}, UnsupportedModel, "tokenizer.ggml.model"),
        ({"tokenizer.ggml.pre": "unheard-of"}, UnsupportedModel, "'unheard-of'"),
        ({"tokenizer.ggml.tokens": None}, ModelFileError, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": []}, ModelFileError, "empty"),
        ({"tokenizer.ggml.merges": None}, ModelFileError, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.token_type": [1]}, ModelFileError, "1 types"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, ModelFileError, "eos_token_id is 1000000"),
        ({"tokenizer.ggml.bos_token_id": -1}, ModelFileError, "bos_token_id is -1"),
        ({"tokenizer.ggml.add_bos_token": True}, ModelFileError, "bos_token_id is missing"),
        ({"tokenizer.ggml.add_space_prefix": True}, UnsupportedModel, "add_space_prefix"),
    ],
)
def test_contradictory_metadata_is_refused(change, error, message, byte_level_metadata):
    with pytest.raises(error, match=message):
        tokenizer_from_gguf(byte_level_metadata() | change)


def test_a_token_listed_twice_is_refused(byte_level_metadata):
    with pytest.raises(ModelFileError, match="'<x>' twice"):
        tokenizer_from_gguf(byte_level_metadata(control=["<x>", "<x>"]))


def test_an_unknown_token_type_is_refused(byte_level_metadata):
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.token_type"][0] = 9
    with pytest.raises(ModelFileError, match="type 9"):
        tokenizer_from_gguf(metadata)


def test_a_byte_token_of_another_spelling_is_refused(train_sentencepiece, sentencepiece_metadata):
    metadata = sentencepiece_metadata(train_sentencepiece())
    metadata["tokenizer.ggml.tokens"][metadata["tokenizer.ggml.tokens"].index("<0x41>")] = "<41>"
    with pytest.raises(ModelFileError, match="<41>"):
        tokenizer_from_gguf(metadata)
