"""How fast work has been leaving of late."""

from __future__ import annotations

import math


class DrainRate:
    """Tokens served per second over about the last `memory_s` seconds: an exponentially decaying sum over its memory."""

    def __init__(self, memory_s: float = 10.0) -> None:
        self._memory_s = memory_s
        self._sum_tokens = 0.0
        self._at_s = 0.0

    def add(self, tokens: int, now_s: float) -> None:
        """Take in that `tokens` were served by `now_s`."""
        self._sum_tokens = self._decayed(now_s) + tokens
        self._at_s = max(self._at_s, now_s)

    def tokens_per_s(self, now_s: float) -> float:
        """The rate as of `now_s`."""
        return self._decayed(now_s) / self._memory_s

    def _decayed(self, now_s: float) -> float:
        return self._sum_tokens * math.exp(-max(0.0, now_s - self._at_s) / self._memory_s)
