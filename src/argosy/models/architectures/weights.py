"""Filling a module's parameters from a checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from argosy.errors import ModelFileError


@runtime_checkable
class HasCheckpointSlots(Protocol):
    """A module that stores several of a checkpoint's tensors in one parameter."""

    def checkpoint_slots(self) -> Iterator[tuple[str, Tensor]]:
        """Name within the parent module, and the view to fill."""
        ...


def checkpoint_slots(root: nn.Module) -> dict[str, Tensor]:
    """Every tensor that `root` needs, by its name in a Hugging Face checkpoint; the values are views of the parameters."""
    slots: dict[str, Tensor] = {}
    for path, module in root.named_modules():
        if isinstance(module, HasCheckpointSlots):
            parent = path.rpartition(".")[0]
            slots |= {f"{parent}.{name}" if parent else name: view for name, view in module.checkpoint_slots()}
        else:
            slots |= {f"{path}.{name}" if path else name: p for name, p in module.named_parameters(recurse=False)}
    return slots


def fill_slots(slots: dict[str, Tensor], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Copy each tensor into the slot of its name, converting dtype and device. Mutates the parameters behind `slots`.

    Raises:
        ModelFileError: a name is unknown or comes twice, a shape is wrong, a tensor is not of floating point, or a slot is
            left empty.
    """
    missing = dict.fromkeys(slots)
    for name, tensor in tensors:
        slot = slots.get(name)
        if slot is None:
            raise ModelFileError(f"unexpected tensor {name!r}: this architecture has no such parameter")
        if name not in missing:
            raise ModelFileError(f"tensor {name!r} appears twice in the checkpoint")
        if tensor.shape != slot.shape:
            raise ModelFileError(f"tensor {name!r} has shape {list(tensor.shape)}, expected {list(slot.shape)}")
        if not tensor.is_floating_point():
            raise ModelFileError(f"tensor {name!r} is of {tensor.dtype}: weights must be floating point")
        with torch.no_grad():
            slot.copy_(tensor)
        del missing[name]
    if missing:
        names = ", ".join(list(missing)[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ModelFileError(f"the checkpoint lacks {names}")
