"""How many tokens an answer will have at most, with a given confidence, learnt per tenant and model.

Admission reserves what a request may take. `max_tokens` alone reserves far too much, since most clients set it high or not
at all, and a mean is exceeded by half of all answers; a quantile is exceeded by a known share.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from argosy.errors import ConfigError

_K = TypeVar("_K")
_STEPS_PER_DOUBLING = 4
_MAX_TOKENS = 1 << 20
_NUM_BUCKETS = 20 * _STEPS_PER_DOUBLING + 1
_HALVE_AT = 512


class OutputHistogram:
    """Answer lengths in buckets a factor of 2^(1/4) wide; at 512 answers all counts are halved, so that old ones fade.

    164 bytes of counts, whatever the number of answers.
    """

    __slots__ = ("_bucket", "_counts", "_num_below", "num_answers", "quantile_tokens")

    def __init__(self) -> None:
        self._counts = array("H", bytes(2 * _NUM_BUCKETS))
        self.num_answers = 0
        self.quantile_tokens = 0
        self._bucket = 0  # the one that the quantile lies in, and the answers in the buckets below it
        self._num_below = 0

    def observe(self, num_tokens: int, quantile: float) -> None:
        """Count an answer and set `quantile_tokens`: the upper edge of the bucket that the quantile lies in. Mutates."""
        counts, added = self._counts, _bucket(num_tokens)
        counts[added] += 1
        self.num_answers += 1
        if added < self._bucket:
            self._num_below += 1
        if self.num_answers >= _HALVE_AT:
            for bucket, count in enumerate(counts):
                counts[bucket] = count // 2
            self.num_answers = sum(counts)
            self._bucket = self._num_below = 0
        wanted = max(quantile * self.num_answers, 1.0 - 1e-9)
        while self._num_below + counts[self._bucket] < wanted:
            self._num_below += counts[self._bucket]
            self._bucket += 1
        while self._num_below >= wanted:
            self._bucket -= 1
            self._num_below -= counts[self._bucket]
        self.quantile_tokens = _upper_edge(self._bucket)


@dataclass(slots=True)
class OutputQuantile:
    """Learns output lengths of (tenant, model) and estimates what the next answer takes.

    With fewer than `min_answers` of a tenant and model, all tenants' answers of the model decide, then `initial_tokens`.

    Attributes:
        quantile: share of answers that are at most as long as the estimate.
        initial_tokens: the estimate before anything is known.
        max_pairs, max_models: remembered; the one heard of longest ago is forgotten first.
    """

    quantile: float = 0.9
    initial_tokens: int = 1024
    min_answers: int = 20
    max_pairs: int = 10_000
    max_models: int = 1_000
    _of_pair: OrderedDict[tuple[str, str], OutputHistogram] = field(default_factory=OrderedDict, repr=False)
    _of_model: OrderedDict[str, OutputHistogram] = field(default_factory=OrderedDict, repr=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if not 0.0 < self.quantile < 1.0:
            raise ConfigError(f"quantile of output estimates must be above 0 and below 1, got {self.quantile}")
        if self.initial_tokens < 1 or self.min_answers < 1 or self.max_pairs < 1 or self.max_models < 1:
            raise ConfigError("initial_tokens, min_answers, max_pairs and max_models of output estimates must be at least 1")

    def observe(self, tenant: str, model: str, num_tokens: int) -> None:
        """Learn from one answer that came to its end; one cut short by the client says nothing. Mutates."""
        _touch(self._of_pair, (tenant, model), self.max_pairs).observe(num_tokens, self.quantile)
        _touch(self._of_model, model, self.max_models).observe(num_tokens, self.quantile)

    def tokens(self, tenant: str, model: str, max_output_tokens: int | None = None) -> int:
        """Output tokens to reserve, never more than `max_output_tokens`."""
        estimate = self.initial_tokens
        for histogram in (self._of_pair.get((tenant, model)), self._of_model.get(model)):
            if histogram is not None and histogram.num_answers >= self.min_answers:
                estimate = histogram.quantile_tokens
                break
        return estimate if max_output_tokens is None else min(estimate, max_output_tokens)


def _touch(histograms: OrderedDict[_K, OutputHistogram], key: _K, max_keys: int) -> OutputHistogram:
    histogram = histograms.pop(key, None) or OutputHistogram()
    histograms[key] = histogram
    if len(histograms) > max_keys:
        histograms.popitem(last=False)
    return histogram


def _bucket(num_tokens: int) -> int:
    """The first bucket whose upper edge is not below `num_tokens`."""
    if num_tokens <= 1:
        return 0
    bucket = math.ceil(_STEPS_PER_DOUBLING * math.log2(min(num_tokens, _MAX_TOKENS)) - 1e-9)
    return bucket if _upper_edge(bucket) >= num_tokens or bucket == _NUM_BUCKETS - 1 else bucket + 1


def _upper_edge(bucket: int) -> int:
    return int(2.0 ** (bucket / _STEPS_PER_DOUBLING) + 1e-6)
