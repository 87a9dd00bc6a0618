"""Reading what the gguf library wrote, and refusing everything that is not whole."""

import contextlib
import struct
import tracemalloc

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.gguf_config import model_config_from_gguf
from argosy.models.gguf_file import GgufFile

KEYS = {
    "a.u8": ("add_uint8", 200),
    "a.i8": ("add_int8", -100),
    "a.u16": ("add_uint16", 60_000),
    "a.i16": ("add_int16", -30_000),
    "a.u32": ("add_uint32", 4_000_000_000),
    "a.i32": ("add_int32", -2_000_000_000),
    "a.u64": ("add_uint64", 2**63 + 1),
    "a.i64": ("add_int64", -(2**62)),
    "a.f32": ("add_float32", 0.5),
    "a.f64": ("add_float64", 0.1),
    "a.yes": ("add_bool", True),
    "a.no": ("add_bool", False),
    "a.text": ("add_string", "Café 😊"),
    "a.words": ("add_array", ["", "é", "x" * 300]),
    "a.numbers": ("add_array", [1, -2, 3]),
    "a.reals": ("add_array", [0.5, -1.25]),
    "a.truths": ("add_array", [True, False, True]),
}


@pytest.fixture(scope="module")
def sample_bytes(tmp_path_factory) -> bytes:
    """A file with every kind of value and three tensors."""
    path = tmp_path_factory.mktemp("gguf") / "sample.gguf"
    writer = GGUFWriter(path, "llama")
    for key, (method, value) in KEYS.items():
        getattr(writer, method)(key, value)
    writer.add_tensor("one", np.arange(6, dtype=np.float32))
    writer.add_tensor("two", np.arange(12, dtype=np.float16).reshape(3, 4))
    writer.add_tensor("three", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture
def sample(sample_bytes, tmp_path):
    path = tmp_path / "sample.gguf"
    path.write_bytes(sample_bytes)
    return path


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def header(*, tensors: int = 0, entries: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries)


def tensor_info(name: str, extents: list[int], *, type_id: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, type_id, offset)


def refuse(tmp_path, content: bytes, match: str, error: type[Exception] = ModelFileError) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(error, match=match) as caught:
        GgufFile(path)
    assert "bad.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_metadata_comes_as_plain_values(sample):
    file = GgufFile(sample)
    assert file.version == 3
    for key, (_, value) in KEYS.items():
        assert file.metadata[key] == value, key
        assert type(file.metadata[key]) is type(value), key
    assert [type(v) for v in file.metadata["a.truths"]] == [bool] * 3


def test_reads_the_same_as_the_library(sample):
    file, reader = GgufFile(sample), GGUFReader(sample)
    theirs = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert dict(file.metadata) == theirs
    assert list(file.tensors) == [t.name for t in reader.tensors]
    for tensor in reader.tensors:
        ours = file.tensors[tensor.name]
        assert ours.offset_bytes == tensor.data_offset
        assert ours.num_bytes == tensor.n_bytes
        assert ours.shape == tuple(reversed(tensor.shape.tolist()))
        assert file.raw(tensor.name).tobytes() == tensor.data.tobytes()
    assert file.weights_bytes == 6 * 4 + 12 * 2 + 24 * 4
    assert file.size_bytes == sample.stat().st_size


def test_version_2_is_read(sample_bytes, tmp_path):
    (tmp_path / "v2.gguf").write_bytes(sample_bytes[:4] + struct.pack("<I", 2) + sample_bytes[8:])
    assert GgufFile(tmp_path / "v2.gguf").version == 2


def test_alignment_of_the_file_is_honoured(tmp_path):
    path = tmp_path / "aligned.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_custom_alignment(256)
    for name in "ab":
        writer.add_tensor(name, np.full(3, ord(name), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(path)
    assert [t.offset_bytes % 256 for t in file.tensors.values()] == [0, 0]
    assert file.dequantize("b").tolist() == [98.0] * 3


def test_missing_file_and_folder_are_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"cannot read .*nothing\.gguf: No such file"):
        GgufFile(tmp_path / "nothing.gguf")
    with pytest.raises(ModelFileError, match="Is a directory"):
        GgufFile(tmp_path)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is empty"),
        (b"G", "not a GGUF file"),
        (b"<html>not found</html>", "not a GGUF file: it starts with b'<htm'"),
        (b"GGUF", "truncated or damaged: the version"),
        (header(version=1), "GGUF version 1"),
        (header(version=4), "GGUF version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(entries=2**63), "claims 9223372036854775808 metadata entries"),
        (header(tensors=2**40), "claims 1099511627776 tensors"),
        (header(entries=1) + struct.pack("<Q", 2**50) + b"x" * 40, "a metadata key ends at byte"),
        (header(entries=1) + struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IQ", 4, 0), "key is not UTF-8"),
        (header(entries=1) + string("k") + struct.pack("<IQ", 99, 0), "k has the unknown value type 99"),
        (header(entries=1) + string("k") + struct.pack("<IIQ", 9, 0, 2**60), "numbers in k"),
        (header(entries=1) + string("k") + struct.pack("<IIQ", 9, 8, 2**60), "strings in k"),
        (header(entries=1) + string("k") + struct.pack("<IIQ", 9, 9, 1), "array of arrays"),
        (header(entries=1) + string("k") + struct.pack("<IB", 7, 2), "neither 0 nor 1"),
        (header(entries=2) + 2 * (string("k") + struct.pack("<II", 4, 1)), "'k' occurs twice"),
        (header(entries=1) + string("general.alignment") + struct.pack("<II", 4, 24), "power of two, got 24"),
        (header(entries=1) + string("general.alignment") + struct.pack("<II", 4, 0), "power of two, got 0"),
        (header(tensors=1) + tensor_info("t", [1] * 5), "rank 5"),
        (header(tensors=1) + string("t") + struct.pack("<I", 2**31) + b"\0" * 64, "rank 2147483648"),
        (header(tensors=1) + tensor_info("t", [4, 0]), "extent of 0"),
        (header(tensors=1) + tensor_info("t", [2**62, 2**62]), "truncated or damaged: tensor 't' ends"),
        (header(tensors=1) + tensor_info("t", [1], offset=2**63) + b"\0" * 64, "truncated or damaged: tensor 't' ends"),
        (header(tensors=1) + tensor_info("t", [1], offset=4) + b"\0" * 64, "not aligned to 32"),
        (header(tensors=1) + tensor_info("t", [33], type_id=2) + b"\0" * 64, "rows of 33, not a multiple of Q4_0's 32"),
        (header(tensors=2) + 2 * tensor_info("t", [1]) + b"\0" * 64, "'t' occurs twice"),
        (
            header(tensors=2) + tensor_info("t", [9]) + tensor_info("u", [1], offset=32) + b"\0" * 96,
            "tensor 'u' overlaps",
        ),
    ],
)
def test_damaged_file_is_refused_with_what_is_wrong(tmp_path, content, match):
    refuse(tmp_path, content, match)


def test_tensor_of_an_unknown_type_is_unsupported(tmp_path):
    refuse(tmp_path, header(tensors=1) + tensor_info("t", [1], type_id=4) + b"\0" * 64, "unknown type 4", UnsupportedModel)


def test_one_part_of_a_split_model_is_refused(tmp_path):
    content = header(entries=1) + string("split.count") + struct.pack("<IH", 2, 3)
    refuse(tmp_path, content, "one of 3 parts", UnsupportedModel)


def test_every_truncation_is_refused(sample_bytes, tmp_path):
    """Up to the last byte of the last tensor; what the writer pads after it carries nothing."""
    path = tmp_path / "cut.gguf"
    path.write_bytes(sample_bytes)
    end = max(t.offset_bytes + t.num_bytes for t in GgufFile(path).tensors.values())
    for length in range(end):
        path.write_bytes(sample_bytes[:length])
        with pytest.raises(ModelFileError, match=r"cut\.gguf"):
            GgufFile(path)
    path.write_bytes(sample_bytes[:end])
    GgufFile(path)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_damage_anywhere_gives_a_typed_error_or_a_readable_file(data, llama_gguf_bytes, tmp_path_factory):
    content = bytearray(llama_gguf_bytes)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, min(len(content), 3000) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(content)
    with contextlib.suppress(ModelFileError, UnsupportedModel):
        file = GgufFile(path)
        config = model_config_from_gguf(file)
        for name in file.tensors:
            file.dequantize(name)
        assert config.num_layers * config.hidden_size < len(content)


def test_refusing_an_absurd_count_allocates_nothing(tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(header(entries=1) + string("k") + struct.pack("<IIQ", 9, 0, 2**40) + b"\0" * 4096)
    tracemalloc.start()
    with pytest.raises(ModelFileError):
        GgufFile(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2**20
