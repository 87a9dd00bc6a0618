"""What engines tell of their load, out of the Prometheus text of any of them.

Names are each engine's own (vLLM, SGLang, TensorRT-LLM, llama.cpp, TGI); what they mean is what the model-server protocol of
the Gateway API Inference Extension asks for: requests queued, requests running, KV cache utilisation, block size and number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from argosy.fleet.policies.routing.replica_state import LoadReport

_WAITING, _RUNNING, _KV, _TOKENS = "num_waiting", "num_running", "kv_used_fraction", "used_tokens"
_CACHE, _LORA, _BLOCK_TOKENS, _BLOCKS = "cache_config", "lora", "block_tokens", "num_blocks"

FIELD_OF: Mapping[bytes, str] = MappingProxyType(
    {
        b"vllm:num_requests_waiting": _WAITING,
        b"vllm:num_requests_running": _RUNNING,
        b"vllm:kv_cache_usage_perc": _KV,
        b"vllm:gpu_cache_usage_perc": _KV,  # until v0.10
        b"vllm:cache_config_info": _CACHE,
        b"vllm:lora_requests_info": _LORA,
        b"sglang:num_queue_reqs": _WAITING,
        b"sglang:num_running_reqs": _RUNNING,
        b"sglang:token_usage": _KV,
        b"sglang:num_used_tokens": _TOKENS,
        b"sglang:cache_config_info": _CACHE,
        b"trtllm_num_requests_waiting": _WAITING,
        b"trtllm_num_requests_running": _RUNNING,
        b"trtllm_kv_cache_utilization": _KV,
        b"trtllm_kv_cache_tokens_per_block": _BLOCK_TOKENS,
        b"trtllm_kv_cache_max_blocks": _BLOCKS,
        b"llamacpp:requests_deferred": _WAITING,
        b"llamacpp:requests_processing": _RUNNING,
        b"llamacpp:kv_cache_usage_ratio": _KV,  # older builds
        b"tgi_queue_size": _WAITING,
        b"tgi_batch_current_size": _RUNNING,
    }
)
_SAMPLE = re.compile(
    rb"^(?P<name>" + rb"|".join(re.escape(name) for name in FIELD_OF) + rb")"
    rb'(?:\{(?P<labels>(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\})?[ \t]+(?P<value>[^ \t\r\n]+)',
    re.MULTILINE,
)
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
# A server that lists more than this is not one engine.
MAX_SAMPLES = 4096
MAX_ADAPTERS = 4096


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One reading of one engine. None and empty: it does not say.

    Attributes:
        num_waiting, num_running: requests; summed over the engine's data-parallel ranks.
        kv_used_fraction: of the KV pool, [0, 1]; mean of the ranks.
        used_tokens: tokens that running sequences hold.
        block_tokens: tokens per KV block.
        num_blocks: of all ranks.
        adapters: LoRA adapters that run or wait there; max_adapters: how many it holds at once.
        num_ignored: samples of known names whose values make no sense.
    """

    num_waiting: int | None = None
    num_running: int | None = None
    kv_used_fraction: float | None = None
    used_tokens: int | None = None
    block_tokens: int | None = None
    num_blocks: int | None = None
    adapters: frozenset[str] = frozenset()
    max_adapters: int | None = None
    num_ignored: int = 0

    @property
    def says_load(self) -> bool:
        """Whether it says how many requests there are."""
        return self.num_running is not None or self.num_waiting is not None

    @property
    def kv_capacity_tokens(self) -> int | None:
        """Tokens that the KV pool holds."""
        if self.block_tokens is None or self.num_blocks is None:
            return None
        return self.block_tokens * self.num_blocks or None

    def load(self, at_s: float) -> LoadReport:
        """As routing takes it. What is not known counts as 0: routers never assume less than they have booked themselves."""
        kv = self.kv_used_fraction or 0.0
        tokens = self.used_tokens
        if tokens is None:
            tokens = round(kv * (self.kv_capacity_tokens or 0))
        return LoadReport(at_s, self.num_running or 0, self.num_waiting or 0, tokens, kv)


def parse_engine_metrics(text: bytes) -> EngineReport:
    """Read a report out of a Prometheus exposition; names it does not know, and damaged lines, are passed over.

    Never raises on account of `text`: what cannot be read is counted in `num_ignored` or absent.
    """
    reading = _Reading()
    for match, _ in zip(_SAMPLE.finditer(text), range(MAX_SAMPLES), strict=False):
        reading.take(FIELD_OF[match["name"]], match["labels"] or b"", match["value"])
    return reading.report()


class _Reading:
    """Gathers samples."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}
        self._lora_at = -math.inf
        self._adapters: frozenset[str] = frozenset()
        self._max_adapters: int | None = None
        self._ignored = 0

    def take(self, field: str, labels: bytes, text: bytes) -> None:
        try:
            value = float(text)
        except ValueError:
            self._ignored += 1
            return
        if not math.isfinite(value) or value < 0.0 or (field == _KV and value > 1.0 + 1e-6):
            self._ignored += 1
        elif field == _CACHE:
            self._take_cache(dict(_labels(labels)))
        elif field == _LORA:
            self._take_lora(value, dict(_labels(labels)))
        else:
            self._add(field, value)

    def _take_cache(self, labels: Mapping[str, str]) -> None:
        for field, names in ((_BLOCK_TOKENS, ("block_size", "page_size")), (_BLOCKS, ("num_gpu_blocks", "num_pages"))):
            for name in names:
                if (number := _whole(labels.get(name))) is not None:
                    self._add(field, float(number))

    def _take_lora(self, at: float, labels: Mapping[str, str]) -> None:
        """The value is the time of the update; earlier ones linger under other labels."""
        if at < self._lora_at:
            return
        self._lora_at = at
        names = f"{labels.get('running_lora_adapters', '')},{labels.get('waiting_lora_adapters', '')}".split(",")
        self._adapters = frozenset(sorted({name.strip() for name in names} - {""})[:MAX_ADAPTERS])
        self._max_adapters = _whole(labels.get("max_lora"))

    def _add(self, field: str, value: float) -> None:
        self._values.setdefault(field, []).append(value)

    def _sum(self, field: str) -> int | None:
        values = self._values.get(field)
        return round(sum(values)) if values else None

    def report(self) -> EngineReport:
        kv, blocks = self._values.get(_KV), self._values.get(_BLOCK_TOKENS)
        return EngineReport(
            num_waiting=self._sum(_WAITING),
            num_running=self._sum(_RUNNING),
            kv_used_fraction=min(1.0, sum(kv) / len(kv)) if kv else None,
            used_tokens=self._sum(_TOKENS),
            block_tokens=round(blocks[0]) if blocks else None,
            num_blocks=self._sum(_BLOCKS),
            adapters=self._adapters,
            max_adapters=self._max_adapters,
            num_ignored=self._ignored,
        )


def _labels(text: bytes) -> Iterator[tuple[str, str]]:
    for name, value in _LABEL.findall(text):
        yield name.decode(), _ESCAPE.sub(_unescape, value.decode("utf-8", "replace"))


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None
