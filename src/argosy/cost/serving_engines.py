"""How serving engines use memory and fill steps, by their documented defaults: what a measured row leaves unsaid."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from argosy.cost.serving_memory import MemoryConstants
from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """Conventions of one engine.

    Attributes:
        step_tokens: tokens of a step at most, prompts and decoding sequences together.
        memory: share of the device it takes, and how much of a request's output it reserves.
        fp8_kv_with_quantised_weights: whether checkpoints with quantised matrices run with an fp8 KV cache, by whether the
            device has fp4 arithmetic (Blackwell) or not (Hopper).
    """

    name: str
    step_tokens: int
    memory: MemoryConstants
    fp8_kv_with_quantised_weights: dict[bool, bool]


_ENGINES = (
    # Capacity scheduling "guaranteed no evict" reserves whole requests; KV takes 0.9 of what is free after loading.
    ServingEngine("trtllm", 8192, MemoryConstants(kv_fraction=0.9), {True: True, False: True}),
    # 0.9 of the device for everything; blocks are taken as requests grow, which are preempted when there are none left.
    ServingEngine(
        "vllm",
        8192,
        MemoryConstants(total_fraction=0.9, kv_fraction=1.0, reserved_output=0.5),
        {True: True, False: False},
    ),
    # A share of what is free after loading; requests grow and are retracted when there is no room.
    ServingEngine("sglang", 8192, MemoryConstants(kv_fraction=0.9, reserved_output=0.5), {True: False, False: False}),
    # On a CPU: steps short enough for those who decode, and a quarter of the memory for KV.
    ServingEngine("argosy", 256, MemoryConstants(kv_fraction=0.25, reserved_output=0.5), {True: False, False: False}),
)


def find_engine(name: str) -> ServingEngine:
    """The engine of that name.

    Raises:
        ConfigError: unknown; names near ones.
    """
    for engine in _ENGINES:
        if engine.name == name:
            return engine
    names = [engine.name for engine in _ENGINES]
    near = difflib.get_close_matches(name, names, n=1) or names
    raise ConfigError(f"unknown serving engine {name!r}; known near it: {', '.join(near)}")
