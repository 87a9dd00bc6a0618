"""The settings of one engine, under the names that vLLM's users know."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from argosy.engine.core.config import SchedulerConfig
from argosy.errors import ConfigError

DETERMINISTIC_CHUNK_TOKENS = 16
"""Prefill chunks end at multiples of this in deterministic mode, so that every row is computed in a tile of one shape."""

MAX_THREADS = 4096

MAX_COUNT = 2**31 - 1
"""Indices of blocks, sequences and tokens are computed with 32 and 64 bits."""
_COUNTS = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_waiting",
    "num_blocks_override",
    "block_size",
    "max_preemptions",
)

KV_DTYPES = ("float32", "bfloat16", "float16")
EXECUTORS = ("auto", "kernels", "torch")
WEIGHTS = ("auto", "stored", "int8")


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """Everything that can be set about an engine. What only the model can tell is checked when it is built.

    Attributes:
        model: a name of the catalogue, `hf:org/name[:file]`, a GGUF file or a safetensors folder.
        dtype: of weights and activations: "auto", "float32", "bfloat16" or "float16"; "auto" is the weights as stored where
            the CPU kernels run, else float32 on a CPU.
        kv_cache_dtype: of the KV pool; "auto" is float16 where the CPU kernels run, else that of the weights.
        device: "cpu", "cuda" or "cuda:<index>".
        executor: what runs the steps: "kernels" (this package's CPU kernels, on weights as stored), "torch", or "auto": the
            kernels on a CPU if they can run the model and `dtype` is "auto", else torch.
        weights: how the CPU kernels keep weights: "stored", as the files have them; "int8", rotated and rounded to bytes
            with a scale per row, activations with one per token; "auto" is "stored".
        refine_outliers: the CPU kernels quantise activations twice where outliers make them coarse: nearer to fp32, for some
            of the speed. Needs executor "kernels" and weights as stored.
        threads: CPU threads to compute with; None is one per physical core that this process may use for the kernels, and
            leaves torch's own choice for torch.
        max_model_len: longest sequence in tokens, prompt and output; None is the model's own limit. Capped to the KV pool.
        max_num_seqs: sequences running at once.
        max_num_batched_tokens: token budget of one step; None is 256 on a CPU, where a step of more would hold up those who
            decode for seconds, and 8192 elsewhere; at least `max_num_seqs`.
        block_size: tokens per KV block.
        kv_cache_memory_bytes: size of the KV pool; None lets `kv_sizing` choose.
        num_blocks_override: size of the KV pool in blocks, whatever else says.
        enable_prefix_caching: reuse the KV of equal prefixes.
        prefill_share, watermark, max_preemptions, scheduling_policy, eviction_policy: as in `SchedulerConfig`.
        max_waiting: requests that may wait; one more is refused.
        seed: makes the seeds of requests that bring none reproducible; None draws them from the operating system.
        deterministic: output does not depend on batch, chunks or prefix hits; free with the CPU kernels, at a price in speed
            with torch.
        check_invariants: check the whole state of the scheduler after each step; for tests and for hunting faults.
        chat_template: Jinja source in place of the checkpoint's own.
        kv_events_endpoint: address to publish changes of the prefix cache on, such as `tcp://127.0.0.1:5557`, for routers;
            it tells the tokens of prompts to whoever can reach it. None publishes nothing.
        kv_events_replay_endpoint: where what was missed can be asked for again; None is nowhere.
        kv_events_topic: of the messages.
        offline: use what is cached, never the network.
        cache_dir: where models are kept; None is `$ARGOSY_HOME` or the user's cache.
    """

    model: str
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    device: str = "cpu"
    executor: str = "auto"
    weights: str = "auto"
    refine_outliers: bool = False
    threads: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    kv_cache_memory_bytes: int | None = None
    num_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    prefill_share: float = 0.5
    watermark: float = 0.01
    max_preemptions: int = 3
    max_waiting: int = 1024
    scheduling_policy: str = "fcfs"
    eviction_policy: str = "lru"
    seed: int | None = None
    deterministic: bool = False
    check_invariants: bool = False
    chat_template: str | None = None
    kv_events_endpoint: str | None = None
    kv_events_replay_endpoint: str | None = None
    kv_events_topic: str = ""
    offline: bool = False
    cache_dir: Path | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if not self.model:
            raise ConfigError("model must be named", param="model")
        for name in ("threads", "kv_cache_memory_bytes", "num_blocks_override", "max_num_batched_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}", param=name)
        if self.threads is not None and self.threads > MAX_THREADS:
            raise ConfigError(f"threads must be at most {MAX_THREADS}, got {self.threads}", param="threads")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value > MAX_COUNT:
                raise ConfigError(f"{name} must be at most {MAX_COUNT}, got {value}", param=name)
        if self.kv_cache_memory_bytes is not None and self.kv_cache_memory_bytes >= 2**63:
            raise ConfigError("kv_cache_memory_bytes must be below 2**63", param="kv_cache_memory_bytes")
        if self.kv_cache_dtype not in ("auto", *KV_DTYPES):
            raise ConfigError(
                f"kv_cache_dtype must be auto, {', '.join(KV_DTYPES)}, got {self.kv_cache_dtype!r}", param="kv_cache_dtype"
            )
        if self.executor not in EXECUTORS:
            raise ConfigError(f"executor must be {', '.join(EXECUTORS)}, got {self.executor!r}", param="executor")
        if self.weights not in WEIGHTS:
            raise ConfigError(f"weights must be {', '.join(WEIGHTS)}, got {self.weights!r}", param="weights")
        if self.weights != "auto" and self.executor != "kernels":
            raise ConfigError(f"weights {self.weights} needs the CPU kernels: set executor to kernels", param="weights")
        if self.refine_outliers and self.executor != "kernels":
            raise ConfigError("refine_outliers needs the CPU kernels: set executor to kernels", param="refine_outliers")
        if self.refine_outliers and self.weights == "int8":
            raise ConfigError(
                "refine_outliers is for weights as stored: with weights int8 outliers are rotated away",
                param="refine_outliers",
            )
        if self.executor == "kernels" and self.device != "cpu":
            raise ConfigError(f"executor kernels runs on device cpu, got {self.device!r}: use torch", param="executor")
        if self.executor == "kernels" and self.dtype != "auto":
            raise ConfigError(
                f"executor kernels computes on weights as stored, so dtype must be auto, got {self.dtype!r}", param="dtype"
            )
        if self.deterministic and self.step_budget_tokens < DETERMINISTIC_CHUNK_TOKENS:
            raise ConfigError(
                f"max_num_batched_tokens must be at least {DETERMINISTIC_CHUNK_TOKENS} in deterministic mode, "
                f"got {self.step_budget_tokens}",
                param="max_num_batched_tokens",
            )
        if self.kv_cache_memory_bytes is not None and self.num_blocks_override is not None:
            raise ConfigError("give kv_cache_memory_bytes or num_blocks_override, not both", param="num_blocks_override")
        if self.max_waiting < 1:
            raise ConfigError(f"max_waiting must be at least 1, got {self.max_waiting}", param="max_waiting")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise ConfigError(f"seed must be a 64-bit integer, got {self.seed}", param="seed")
        self._check_kv_events()
        # What the scheduler can judge without the model is judged before the model is fetched.
        self.scheduler_config(
            num_blocks=2, max_model_len=2 if self.max_model_len is None else self.max_model_len, kv_dtype=""
        )

    def _check_kv_events(self) -> None:
        for name in ("kv_events_endpoint", "kv_events_replay_endpoint"):
            value = getattr(self, name)
            if value is not None and not value.startswith(("tcp://", "ipc://")):
                raise ConfigError(f"{name} must begin with tcp:// or ipc://, got {value!r}", param=name)
        if self.kv_events_endpoint is not None and not self.enable_prefix_caching:
            raise ConfigError("kv_events_endpoint needs enable_prefix_caching", param="kv_events_endpoint")
        for name in ("kv_events_replay_endpoint", "kv_events_topic"):
            if getattr(self, name) and self.kv_events_endpoint is None:
                raise ConfigError(f"{name} has no effect without kv_events_endpoint", param=name)

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> EngineArgs:
        """From settings by name.

        Raises:
            ConfigError: a setting is unknown, missing or out of range.
        """
        known = [f.name for f in fields(cls)]
        for name in settings:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
                raise ConfigError(f"unknown setting {name!r}: {hint}", param=name)
        if "model" not in settings:
            raise ConfigError("model must be named", param="model")
        return cls(**settings)

    @property
    def step_budget_tokens(self) -> int:
        """The token budget of one step, resolved."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return max(256 if self.device == "cpu" else 8192, self.max_num_seqs)

    def scheduler_config(self, *, num_blocks: int, max_model_len: int, kv_dtype: str) -> SchedulerConfig:
        """The scheduler's part, with what the model and the memory decided.

        The engine holds `max_waiting` against new requests when they are submitted. The scheduler's own limit leaves room
        for those that run and may be preempted, so that a request once taken is never refused for another's preemption.
        """
        return SchedulerConfig(
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_model_len=max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.step_budget_tokens,
            max_waiting=self.max_waiting + self.max_num_seqs,
            prefill_share=self.prefill_share,
            watermark=self.watermark,
            max_preemptions=self.max_preemptions,
            enable_prefix_caching=self.enable_prefix_caching,
            kv_dtype=kv_dtype,
            chunk_alignment=DETERMINISTIC_CHUNK_TOKENS if self.deterministic else 0,
            scheduling_policy=self.scheduling_policy,
            eviction_policy=self.eviction_policy,
        )
