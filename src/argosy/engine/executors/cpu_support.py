"""Which checkpoints the CPU kernels can run."""

from __future__ import annotations

from gguf.constants import GGMLQuantizationType

from argosy.kernels.features import choose_isa
from argosy.kernels.gemm.registry import TILES
from argosy.kernels.pack_ggml import PACKINGS
from argosy.models.checkpoint import Checkpoint
from argosy.models.config import ModelConfig
from argosy.models.gguf_file import GgufFile
from argosy.models.safetensors_weights import language_model_name

_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3", "gemma3"})
_HEAD_MULTIPLE = 8


def unsupported_reason(checkpoint: Checkpoint) -> str:
    """Why the kernels cannot run a checkpoint, as the end of a sentence; "" if they can."""
    return _config_reason(checkpoint.config) or _type_reason(checkpoint)


def _config_reason(config: ModelConfig) -> str:
    if config.architecture not in _ARCHITECTURES:
        return f"there are none for the architecture {config.architecture}"
    if config.head_dim % _HEAD_MULTIPLE:
        return f"heads of {config.head_dim} elements are not a multiple of {_HEAD_MULTIPLE}"
    return ""


def _type_reason(checkpoint: Checkpoint) -> str:
    isa = choose_isa()
    for name, stored_type in matrix_types(checkpoint).items():
        packing = PACKINGS.get(stored_type)
        if packing is None or (packing.kind, isa) not in TILES:
            return f"there is none for weights of type {stored_type.name} ({name})"
    return ""


def matrix_types(checkpoint: Checkpoint) -> dict[str, GGMLQuantizationType]:
    """How each matrix of a checkpoint is stored, by its name in the file."""
    source = checkpoint.source
    if isinstance(source, GgufFile):
        return {name: tensor.type for name, tensor in source.tensors.items() if len(tensor.shape) > 1}
    return {
        name: GGMLQuantizationType[tensor.dtype]
        for name, tensor in source.tensors.items()
        if len(tensor.shape) > 1 and language_model_name(name) is not None
    }
