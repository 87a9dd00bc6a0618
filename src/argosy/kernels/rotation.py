"""Rotating a model's weights so that its activations can be rounded to bytes with one scale per token.

With R an orthogonal matrix, a product is unchanged when the input and the weights are both rotated, x W^T = (x R)(W R)^T.
R is a block Hadamard matrix (`hadamard.py`), symmetric and its own inverse. Where the rotation of the input costs nothing,
because it can be folded into the weights that produce the input, it is (Ashkboos et al. 2024, "SliceGPT" and "QuaRot"):

    residual stream   every matrix that writes it gives rotated outputs, every one that reads it takes rotated inputs;
                      RMSNorm commutes with a rotation once its weights are folded into the matrices behind it.
    V                 attention mixes the V of whole heads, so each head is rotated by itself on the way out of `v_proj`
                      and back on the way into `o_proj`.

Elsewhere the kernels rotate the input of a product, token by token ("online"): that of the down projection, behind a
nonlinear function; and, in architectures that normalise a branch before they add it to the residual stream (Gemma), whose
weights of that norm stand between a matrix and the stream, the inputs of all matrices behind a norm.

Everything is exact: in exact arithmetic the rotated model computes the same logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from argosy.errors import UnsupportedModel
from argosy.kernels.hadamard import hadamard_block, rotate_blocks
from argosy.models.config import ModelConfig

Float = TypeVar("Float", np.float32, np.float64)

_EMBEDDING, _HEAD, _FINAL_NORM = "model.embed_tokens", "lm_head", "model.norm"
_ATTENTION_INPUTS = ("q_proj", "k_proj", "v_proj")
_MLP_INPUTS = ("gate_proj", "up_proj", "gate", "w1", "w3")
_MLP_OUTPUTS = ("down_proj", "w2")
_POST_NORMED = frozenset({"gemma3"})
_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3", "mixtral", "qwen3_moe"}) | _POST_NORMED


class Rotation:
    """What becomes of each weight of a model, one by one and in any order.

    Weights go by their names in a Hugging Face checkpoint, without `.weight` and `.bias`. The output head is rotated as
    `lm_head` also where a checkpoint ties it to the embedding: the two differ once rotated.

    Args:
        config: of the model.
        norms: the factors that the norms multiply by (the configuration's `norm_offset` added), f32 or f64 [hidden_size],
            by name; those of the residual stream are needed.

    Raises:
        UnsupportedModel: the architecture is not known.
    """

    def __init__(self, config: ModelConfig, norms: Mapping[str, NDArray[Any]]) -> None:
        if config.architecture not in _ARCHITECTURES:
            known = ", ".join(sorted(_ARCHITECTURES))
            raise UnsupportedModel(
                f"architecture {config.architecture!r} cannot be rotated for int8 weights; known are {known}"
            )
        self._norms = norms
        self._folds_stream = config.architecture not in _POST_NORMED
        self._stream_block = hadamard_block(config.hidden_size)
        self._head_block = hadamard_block(config.head_dim)

    def input_block(self, name: str, columns: int) -> int:
        """The Hadamard block by which the input of matrix `name`, `columns` wide, must be rotated online; 1 for none."""
        kind = _kind(name)
        if kind in _MLP_OUTPUTS:
            return hadamard_block(columns)
        if not self._folds_stream and (name == _HEAD or kind in _ATTENTION_INPUTS + _MLP_INPUTS):
            return self._stream_block
        return 1

    def matrix(self, name: str, weight: NDArray[Float]) -> NDArray[Float]:
        """The rotated matrix, a fresh array of the shape [rows, columns] and dtype of `weight`."""
        kind = _kind(name)
        if name == _EMBEDDING:
            return self._to_stream(weight)
        if name == _HEAD:
            return self._from_stream(_FINAL_NORM, weight)
        if kind in _ATTENTION_INPUTS:
            rotated = self._from_stream(_norm_of_layer(name, "input_layernorm"), weight)
            return _rotate_rows(rotated, self._head_block) if kind == "v_proj" else rotated
        if kind == "o_proj":
            return self._rows_to_stream(rotate_blocks(weight, self._head_block))
        if kind in _MLP_INPUTS:
            return self._from_stream(_norm_of_layer(name, "post_attention_layernorm"), weight)
        if kind in _MLP_OUTPUTS:
            return self._rows_to_stream(rotate_blocks(weight, hadamard_block(weight.shape[1])))
        raise UnsupportedModel(f"no rule says how the matrix {name!r} is rotated")

    def bias(self, name: str, bias: NDArray[Float]) -> NDArray[Float]:
        """The bias, [rows], that belongs to the rotated matrix `name`; a fresh array."""
        kind = _kind(name)
        if kind == "v_proj":
            return rotate_blocks(bias, self._head_block)
        if kind in ("o_proj", *_MLP_OUTPUTS):
            return self._to_stream(bias)
        return bias.copy()

    def norm(self, name: str) -> NDArray[Any]:
        """The factors of norm `name` in the rotated model: ones where they were folded, otherwise as they are."""
        is_folded = self._folds_stream and (name == _FINAL_NORM or _kind(name).endswith("layernorm"))
        return np.ones_like(self._norms[name]) if is_folded else self._norms[name].copy()

    def _to_stream(self, values: NDArray[Float]) -> NDArray[Float]:
        return rotate_blocks(values, self._stream_block) if self._folds_stream else values.copy()

    def _rows_to_stream(self, weight: NDArray[Float]) -> NDArray[Float]:
        return _rotate_rows(weight, self._stream_block) if self._folds_stream else weight

    def _from_stream(self, norm: str, weight: NDArray[Float]) -> NDArray[Float]:
        """A matrix whose input is normalised by `norm`, for a rotated input."""
        factors = self._norms[norm].astype(weight.dtype)
        return rotate_blocks(weight * factors if self._folds_stream else weight, self._stream_block)


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _norm_of_layer(name: str, norm: str) -> str:
    """The name of a norm in the layer of matrix `name`, "model.layers.I.…"."""
    return ".".join([*name.split(".")[:3], norm])


def _rotate_rows(weight: NDArray[Float], block: int) -> NDArray[Float]:
    return np.ascontiguousarray(rotate_blocks(np.ascontiguousarray(weight.T), block).T)
