"""Distributions of prompt and output lengths, as far as a plan depends on them: mean, spread, quantiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from argosy.cost.checks import not_negative, positive
from argosy.errors import ConfigError

# Bounds of the shares of requests that one length each stands for: finer in the tail, where percentiles are asked for.
_BOUNDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 1.0)
_SHARES = tuple(high - low for low, high in itertools.pairwise(_BOUNDS))
_MIDDLES = tuple((low + high) / 2 for low, high in itertools.pairwise(_BOUNDS))


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of prompts, or of outputs.

    Attributes:
        mean: tokens.
        cv: standard deviation over mean.
        nodes: tokens that stand for `shares` of the requests each, ascending.
        source: what it was made from, for reports.
    """

    mean: float
    cv: float
    nodes: tuple[float, ...]
    shares: tuple[float, ...]
    source: str

    def __post_init__(self) -> None:
        """Raise `ConfigError` for lengths that no request has."""
        if not (math.isfinite(self.mean) and self.mean >= 1):
            raise ConfigError(f"a mean length must be at least 1 token, got {self.mean}")
        not_negative(cv=self.cv)

    @classmethod
    def fixed(cls, tokens: int) -> Lengths:
        """Every request alike.

        Raises:
            ConfigError: below one token.
        """
        return cls(float(tokens), 0.0, (float(tokens),), (1.0,), f"fixed at {tokens}")

    @classmethod
    def lognormal(cls, mean: float, cv: float) -> Lengths:
        """Lognormal of this mean and coefficient of variation.

        Raises:
            ConfigError: a mean below one token or a negative spread.
        """
        positive(mean=mean)
        not_negative(cv=cv)
        variance = math.log1p(cv * cv)
        location, scale = math.log(mean) - variance / 2, math.sqrt(variance)
        normal = NormalDist()
        nodes = tuple(max(1.0, math.exp(location + scale * normal.inv_cdf(share))) for share in _MIDDLES)
        return cls(mean, cv, nodes, _SHARES, f"lognormal, mean {mean:g}, cv {cv:g}")

    @classmethod
    def empirical(cls, tokens: Sequence[int], source: str = "empirical") -> Lengths:
        """The lengths themselves.

        Raises:
            ConfigError: none, or one below 1.
        """
        if not tokens:
            raise ConfigError("an empirical distribution needs at least one length")
        values = np.asarray(tokens, np.float64)
        if not (np.isfinite(values).all() and (values >= 1).all()):
            raise ConfigError(f"lengths must be at least 1 token, got {float(values.min())}")
        mean = float(values.mean())
        nodes = tuple(float(node) for node in np.quantile(values, _MIDDLES))
        return cls(mean, float(values.std()) / mean, nodes, _SHARES, source)

    @property
    def tokens(self) -> int:
        """Mean in whole tokens."""
        return max(1, round(self.mean))

    @property
    def resident_mean(self) -> float:
        """Mean over what is running at a moment: long outputs stay longer, so E[x²]/E[x] = mean (1 + cv²)."""
        return self.mean * (1.0 + self.cv**2)
