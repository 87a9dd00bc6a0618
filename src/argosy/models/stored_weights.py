"""The weights of a checkpoint as its files store them, for executors that compute on stored bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from argosy.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """One tensor.

    Attributes:
        name: in a Hugging Face checkpoint.
        type: how its numbers are stored.
        shape: of the numbers.
        read: gives the stored bytes, uint8 [rows, bytes per row] (a vector: [bytes]), read-only.
        includes_offset: a norm's weight to which the configuration's `norm_offset` is already added.
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    read: Callable[[], NDArray[np.uint8]]
    includes_offset: bool = False

    def floats(self) -> NDArray[np.float32]:
        """The numbers in fp32, a fresh array of `shape`."""
        raw = self.read()
        with np.errstate(all="ignore"):  # a scale that is not finite shows in the logits, where it is reported
            values = dequantize(np.ascontiguousarray(raw), self.type)
        return np.array(values, dtype=np.float32).reshape(self.shape)


class StoredWeights(Mapping[str, StoredWeight]):
    """All weights of a model by name, complete and of the right shapes.

    Args:
        weights: each is looked up, none is read.
        expected: the shapes the architecture needs, by name.
        tied_head: the output head is the embedding; one that comes nonetheless must hold the same bytes.
        release: lets go of the memory that pages read so far take.

    Raises:
        ModelFileError: a tensor is unknown, missing, repeated, or of the wrong shape.
    """

    def __init__(
        self,
        weights: Iterable[StoredWeight],
        *,
        expected: Mapping[str, tuple[int, ...]],
        tied_head: bool,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        found: dict[str, StoredWeight] = {}
        for weight in weights:
            if weight.name.endswith("rotary_emb.inv_freq"):  # old checkpoints store this constant
                continue
            if weight.name in found:
                raise ModelFileError(f"tensor {weight.name!r} appears twice in the checkpoint")
            found[weight.name] = weight
        if tied_head and _HEAD in found:
            _check_tied(found.pop(_HEAD), found.get(_EMBEDDINGS))
        _check_shapes(found, expected)
        self._weights: Mapping[str, StoredWeight] = MappingProxyType(found)
        self.release = release

    def __getitem__(self, name: str) -> StoredWeight:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


_HEAD = "lm_head.weight"
_EMBEDDINGS = "model.embed_tokens.weight"


def _check_tied(head: StoredWeight, embeddings: StoredWeight | None) -> None:
    if (
        embeddings is not None
        and (head.type, head.shape) == (embeddings.type, embeddings.shape)
        and np.array_equal(head.read(), embeddings.read())
    ):
        return
    raise ModelFileError(
        f"{_HEAD!r} differs from {_EMBEDDINGS!r}, but the configuration ties them (tie_word_embeddings): set it to false"
    )


def _check_shapes(found: Mapping[str, StoredWeight], expected: Mapping[str, tuple[int, ...]]) -> None:
    for name, weight in found.items():
        if name not in expected:
            raise ModelFileError(f"unexpected tensor {name!r}: this architecture has no such parameter")
        if weight.shape != expected[name]:
            raise ModelFileError(f"tensor {name!r} has shape {list(weight.shape)}, expected {list(expected[name])}")
    missing = [name for name in expected if name not in found]
    if missing:
        names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ModelFileError(f"the checkpoint lacks {names}")
