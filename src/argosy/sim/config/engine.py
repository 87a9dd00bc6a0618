"""The engine of a replica, by the names of its own settings."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.engine.core.config import SchedulerConfig


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`SchedulerConfig`, with what memory and model decide left to them unless it is given.

    Attributes:
        num_blocks: None takes the KV blocks that fit beside weights and activations.
        max_model_len: None takes the model's positions.
    """

    num_blocks: int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_waiting: int = 1024
    prefill_share: float = 0.5
    watermark: float = 0.01
    max_preemptions: int = 3
    enable_prefix_caching: bool = True
    chunk_alignment: int = 0
    scheduling_policy: str = "fcfs"
    eviction_policy: str = "lru"

    def __post_init__(self) -> None:
        """Raise `ConfigError` as `SchedulerConfig` does, as far as that can be said without the pool and the model."""
        self.scheduler_config(self.num_blocks or 1_000_000, self.max_model_len or 1_000_000, "")

    def scheduler_config(self, num_blocks: int, max_model_len: int, kv_dtype: str) -> SchedulerConfig:
        """The scheduler's own configuration; the first two stand in where they are not given.

        Raises:
            ConfigError: a setting that is out of range, alone or together with the pool.
        """
        return SchedulerConfig(
            num_blocks=num_blocks if self.num_blocks is None else self.num_blocks,
            block_size=self.block_size,
            max_model_len=max_model_len if self.max_model_len is None else self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_waiting=self.max_waiting,
            prefill_share=self.prefill_share,
            watermark=self.watermark,
            max_preemptions=self.max_preemptions,
            enable_prefix_caching=self.enable_prefix_caching,
            kv_dtype=kv_dtype,
            chunk_alignment=self.chunk_alignment,
            scheduling_policy=self.scheduling_policy,
            eviction_policy=self.eviction_policy,
        )
