"""From the tensors of a GGUF file to weights under Hugging Face's names and in its layout.

Four things differ between the two:

- names (`blk.3.attn_q.weight` against `model.layers.3.self_attn.q_proj.weight`);
- for the llama architecture the rows of Q and K: GGUF lays the two halves that RoPE pairs next to each other;
- Gemma's norm weights, which GGUF stores as 1 + weight;
- experts, which GGUF stacks into one tensor per projection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argosy.errors import UnsupportedModel
from argosy.models.config import ModelConfig
from argosy.models.gguf_file import GgufFile
from argosy.models.gguf_rope import DIVISORS_TENSOR
from argosy.models.stored_weights import StoredWeight

_TOP_LEVEL = MappingProxyType({"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"})
_LAYER = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
_GEMMA_NORMS = MappingProxyType(
    {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
_ROUTERS = MappingProxyType({"mixtral": "block_sparse_moe.gate", "qwen3_moe": "mlp.gate"})
_EXPERTS = MappingProxyType(
    {
        "mixtral": {
            "gate": "block_sparse_moe.experts.{}.w1",
            "up": "block_sparse_moe.experts.{}.w3",
            "down": "block_sparse_moe.experts.{}.w2",
        },
        "qwen3_moe": {kind: f"mlp.experts.{{}}.{kind}_proj" for kind in ("gate", "up", "down")},
    }
)
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<stem>[a-z_]+)(?:\.(?P<expert>\d+))?\.(?P<kind>weight|bias)")


def weights_from_gguf(file: GgufFile, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Every weight of `file` in fp32, one at a time, as (Hugging Face name, tensor).

    `config` is what `model_config_from_gguf` made of the same file. At most one stored tensor is held at once.

    Raises:
        UnsupportedModel: a tensor that the architecture does not have, or of a type that cannot be read; before the first
            weight is given.
    """
    file.check_types()
    layout = _Layout(file, config)
    names = {stored: layout.targets(stored) for stored in file.tensors if stored != DIVISORS_TENSOR}
    for stored, targets in names.items():
        values = torch.from_numpy(file.dequantize(stored))
        values = layout.restore(stored, values)
        if len(targets) == 1:
            yield targets[0], values
        else:
            yield from zip(targets, values, strict=True)


def stored_weights_from_gguf(file: GgufFile, config: ModelConfig) -> Iterator[StoredWeight]:
    """Every weight of `file` as it is stored, by its Hugging Face name; nothing is read before its `read` is called.

    Rows are in Hugging Face's order. A norm that GGUF stores as 1 + weight is given so, as the kernels want it:
    `StoredWeight.includes_offset` says it.

    Raises:
        UnsupportedModel: as `weights_from_gguf`.
    """
    file.check_types()
    layout = _Layout(file, config)
    for stored in file.tensors:
        if stored == DIVISORS_TENSOR:
            continue
        targets = layout.targets(stored)
        tensor = file.tensors[stored]
        shape = tensor.shape if len(targets) == 1 else tensor.shape[1:]
        for part, target in enumerate(targets):
            yield StoredWeight(
                name=target,
                type=tensor.type,
                shape=shape,
                read=layout.reader(stored, part if len(targets) > 1 else None),
                includes_offset=bool(config.norm_offset) and stored.endswith("norm.weight"),
            )


_Rows = TypeVar("_Rows", Tensor, NDArray[np.uint8])


def unpermute(rows: _Rows, num_heads: int) -> _Rows:
    """Bring the output rows of a llama Q or K projection from GGUF's order to Hugging Face's.

    Within each head of d rows, with h = d / 2:

        GGUF:          0  h  1  h+1  2  h+2  …      (the two elements of a rotated pair side by side)
        Hugging Face:  0  1  2  …  h  h+1  h+2  …   (halves)

    Args:
        rows: [num_heads * d, ...], a weight or a bias, as numbers or as stored bytes.

    Returns:
        The same shape, a fresh contiguous tensor.
    """
    half = rows.shape[0] // num_heads // 2
    return rows.reshape(num_heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


class _Layout:
    """How one architecture's tensors are called and laid out."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self.file, self.config = file, config
        self.stems = dict(_LAYER)
        if config.architecture == "gemma3":
            self.stems |= _GEMMA_NORMS
        if config.architecture in _ROUTERS:
            self.stems["ffn_gate_inp"] = _ROUTERS[config.architecture]

    def targets(self, stored: str) -> list[str]:
        """The Hugging Face names of a stored tensor: one, or one per expert of a stacked tensor."""
        match = _NAME.fullmatch(stored)
        if match is None:
            raise self._unknown(stored)
        layer, stem, expert, kind = match["layer"], match["stem"], match["expert"], match["kind"]
        if layer is None:
            if stem not in _TOP_LEVEL or expert is not None:
                raise self._unknown(stored)
            return [f"{_TOP_LEVEL[stem]}.{kind}"]
        prefix = f"model.layers.{int(layer)}."
        if expert is not None:  # files before experts were stacked
            return [prefix + self._expert_name(stem, stored).format(int(expert)) + f".{kind}"]
        if stem.endswith("_exps"):
            name = self._expert_name(stem.removesuffix("_exps"), stored)
            return [prefix + name.format(e) + f".{kind}" for e in range(self.file.tensors[stored].shape[0])]
        if stem not in self.stems:
            raise self._unknown(stored)
        return [f"{prefix}{self.stems[stem]}.{kind}"]

    def restore(self, stored: str, values: Tensor) -> Tensor:
        """`values` of the stored tensor in Hugging Face's layout; may change them in place."""
        heads = self._permuted_heads(stored)
        if heads:
            return unpermute(values, heads)
        if self.config.norm_offset and stored.endswith("norm.weight"):
            return values.sub_(self.config.norm_offset)
        return values

    def reader(self, stored: str, expert: int | None) -> Callable[[], NDArray[np.uint8]]:
        """What gives the stored bytes of a tensor, or of one expert of a stacked one, with rows in Hugging Face's order."""
        heads = self._permuted_heads(stored)

        def read() -> NDArray[np.uint8]:
            raw: NDArray[np.uint8] = self.file.raw(stored)
            if expert is not None:
                raw = raw[expert]
            if not heads:
                return raw
            if raw.ndim == 1:  # a bias: one row of numbers
                width = raw.shape[0] // self.file.tensors[stored].shape[0]
                return unpermute(raw.reshape(-1, width), heads).ravel()
            return unpermute(raw, heads)

        return read

    def _permuted_heads(self, stored: str) -> int:
        """Heads of a projection whose rows GGUF interleaves; 0 for every other tensor."""
        if self.config.architecture in ("llama", "mixtral"):
            for stem, heads in ((".attn_q.", self.config.num_heads), (".attn_k.", self.config.num_kv_heads)):
                if stem in stored:
                    return heads
        return 0

    def _expert_name(self, stem: str, stored: str) -> str:
        kinds = _EXPERTS.get(self.config.architecture, {})
        kind = stem.removeprefix("ffn_")
        if kind not in kinds:
            raise self._unknown(stored)
        return kinds[kind]

    def _unknown(self, stored: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self.file.path}: {self.config.architecture} has no tensor called {stored!r}")
