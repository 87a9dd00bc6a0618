"""Adapting one model to many contexts: adapter and LoRA sizes, what is stored and what is sent."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.checks import at_least_one, not_negative, positive
from argosy.errors import ConfigError


def lora_parameters(rows: int, columns: int, rank: int) -> int:
    """r(m + n): elements of a rank-r update of an m x n matrix (Hu et al. 2021, section 4.1).

    Raises:
        ConfigError: a size below one, or a rank above the smaller dimension, which saves nothing.
    """
    at_least_one(rows=rows, columns=columns, rank=rank)
    if rank > min(rows, columns):
        raise ConfigError(f"rank {rank} exceeds the smaller dimension of {rows} x {columns}")
    return rank * (rows + columns)


def adapter_parameters(hidden: int, bottleneck: int, *, bias: bool = True) -> int:
    """2hb, and with biases h + b: elements of one bottleneck adapter (Houlsby et al. 2019, section 2.1).

    Raises:
        ConfigError: a size below one.
    """
    at_least_one(hidden=hidden, bottleneck=bottleneck)
    return 2 * hidden * bottleneck + (hidden + bottleneck if bias else 0)


@dataclass(frozen=True, slots=True)
class ContextStorage:
    """Bytes of serving many contexts with a whole model each, and with one base and small adapters."""

    separate_bytes: float
    shared_bytes: float
    per_context_ratio: float

    @property
    def saving(self) -> float:
        """How many times less the adapters need."""
        return self.separate_bytes / self.shared_bytes


def context_storage(contexts: int, model_bytes: float, adapter_bytes: float) -> ContextStorage:
    """contexts x model against model + contexts x adapter.

    Raises:
        ConfigError: a count or size that cannot be.
    """
    at_least_one(contexts=contexts)
    positive(model_bytes=model_bytes, adapter_bytes=adapter_bytes)
    return ContextStorage(contexts * model_bytes, model_bytes + contexts * adapter_bytes, model_bytes / adapter_bytes)


def update_saving(update_bytes: float, raw_bytes: float) -> float:
    """How many times less a device sends with an update instead of its raw data.

    Raises:
        ConfigError: a size that cannot be.
    """
    not_negative(raw_bytes=raw_bytes)
    positive(update_bytes=update_bytes)
    return raw_bytes / update_bytes
