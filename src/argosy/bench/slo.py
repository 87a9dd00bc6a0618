"""A service level for single requests, as written on the command line: `ttft=0.5,tpot=50ms`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from argosy.errors import ConfigError

_NAMES = ("ttft", "tpot", "e2e")
_LIMIT = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s)?")


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """Limits in seconds; None limits nothing. A request is good if it keeps all of them."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> ServiceLevel:
        """From `name=limit` pairs, limits in seconds or with the unit s or ms.

        Raises:
            ConfigError: an unknown or repeated name, or a limit that is no time above 0.
        """
        limits: dict[str, float] = {}
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            match = _LIMIT.fullmatch(value)
            if name not in _NAMES or not equals:
                raise ConfigError(
                    f"--slo: {part.strip()!r} is none of ttft=…, tpot=…, e2e=…; write it like ttft=0.5,tpot=50ms"
                )
            if name in limits:
                raise ConfigError(f"--slo names {name} twice")
            if match is None or float(match[1]) == 0:
                raise ConfigError(f"--slo: {value!r} is not a time above 0; write it like {name}=0.5 or {name}=500ms")
            limits[name] = float(match[1]) * (1e-3 if match[2] == "ms" else 1.0)
        return cls(limits.get("ttft"), limits.get("tpot"), limits.get("e2e"))

    def is_kept(self, *, ttft_s: float, tpot_s: float | None, e2e_s: float) -> bool:
        """Whether one finished request keeps every limit; without TPOT (a single token) that limit is kept."""
        measured = ((self.ttft_s, ttft_s), (self.tpot_s, tpot_s), (self.e2e_s, e2e_s))
        return all(limit is None or value is None or value <= limit for limit, value in measured)
