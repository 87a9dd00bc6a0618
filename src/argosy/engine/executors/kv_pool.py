"""The KV pool: one preallocated tensor that every block of every sequence lives in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from argosy.engine.core.plan import BlockCopy
from argosy.errors import ConfigError
from argosy.models.config import ModelConfig

_KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def torch_kv_dtype(name: str) -> torch.dtype:
    """The torch type of a KV element type's name.

    Raises:
        ConfigError: the name is not one the pool can hold.
    """
    if name not in _KV_DTYPES:
        raise ConfigError(f"kv_dtype must be one of {', '.join(_KV_DTYPES)}, got {name!r}")
    return _KV_DTYPES[name]


def kv_pool_bytes(config: ModelConfig, num_blocks: int, block_size: int, dtype: str) -> int:
    """Bytes of a pool of `num_blocks` blocks of `block_size` tokens for `config`, with elements of `dtype`."""
    element_bytes = torch_kv_dtype(dtype).itemsize
    return num_blocks * block_size * (config.kv_bytes_per_token // 4) * element_bytes


class KVPool:
    """K and V of all layers, addressed by slot: slot = block * block_size + offset within the block.

    One tensor [layers, 2, slots, kv_heads, head_dim]; index 0 of the second dimension is K, index 1 is V. It starts zeroed
    so that its pages are committed at startup and not under load.

    Raises:
        ConfigError: the element type is unknown, or the device has no room for the pool.
    """

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, dtype: str, device: torch.device) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = torch_kv_dtype(dtype)
        shape = (config.num_layers, 2, num_blocks * block_size, config.num_kv_heads, config.head_dim)
        try:
            self.data = torch.zeros(shape, dtype=self.dtype, device=device)
        except (
            RuntimeError,
            MemoryError,
        ) as error:  # torch.OutOfMemoryError is a RuntimeError; the CPU allocator raises it bare
            gib = kv_pool_bytes(config, num_blocks, block_size, dtype) / 2**30
            raise ConfigError(
                f"no room on {device} for a KV pool of {num_blocks} blocks x {block_size} tokens ({gib:.2f} GiB); "
                "lower num_blocks or use a smaller kv_dtype"
            ) from error
        row = config.num_kv_heads * config.head_dim
        self._blocks = self.data.view(config.num_layers, 2, num_blocks, block_size * row)
        self._rows = self.data.view(config.num_layers, 2, num_blocks * block_size, row)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks over all layers. Every source is read before any destination is written."""
        if not copies:
            return
        indices = torch.from_numpy(np.array(copies, dtype=np.int64)).to(self.data.device)
        self._blocks.index_copy_(2, indices[:, 1], self._blocks.index_select(2, indices[:, 0]))

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store K and V [tokens, kv_heads, head_dim] of one layer at `slots` [tokens] int64; casts to the pool's type."""
        self.data[layer, 0].index_copy_(0, slots, k.to(self.dtype))
        self.data[layer, 1].index_copy_(0, slots, v.to(self.dtype))

    def gather(self, layer: int, slots: Tensor, out: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Copy K and V of `slots` [n] into the flat buffers `out`; returns them viewed as [n, kv_heads, head_dim]."""
        heads_shape = self.data.shape[3:]
        row = self._rows.shape[-1]
        gathered = []
        for side in (0, 1):
            view = out[side][: slots.shape[0] * row].view(slots.shape[0], row)
            torch.index_select(self._rows[layer, side], 0, slots, out=view)
            gathered.append(view.view(slots.shape[0], *heads_shape))
        return gathered[0], gathered[1]

    def view(self, layer: int, first_slot: int, count: int) -> tuple[Tensor, Tensor]:
        """K and V of `count` adjacent slots as views [count, kv_heads, head_dim] into the pool."""
        return self.data[layer, 0].narrow(0, first_slot, count), self.data[layer, 1].narrow(0, first_slot, count)


class GatherBuffers:
    """Two flat buffers that gathered K and V are written to, reused by every layer and step; they only ever grow.

    Fresh memory of this size would be mapped and unmapped by each allocation, which costs more than the copy itself.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._pair = (torch.empty(0, dtype=dtype, device=device), torch.empty(0, dtype=dtype, device=device))

    def reserve(self, num_elements: int) -> tuple[Tensor, Tensor]:
        """Buffers of at least `num_elements` each. What the previous call's buffers held is void."""
        if self._pair[0].numel() < num_elements:
            dtype, device = self._pair[0].dtype, self._pair[0].device
            self._pair = (
                torch.empty(num_elements, dtype=dtype, device=device),
                torch.empty(num_elements, dtype=dtype, device=device),
            )
        return self._pair
