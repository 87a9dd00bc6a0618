"""A model's weights in the order in which the CPU kernels read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from argosy.kernels.pack_ggml import pack
from argosy.kernels.packed import PANEL_ROWS, PackedMatrix, aligned_empty, concat_rows, num_panels
from argosy.models.config import ModelConfig
from argosy.models.stored_weights import StoredWeight, StoredWeights

FloatArray = NDArray[np.float32]

_SLICE_ROWS = 256 * PANEL_ROWS


@dataclass(frozen=True, slots=True)
class Projection:
    """Matrices that read one input and whose outputs lie side by side, e.g. Q, K and V.

    Attributes:
        parts: in the order of the output columns; neighbours of one kind are one matrix.
        input_block: the Hadamard block by which the input is rotated first (`kernels/rotation.py`), 1 for none.
        refined: groups of 32 columns of the input whose quantisation is refined (`cpu_refinement.py`).
    """

    parts: tuple[PackedMatrix, ...]
    input_block: int = 1
    refined: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Width of the output."""
        return sum(part.rows for part in self.parts)

    @property
    def columns(self) -> int:
        """Width of the input."""
        return self.parts[0].columns


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Norm weights are f32 with the configuration's `norm_offset` added.

    Attributes:
        attention_norm, mlp_norm: before the two blocks.
        attention_post_norm, mlp_post_norm: behind them, inside the residual branch (Gemma), or None.
        q_norm, k_norm: of each head, or None.
    """

    attention_norm: FloatArray
    qkv: Projection
    q_norm: FloatArray | None
    k_norm: FloatArray | None
    attention_output: Projection
    attention_post_norm: FloatArray | None
    mlp_norm: FloatArray
    gate_up: Projection
    down: Projection
    mlp_post_norm: FloatArray | None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights of a dense decoder. The matrix of `head` is `embedding` where the two are tied."""

    embedding: PackedMatrix
    layers: tuple[LayerWeights, ...]
    final_norm: FloatArray
    head: Projection

    @property
    def num_bytes(self) -> int:
        """Bytes of all packed matrices."""
        return sum(matrix.num_bytes for matrix in self.matrices())

    @property
    def main_kind(self) -> str:
        """The kind of most of the weights' bytes."""
        num_bytes: Counter[str] = Counter()
        for matrix in self.matrices():
            num_bytes[matrix.kind.value] += matrix.num_bytes
        return num_bytes.most_common(1)[0][0]

    def matrices(self) -> list[PackedMatrix]:
        """Every packed matrix once."""
        found = [self.embedding, *(part for part in self.head.parts if part is not self.embedding)]
        for layer in self.layers:
            for projection in (layer.qkv, layer.attention_output, layer.gate_up, layer.down):
                found += projection.parts
        return found


def pack_weights(config: ModelConfig, stored: StoredWeights, *, num_threads: int = 1) -> ModelWeights:
    """Pack every weight, as many layers at a time as there are threads; keeps the bits of the stored numbers.

    Raises:
        UnsupportedModel: a tensor's type has no kernel.
        ModelFileError: a file was damaged since it was opened.
    """
    return WeightReader(config, stored).read(num_threads)


class WeightReader:
    """Looks weights up by name and packs them as they are stored. Pages of the files are released layer by layer."""

    def __init__(self, config: ModelConfig, stored: StoredWeights) -> None:
        self.config = config
        self.stored = stored

    def read(self, num_threads: int) -> ModelWeights:
        """All weights."""
        with ThreadPoolExecutor(num_threads) as pool:
            layers = tuple(pool.map(self._layer_and_release, range(self.config.num_layers)))
        embedding = self.matrix("model.embed_tokens")
        head = self.head(embedding)
        final_norm = self.norm("model.norm")
        self.stored.release()
        return ModelWeights(embedding, layers, final_norm, head)

    def head(self, embedding: PackedMatrix) -> Projection:
        """The output head."""
        return Projection((embedding,)) if self.config.tie_embeddings else self.projection("lm_head")

    def _layer_and_release(self, index: int) -> LayerWeights:
        layer = self.layer(f"model.layers.{index}.")
        self.stored.release()
        return layer

    def layer(self, prefix: str) -> LayerWeights:
        """The layer whose weights' names begin with `prefix`."""
        has_post_norms = self.config.architecture == "gemma3"
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        # Gemma gives the name of Llama's second norm to the one behind attention.
        second = f"{prefix}post_attention_layernorm"
        return LayerWeights(
            attention_norm=self.norm(f"{prefix}input_layernorm"),
            qkv=self.projection(*(f"{attention}{part}_proj" for part in "qkv")),
            q_norm=self.norm(f"{attention}q_norm") if self.config.qk_norm else None,
            k_norm=self.norm(f"{attention}k_norm") if self.config.qk_norm else None,
            attention_output=self.projection(f"{attention}o_proj"),
            attention_post_norm=self.norm(second) if has_post_norms else None,
            mlp_norm=self.norm(f"{prefix}pre_feedforward_layernorm" if has_post_norms else second),
            gate_up=self.projection(f"{mlp}gate_proj", f"{mlp}up_proj"),
            down=self.projection(f"{mlp}down_proj"),
            mlp_post_norm=self.norm(f"{prefix}post_feedforward_layernorm") if has_post_norms else None,
        )

    def projection(self, *names: str) -> Projection:
        """Matrices of one input."""
        return Projection(tuple(_joined([self.matrix(name) for name in names])))

    def matrix(self, name: str) -> PackedMatrix:
        """The matrix called `name`, with its bias if it has one."""
        weight, bias = self.stored[f"{name}.weight"], self.stored.get(f"{name}.bias")
        packed = _pack_in_slices(weight, self.stored.release)
        return packed if bias is None else packed.with_bias(bias.floats())

    def norm(self, name: str) -> FloatArray:
        """The factors of a norm."""
        weight = self.stored[f"{name}.weight"]
        values = weight.floats()
        return values if weight.includes_offset else values + np.float32(self.config.norm_offset)


def _pack_in_slices(weight: StoredWeight, release: Callable[[], None]) -> PackedMatrix:
    """`pack`, some rows at a time, each let go of once packed: what it needs in between is small beside a large matrix."""
    raw = weight.read()
    first = pack(weight.type, raw[:_SLICE_ROWS])
    if len(raw) <= _SLICE_ROWS:
        return first
    data = aligned_empty((num_panels(len(raw)), first.panel_bytes), np.uint8)
    for start in range(0, len(raw), _SLICE_ROWS):
        part = first if start == 0 else pack(weight.type, raw[start : start + _SLICE_ROWS])
        data[start // PANEL_ROWS : start // PANEL_ROWS + part.num_panels] = part.data
        release()
    return replace(first, rows=len(raw), data=data)


def _joined(matrices: Sequence[PackedMatrix]) -> list[PackedMatrix]:
    """`matrices` with runs of one kind made one, as far as panels allow."""
    runs: list[list[PackedMatrix]] = []
    for matrix in matrices:
        last = runs[-1][-1] if runs else None
        if last is not None and last.kind == matrix.kind and last.rows % PANEL_ROWS == 0:
            runs[-1].append(matrix)
        else:
            runs.append([matrix])
    return [run[0] if len(run) == 1 else concat_rows(run) for run in runs]
