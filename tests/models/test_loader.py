"""From a name to a running model: both kinds of checkpoint give the logits that transformers gives."""

import json

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, TokenType
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from argosy.errors import ArgosyError, ConfigError, ModelFileError, UnknownModel, UnsupportedModel
from argosy.models.architectures.attention import SingleSequenceAttention
from argosy.models.checkpoint import load_config
from argosy.models.devices import parse_device, parse_dtype
from argosy.models.loader import load_model

SPECIAL = ["<|endoftext|>", "<|start|>", "<|stop|>"]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = SPECIAL + LETTERS + ["th"]


def add_tokenizer(writer) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(["t h"])
    writer.add_eot_token_id(0)


def write_tokenizer(folder) -> None:
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(TOKENS)}, [("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": SPECIAL[1], "eos_token": SPECIAL[2]}))


@pytest.fixture(scope="module")
def runnable(tiny_checkpoint):
    """A family's checkpoint with tokenizers, as folder and as GGUF file."""

    def make(family, **options):
        checkpoint = tiny_checkpoint(family, extra=add_tokenizer, **options)
        write_tokenizer(checkpoint.folder)
        return checkpoint

    return make


def logits(model, ids):
    with torch.inference_mode():
        hidden = model.decoder(torch.tensor(ids), torch.arange(len(ids)), SingleSequenceAttention())
        return model.decoder.logits(hidden)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
CASES = [
    ("llama", {}),
    ("llama_tied", {}),
    ("llama_bias", {}),
    ("llama", {"rope_parameters": LLAMA3}),
    ("llama", {"rope_parameters": YARN}),
    ("llama", {"rope_parameters": LINEAR}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("gemma3", {}),
    ("mixtral", {}),
    ("qwen3_moe", {}),
]


@pytest.mark.parametrize(("family", "options"), CASES)
def test_both_kinds_give_the_logits_of_transformers(runnable, family, options):
    checkpoint = runnable(family, **options)
    from_gguf, from_folder = load_model(str(checkpoint.gguf)), load_model(str(checkpoint.folder))
    ids = torch.randint(0, 320, (100,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.inference_mode():
        expected = checkpoint.reference(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(logits(from_folder, ids), expected, rtol=0.0, atol=1e-4)
    torch.testing.assert_close(logits(from_gguf, ids), expected, rtol=0.0, atol=1e-4)


def test_what_a_loaded_gguf_says_of_itself(runnable):
    checkpoint = runnable("llama")
    model = load_model(str(checkpoint.gguf))
    assert model.path == checkpoint.gguf
    assert model.name == str(checkpoint.gguf)
    assert model.eos_token_ids == {0, 2}
    assert model.tokenizer.encode("th😊") == [TOKENS.index("th"), *model.tokenizer.encode("😊")]
    assert model.tokenizer.decode(model.tokenizer.encode("th😊")) == "th😊"
    assert not model.decoder.training
    assert model.weights_bytes == sum(t.numel() * 4 for t in checkpoint.tensors.values())
    assert {p.dtype for p in model.decoder.parameters()} == {torch.float32}


def test_end_ids_of_a_folder_are_united(runnable):
    """Tokenizer, configuration and generation configuration each name another."""
    checkpoint = runnable("llama", eos_token_id=5)
    (checkpoint.folder / "generation_config.json").write_text('{"eos_token_id": [7, 9], "temperature": 0.5}')
    model = load_model(str(checkpoint.folder))
    assert model.eos_token_ids == {2, 5, 7, 9}
    assert dict(model.default_sampling) == {"temperature": 0.5}


def test_end_id_outside_the_vocabulary_is_refused(runnable):
    checkpoint = runnable("llama")
    (checkpoint.folder / "generation_config.json").write_text('{"eos_token_id": 320}')
    with pytest.raises(ModelFileError, match="end-of-text id 320 is outside the vocabulary of 320"):
        load_model(str(checkpoint.folder))


def test_dtype_is_that_asked_for(runnable):
    path = str(runnable("llama").gguf)
    model = load_model(path, dtype="bfloat16")
    assert {p.dtype for p in model.decoder.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in load_model(path, dtype="half").decoder.parameters()} == {torch.float16}


def test_chat_template_replaces_the_checkpoints_own(runnable):
    checkpoint = runnable("llama")
    for path in (checkpoint.gguf, checkpoint.folder):
        assert not load_model(str(path)).tokenizer.has_chat_template
        model = load_model(str(path), chat_template="{{ messages[0].content }}!")
        assert model.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}]) == "Hi!"


def test_positions_can_be_fewer_than_the_model_allows(runnable):
    path = str(runnable("llama").gguf)
    assert load_model(path, max_positions=16).decoder.max_positions == 16
    assert load_model(path).decoder.max_positions == 128
    for wrong in (0, 129):
        with pytest.raises(ConfigError, match=rf"max_positions must be within \[1, 128\] .* got {wrong}"):
            load_model(path, max_positions=wrong)


def test_configuration_and_sizes_without_weights(runnable):
    checkpoint = runnable("qwen3_moe")
    for path in (checkpoint.gguf, checkpoint.folder):
        opened = load_config(str(path))
        assert opened.num_parameters == sum(p.numel() for p in checkpoint.reference.parameters())
        assert opened.weights_bytes == 4 * opened.num_parameters
        assert opened.config.architecture == "qwen3_moe"


def test_missing_tensor_names_the_file_and_the_tensor(tiny_checkpoint):
    def drop(writer):
        add_tokenizer(writer)
        del writer.tensors[0]["blk.1.attn_v.weight"]

    with pytest.raises(
        ModelFileError, match=r"llama\.gguf: the checkpoint lacks model\.layers\.1\.self_attn\.v_proj\.weight"
    ):
        load_model(str(tiny_checkpoint("llama", extra=drop).gguf))


def test_unknown_tensor_names_the_file_and_the_tensor(tiny_checkpoint):
    def add(writer):
        add_tokenizer(writer)
        writer.add_tensor("blk.1.attn_x.weight", torch.zeros(4).numpy())

    with pytest.raises(UnsupportedModel, match=r"llama\.gguf: llama has no tensor called 'blk\.1\.attn_x\.weight'"):
        load_model(str(tiny_checkpoint("llama", extra=add).gguf))


def test_tensor_type_that_cannot_be_read_is_refused_before_memory_is_taken(tiny_checkpoint, monkeypatch):
    def add(writer):
        add_tokenizer(writer)
        writer.add_tensor("blk.1.ffn_x.weight", np.zeros((2, 18), np.uint8), raw_dtype=GGMLQuantizationType.IQ4_NL)

    path = tiny_checkpoint("llama", extra=add).gguf
    monkeypatch.setattr("argosy.models.architectures.decoder.build_decoder", lambda *a, **k: pytest.fail("was built"))
    with pytest.raises(UnsupportedModel, match=r"tensor 'blk\.1\.ffn_x\.weight' has type IQ4_NL"):
        load_model(str(path))


def test_wrong_shape_names_the_file_and_the_tensor(runnable):
    folder = runnable("llama").folder
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))
    with pytest.raises(ModelFileError, match=rf"{folder}: tensor 'model\.layers\.0\.mlp\.\w+\.weight' has shape"):
        load_model(str(folder))


