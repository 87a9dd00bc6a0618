"""Settings of the scheduler and the KV manager."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What one replica may do in a step and hold in its KV pool.

    Attributes:
        num_blocks: KV blocks in the pool.
        block_size: tokens per block.
        max_model_len: longest sequence in tokens, prompt and output; `effective_max_len` caps it to the pool.
        max_num_seqs: sequences running at once.
        max_num_batched_tokens: token budget of one step.
        max_waiting: requests that may wait; one more is refused with `QueueFull`.
        prefill_share: the part of the budget that prefill may take in a step in which some sequence decodes, (0, 1].
        watermark: the part of the pool kept free at admission, so that admitted sequences can grow, [0, 1).
        max_preemptions: how often a sequence may be preempted; after that it is admitted again only with room for its
            whole remaining length, and then never preempted, so that every request ends.
        enable_prefix_caching: reuse the KV of equal prefixes within one namespace.
        kv_dtype: name of the KV element type; part of the cache namespace.
        chunk_alignment: > 0 makes prefill chunks end at multiples of it (deterministic mode), except the last one.
        scheduling_policy: "fcfs" or "priority" (lower value first, then arrival).
        eviction_policy: "lru", "size" or "priority"; which cached block goes first.
    """

    num_blocks: int
    block_size: int = 16
    max_model_len: int = 2048
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_waiting: int = 1024
    prefill_share: float = 0.5
    watermark: float = 0.01
    max_preemptions: int = 3
    enable_prefix_caching: bool = True
    kv_dtype: str = "float32"
    chunk_alignment: int = 0
    scheduling_policy: str = "fcfs"
    eviction_policy: str = "lru"

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_waiting"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_model_len < 2:
            raise ConfigError(f"max_model_len must be at least 2 (one prompt and one new token), got {self.max_model_len}")
        if not 0.0 < self.prefill_share <= 1.0:
            raise ConfigError(f"prefill_share must be within (0, 1], got {self.prefill_share}")
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark must be within [0, 1), got {self.watermark}")
        if self.max_preemptions < 0 or self.chunk_alignment < 0:
            raise ConfigError("max_preemptions and chunk_alignment must not be negative")
        if self.chunk_alignment > self.max_num_batched_tokens:
            raise ConfigError(
                f"chunk_alignment ({self.chunk_alignment}) must not exceed max_num_batched_tokens "
                f"({self.max_num_batched_tokens})"
            )
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_seqs ({self.max_num_seqs}) must not exceed max_num_batched_tokens "
                f"({self.max_num_batched_tokens}): each running sequence needs one token of every step"
            )
        if self.scheduling_policy not in ("fcfs", "priority"):
            raise ConfigError(f"scheduling_policy must be fcfs or priority, got {self.scheduling_policy!r}")
        if self.eviction_policy not in ("lru", "size", "priority"):
            raise ConfigError(f"eviction_policy must be lru, size or priority, got {self.eviction_policy!r}")
        if self.effective_max_len < 2:
            raise ConfigError(
                f"the KV pool of {self.num_blocks} blocks x {self.block_size} tokens cannot hold a sequence of 2 tokens"
            )

    @property
    def effective_max_len(self) -> int:
        """Longest sequence that both the model's limit and the pool allow, in tokens."""
        return min(self.max_model_len, self.num_blocks * self.block_size)
