"""Each stored type against a scalar decoder written from the block formats of ggml (ggml-common.h, ggml-quants.c)."""

import struct

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

from argosy.errors import UnsupportedModel
from argosy.models.gguf_file import READABLE_TYPES, GgufFile


def half(block: bytes, at: int) -> float:
    return struct.unpack_from("<e", block, at)[0]


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def f32(block):
    return [struct.unpack("<f", block)[0]]


def f16(block):
    return [half(block, 0)]


def bf16(block):
    return [struct.unpack("<f", b"\0\0" + block)[0]]


def q4_0(block):
    d, q = half(block, 0), block[2:]
    return [d * ((b & 15) - 8) for b in q] + [d * ((b >> 4) - 8) for b in q]


def q4_1(block):
    d, m, q = half(block, 0), half(block, 2), block[4:]
    return [d * (b & 15) + m for b in q] + [d * (b >> 4) + m for b in q]


def fifth_bits(high: bytes) -> list[int]:
    bits = int.from_bytes(high, "little")
    return [(bits >> i & 1) << 4 for i in range(32)]


def q5_0(block):
    d, fifth, q = half(block, 0), fifth_bits(block[2:6]), block[6:]
    nibbles = [b & 15 for b in q] + [b >> 4 for b in q]
    return [d * ((n | h) - 16) for n, h in zip(nibbles, fifth, strict=True)]


def q5_1(block):
    d, m, fifth, q = half(block, 0), half(block, 2), fifth_bits(block[4:8]), block[8:]
    nibbles = [b & 15 for b in q] + [b >> 4 for b in q]
    return [d * (n | h) + m for n, h in zip(nibbles, fifth, strict=True)]


def q8_0(block):
    d = half(block, 0)
    return [d * signed(b) for b in block[2:]]


def q2_k(block):
    scales, q, d, dmin = block[:16], block[16:80], half(block, 80), half(block, 82)
    out = []
    for i in range(256):
        byte = q[i // 128 * 32 + i % 32]
        scale = scales[i // 16]
        out.append(d * (scale & 15) * (byte >> i % 128 // 32 * 2 & 3) - dmin * (scale >> 4))
    return out


def q3_k(block):
    high, q, packed, d = block[:32], block[32:96], block[96:108], half(block, 108)
    scales = []
    for i in range(16):
        low = packed[i] & 15 if i < 8 else packed[i - 8] >> 4
        scales.append((low | (packed[8 + i % 4] >> i // 4 * 2 & 3) << 4) - 32)
    out = []
    for i in range(256):
        low = q[i // 128 * 32 + i % 32] >> i % 128 // 32 * 2 & 3
        out.append(d * scales[i // 16] * (low - (0 if high[i % 32] >> i // 32 & 1 else 4)))
    return out


def scale_and_min(packed: bytes, j: int) -> tuple[int, int]:
    """Eight 6-bit scales and eight 6-bit minima in twelve bytes (Q4_K and Q5_K)."""
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    return packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4


def q4_k(block):
    d, dmin, packed, q = half(block, 0), half(block, 2), block[4:16], block[16:]
    out = []
    for i in range(256):
        scale, minimum = scale_and_min(packed, i // 32)
        byte = q[i // 64 * 32 + i % 32]
        out.append(d * scale * (byte >> 4 if i % 64 >= 32 else byte & 15) - dmin * minimum)
    return out


def q5_k(block):
    d, dmin, packed, high, q = half(block, 0), half(block, 2), block[4:16], block[16:48], block[48:]
    out = []
    for i in range(256):
        scale, minimum = scale_and_min(packed, i // 32)
        byte = q[i // 64 * 32 + i % 32]
        value = (byte >> 4 if i % 64 >= 32 else byte & 15) + 16 * (high[i % 32] >> i // 32 & 1)
        out.append(d * scale * value - dmin * minimum)
    return out


def q6_k(block):
    low, high, scales, d = block[:128], block[128:192], block[192:208], half(block, 208)
    out = []
    for i in range(256):
        part, quarter, lane = i // 128, i % 128 // 32, i % 32
        byte = low[part * 64 + quarter % 2 * 32 + lane]
        nibble = byte >> 4 if quarter >= 2 else byte & 15
        value = (nibble | (high[part * 32 + lane] >> quarter * 2 & 3) << 4) - 32
        out.append(d * signed(scales[i // 16]) * value)
    return out


# type -> (scalar decoder, offsets of its half-precision fields)
FORMATS = {
    "F32": (f32, ()),
    "F16": (f16, (0,)),
    "BF16": (bf16, ()),
    "Q4_0": (q4_0, (0,)),
    "Q4_1": (q4_1, (0, 2)),
    "Q5_0": (q5_0, (0,)),
    "Q5_1": (q5_1, (0, 2)),
    "Q8_0": (q8_0, (0,)),
    "Q2_K": (q2_k, (80, 82)),
    "Q3_K": (q3_k, (108,)),
    "Q4_K": (q4_k, (0, 2)),
    "Q5_K": (q5_k, (0, 2)),
    "Q6_K": (q6_k, (208,)),
}


def random_blocks(name: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random bits of every field, with scales that are finite."""
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    if name in ("F32", "BF16"):
        values = rng.standard_normal(count).astype("<f4").view(np.uint8).reshape(count, 4)
        return np.ascontiguousarray(values[:, 4 - block_bytes :])
    blocks = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    for at in FORMATS[name][1]:
        blocks[:, at : at + 2] = rng.standard_normal((count, 1)).astype("<f2").view(np.uint8)
    return blocks


def write(path, name: str, stored: np.ndarray) -> GgufFile:
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("t", stored, raw_dtype=GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def test_every_readable_type_has_a_decoder_here():
    assert {t.name for t in READABLE_TYPES} == set(FORMATS)


@pytest.mark.parametrize("blocks_per_row", [1, 3])
@pytest.mark.parametrize("name", FORMATS)
def test_dequantised_values_equal_the_scalar_decoder(tmp_path, name, blocks_per_row):
    rows, block_elements = 70, GGML_QUANT_SIZES[GGMLQuantizationType[name]][0]
    stored = random_blocks(name, rows * blocks_per_row, np.random.default_rng(7))
    file = write(tmp_path / "t.gguf", name, stored.reshape(rows, -1))
    decode = FORMATS[name][0]
    expected = [value for block in stored for value in decode(block.tobytes())]
    assert file.tensors["t"].shape == (rows, blocks_per_row * block_elements)
    assert file.raw("t").tobytes() == stored.tobytes()
    got = file.dequantize("t")
    assert got.dtype == np.float32
    assert got.flags.writeable
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got.ravel(), np.array(expected), rtol=1e-6, atol=1e-6 * scale)


def test_rows_and_calls_of_every_length_give_the_same_values(tmp_path):
    """The file is worked through in parts; none may be lost, repeated or moved at their seams."""
    stored = np.arange(40_000, dtype="<f4").view(np.uint8).reshape(100, 1600)
    file = write(tmp_path / "t.gguf", "F32", stored)
    assert np.array_equal(file.dequantize("t").ravel(), np.arange(40_000, dtype=np.float32))


def test_type_that_cannot_be_read_is_refused_by_name(tmp_path):
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType.IQ4_NL][1]
    file = write(tmp_path / "t.gguf", "IQ4_NL", np.zeros((2, block_bytes), np.uint8))
    for read in (file.check_types, lambda: file.dequantize("t")):
        with pytest.raises(UnsupportedModel, match=r"tensor 't' has type IQ4_NL"):
            read()
