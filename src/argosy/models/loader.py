"""From a model's name to a decoder with its weights, its tokenizer and its suggestions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from argosy.errors import ConfigError
from argosy.models.cache import Progress
from argosy.models.checkpoint import Checkpoint, load_config, naming
from argosy.models.gguf_file import GgufFile
from argosy.models.loaded import LoadedModel, Tokenizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from argosy.models.architectures.decoder import Decoder
    from argosy.models.stored_weights import StoredWeights


def load_model(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    cache_dir: Path | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    chat_template: str | None = None,
    max_positions: int | None = None,
    keep_stored: Callable[[Checkpoint], bool] | None = None,
) -> LoadedModel:
    """Fetch the model called `name` if need be, and load it.

    Device and dtype are checked before anything is fetched. Memory peaks at the weights in `dtype` plus one stored tensor;
    weights that are kept as stored are not read at all.

    Args:
        name: as `resolve` takes it.
        dtype: of weights and activations: "auto", or one of `devices.DTYPES`.
        device: "cpu", "cuda" or "cuda:<index>".
        cache_dir, offline, progress: as in `resolve`.
        chat_template: Jinja source in place of the checkpoint's own.
        max_positions: longest sequence to prepare for, if less than the model allows.
        keep_stored: asked once the configuration is known; True gives the weights as stored in place of a decoder.

    Raises:
        ConfigError: an unknown or unavailable device or dtype, max_positions out of range, or torch is not installed.
        UnknownModel, FetchError: the name leads to no model.
        ModelFileError, UnsupportedModel: the model cannot be run.
    """
    try:
        from argosy.models.devices import parse_device, parse_dtype
    except ModuleNotFoundError as error:
        raise ConfigError(f"running a model needs {error.name}: pip install 'argosy[serve]'") from error
    target = parse_device(device)
    element_type = parse_dtype(dtype, target)
    checkpoint = load_config(name, cache_dir=cache_dir, offline=offline, progress=progress)
    _check_max_positions(checkpoint, max_positions)
    with naming(checkpoint.path):
        tokenizer = load_tokenizer(checkpoint, chat_template=chat_template)
        decoder, stored = None, None
        if keep_stored is not None and keep_stored(checkpoint):
            stored = open_stored_weights(checkpoint)
        else:
            decoder = load_decoder(checkpoint, dtype=element_type, device=str(target), max_positions=max_positions)
    return LoadedModel(
        name=name,
        path=checkpoint.path,
        config=checkpoint.config,
        tokenizer=tokenizer,
        decoder=decoder,
        stored=stored,
        max_positions=checkpoint.config.max_positions if max_positions is None else max_positions,
        weights_bytes=checkpoint.weights_bytes,
        eos_token_ids=checkpoint.eos_token_ids | tokenizer.eos_token_ids,
        default_sampling=checkpoint.default_sampling,
    )


def load_tokenizer(checkpoint: Checkpoint, *, chat_template: str | None = None) -> Tokenizer:
    """The tokenizer of an open checkpoint; `chat_template` replaces its own.

    Raises:
        ModelFileError, UnsupportedModel: as its files deserve.
    """
    from argosy.models.tokenizers import tokenizer_from_folder, tokenizer_from_gguf

    if isinstance(checkpoint.source, GgufFile):
        return tokenizer_from_gguf(checkpoint.source.metadata, chat_template=chat_template)
    return tokenizer_from_folder(checkpoint.path, chat_template=chat_template)


def load_decoder(
    checkpoint: Checkpoint, *, dtype: torch.dtype, device: str = "cpu", max_positions: int | None = None
) -> Decoder:
    """The decoder of an open checkpoint with its weights, on `device`, in eval mode.

    Raises:
        ModelFileError, UnsupportedModel: the tensors are not those of the configuration.
    """
    from argosy.models.architectures.decoder import build_decoder

    if isinstance(checkpoint.source, GgufFile):
        checkpoint.source.check_types()
    decoder = build_decoder(checkpoint.config, dtype=dtype, device=device, max_positions=max_positions)
    decoder.load_weights(checkpoint_weights(checkpoint))
    return decoder


def checkpoint_weights(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """Every weight of an open checkpoint under its Hugging Face name, one at a time, on the CPU.

    A GGUF file gives fp32, a folder its stored type.

    Raises:
        ModelFileError, UnsupportedModel: a tensor is damaged, unknown, or of a type that cannot be read.
    """
    if isinstance(checkpoint.source, GgufFile):
        from argosy.models.gguf_weights import weights_from_gguf

        return weights_from_gguf(checkpoint.source, checkpoint.config)
    from argosy.models.safetensors_weights import weights_from_folder

    return weights_from_folder(checkpoint.source)


def open_stored_weights(checkpoint: Checkpoint) -> StoredWeights:
    """The weights of an open checkpoint as stored; none is read yet.

    Raises:
        ModelFileError, UnsupportedModel: the tensors are not those of the configuration.
    """
    from argosy.models.architectures.decoder import expected_shapes
    from argosy.models.stored_weights import StoredWeights

    config, source = checkpoint.config, checkpoint.source
    expected = expected_shapes(config)
    if isinstance(source, GgufFile):
        from argosy.models.gguf_weights import stored_weights_from_gguf

        weights = stored_weights_from_gguf(source, config)
        return StoredWeights(weights, expected=expected, tied_head=config.tie_embeddings, release=source.release)
    from argosy.models.safetensors_weights import stored_weights_from_folder

    return StoredWeights(stored_weights_from_folder(source), expected=expected, tied_head=config.tie_embeddings)


def _check_max_positions(checkpoint: Checkpoint, max_positions: int | None) -> None:
    limit = checkpoint.config.max_positions
    if max_positions is not None and not 1 <= max_positions <= limit:
        raise ConfigError(
            f"max_positions must be within [1, {limit}] for {checkpoint.name}, got {max_positions}", param="max_positions"
        )
