"""Which loads a calibration puts on an engine, so that its steps cover what steps can be."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from argosy.engine.client import EngineInfo

# Tokens of all prompts of one load: what one takes at most.
_MOST_PROMPT_TOKENS = 3072
_DECODE_STEPS = 12
_CONTEXTS = (16, 256, 1024)
_WIDEST = 32


@dataclass(frozen=True, slots=True)
class Load:
    """Requests submitted together, and more that come while they decode.

    Attributes:
        prompts: lengths in tokens of those at once; output_tokens: of each of them.
        later: (how many tokens the first request has got by then, length) of prompts that come later, one token each.
    """

    name: str
    prompts: tuple[int, ...]
    output_tokens: int
    later: tuple[tuple[int, int], ...] = ()


def design(info: EngineInfo) -> list[Load]:
    """Loads for an engine with these limits: decoding by batch and context, single prompts by length, both mixed."""
    longest = info.max_model_len - _DECODE_STEPS - 1
    room = min(info.num_blocks * info.block_size * 9 // 10, _MOST_PROMPT_TOKENS)
    budget = info.max_num_batched_tokens
    loads = []
    for context in (one for one in _CONTEXTS if one <= longest):
        batch = 1
        while batch <= min(info.max_num_seqs, _WIDEST) and batch * (context + _DECODE_STEPS) <= room:
            loads.append(Load(f"decode {batch} at {context}", (context,) * batch, _DECODE_STEPS))
            batch *= 2
    lengths = [2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048]
    lengths = [one for one in (*[one for one in lengths if one < budget], budget, 4 * budget) if one <= min(longest, room)]
    loads += [Load(f"prompt of {length}", (length,), 1) for length in dict.fromkeys(lengths)]
    for batch in (1, 4, 12):
        for length in (48, 160, 400):
            if batch <= info.max_num_seqs - 2 and length <= longest and batch * 64 + 2 * length <= room:
                later = ((3, length), (7, length))
                loads.append(Load(f"decode {batch}, then prompts of {length}", (40,) * batch, _DECODE_STEPS + 6, later))
    return loads


def random_prompt(rng: Random, length: int, width: int) -> tuple[int, ...]:
    """Token ids that no prefix cache has seen."""
    return tuple(rng.choices(range(width), k=length))
