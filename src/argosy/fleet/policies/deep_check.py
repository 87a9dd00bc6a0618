"""Whether a generated token makes sense: the judgement of a deep health probe."""

from __future__ import annotations

import math
from collections.abc import Sequence

SANE_BAND = (0.001, 0.999)
# Rounding of a server that prints few digits.
_ABOVE_CERTAIN = 1e-3


def judge_logprobs(top_logprobs: Sequence[float], band: tuple[float, float] = SANE_BAND) -> str | None:
    """None if the distribution of a token is plausible, else what is wrong with it.

    Broken weights or kernels give log probabilities that are not finite, one token that is certain, or all tokens alike.
    How many tokens there are is not known here, so the entropy is that of the most likely ones among themselves, as a
    fraction of the largest it can be, ln k.

    Args:
        top_logprobs: natural logarithms, of the k most likely tokens in any order. Of fewer than two, no entropy is taken.
        band: fractions within which the entropy is sane. The prompt must be one after which several words may follow.
    """
    if any(math.isnan(value) or value == math.inf or value > _ABOVE_CERTAIN for value in top_logprobs):
        return "the log probabilities are not finite numbers up to 0"
    finite = [value for value in top_logprobs if value != -math.inf]
    if not finite:
        return "no token has a probability above 0"
    if len(top_logprobs) < 2:
        return None
    highest = max(finite)
    weights = [math.exp(value - highest) for value in finite]
    total = sum(weights)
    entropy = -sum(w / total * math.log(w / total) for w in weights if w > 0.0)
    fraction = entropy / math.log(len(top_logprobs))
    low, high = band
    if low <= fraction <= high:
        return None
    return f"the entropy of the likeliest tokens is {fraction:.4g} of its maximum, outside [{low:g}, {high:g}]"
