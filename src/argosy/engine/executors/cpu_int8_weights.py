"""Any checkpoint's weights as bytes with one scale per output row, rotated so that activations need but one per token."""

from __future__ import annotations

from dataclasses import replace

from argosy.engine.executors.cpu_weights import FloatArray, ModelWeights, Projection, WeightReader
from argosy.kernels.gemm.int8_layout import quantize_rows
from argosy.kernels.packed import PackedMatrix
from argosy.kernels.rotation import Rotation
from argosy.models.config import ModelConfig
from argosy.models.stored_weights import StoredWeights


def quantize_weights(config: ModelConfig, stored: StoredWeights, *, num_threads: int = 1) -> ModelWeights:
    """Rotate every weight, exactly but for fp32 rounding, and round it to a byte.

    Raises:
        UnsupportedModel: there is no rotation of this architecture.
        ModelFileError: a file was damaged since it was opened.
    """
    return _RotatingReader(config, stored).read(num_threads)


class _RotatingReader(WeightReader):
    """Gives rotated weights, whatever they are stored as."""

    def __init__(self, config: ModelConfig, stored: StoredWeights) -> None:
        super().__init__(config, stored)
        names = [name.removesuffix(".weight") for name in stored if name.endswith("norm.weight")]
        self._rotation = Rotation(config, {name: WeightReader.norm(self, name) for name in names})

    def head(self, embedding: PackedMatrix) -> Projection:  # noqa: ARG002, once rotated the two differ
        """The output head, which is a matrix of its own even where a checkpoint ties it."""
        return self.projection("lm_head")

    def projection(self, *names: str) -> Projection:
        """Matrices of one input, and how that is rotated."""
        projection = super().projection(*names)
        return replace(projection, input_block=self._rotation.input_block(names[0], projection.columns))

    def matrix(self, name: str) -> PackedMatrix:
        """The rotated matrix in bytes."""
        is_tied_head = name == "lm_head" and self.config.tie_embeddings
        source = "model.embed_tokens" if is_tied_head else name
        bias = self.stored.get(f"{source}.bias")
        rotated_bias = None if bias is None else self._rotation.bias(name, bias.floats())
        return quantize_rows(self._rotation.matrix(name, self.stored[f"{source}.weight"].floats()), rotated_bias)

    def norm(self, name: str) -> FloatArray:
        """The factors that are left of a norm."""
        factors: FloatArray = self._rotation.norm(name)
        return factors