def test_unsupported_folder_names_the_file(runnable):
    folder = runnable("llama").folder
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(UnsupportedModel, match=r"config\.json: .*mamba"):
        load_model(str(folder))


def test_unknown_name_is_refused():
    with pytest.raises(UnknownModel):
        load_model("/nowhere/model.gguf")


def test_device_and_dtype_are_checked_before_anything_is_looked_for():
    with pytest.raises(ConfigError, match="unknown device 'tpu'"):
        load_model("/nowhere/model.gguf", device="tpu")
    with pytest.raises(ConfigError, match=r"unknown dtype 'bfloat61'.*did you mean bfloat16"):
        load_model("/nowhere/model.gguf", dtype="bfloat61")


@pytest.mark.parametrize("name", ["", "gpu", "cuda:x", "cuda:-1", "meta", "mps", "cpu:1", "cpu:banana"])
def test_unknown_devices(name):
    with pytest.raises(ConfigError, match="use cpu, cuda or cuda:<index>") as caught:
        parse_device(name)
    assert caught.value.param == "device"


def test_cuda_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch finds no CUDA device here; use cpu"):
        parse_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert parse_device("cuda") == torch.device("cuda", 0)
    assert parse_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match=r"has 2 CUDA device"):
        parse_device("cuda:2")


def test_dtype_names():
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    assert parse_dtype("auto", cpu) == parse_dtype("float", cpu) == parse_dtype("float32", cuda) == torch.float32
    assert parse_dtype("auto", cuda) == parse_dtype("bfloat16", cpu) == torch.bfloat16
    assert parse_dtype("half", cpu) == parse_dtype("float16", cpu) == torch.float16


@pytest.fixture(scope="module")
def runnable_gguf_bytes(runnable):
    sizes = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 8, "num_hidden_layers": 1}
    return runnable("llama", **sizes).gguf.read_bytes()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_anywhere_gives_a_model_or_one_clear_line(data, runnable_gguf_bytes, tmp_path_factory):
    content = bytearray(runnable_gguf_bytes)
    end_of_header = runnable_gguf_bytes.index(b"blk.0.ffn_up.weight") + 64
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, end_of_header - 1))
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(content)
    try:
        load_model(str(path))
    except ArgosyError as error:
        line = str(error)
    else:
        line = ""
    assert "\n" not in line
