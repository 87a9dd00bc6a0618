"""Records of a live engine as samples of what steps take."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence

from argosy.cost.measured_steps import StepFeatures, StepSample
from argosy.cost.op import StepComposition
from argosy.cost.op_template import causal_pairs
from argosy.engine.step_recorder import StepRecord

Shares = Mapping[int | None, float]


def features_of(step: StepRecord, shares: Shares) -> StepFeatures:
    """What the time of `step` depends on; `shares` are those of layers by window, as `attention_shares`."""
    tokens = logits = 0
    seen = pairs = 0.0
    for entry in step.entries:
        new, past = entry.num_tokens, entry.start
        tokens += new
        logits += entry.samples
        if _decodes(entry.samples, new):
            seen += sum(share * min(past + 1, limit or past + 1) for limit, share in shares.items())
        else:
            pairs += sum(share * causal_pairs(new, past, limit) for limit, share in shares.items())
    return StepFeatures(tokens, logits, len(step.entries), seen, pairs)


def samples_of(steps: Sequence[StepRecord], shares: Shares, configuration: Hashable) -> list[StepSample]:
    """A sample of every step; its host time where another step followed because there was work."""
    samples = []
    for step, after in itertools.zip_longest(steps, steps[1:]):
        host_s = None
        if after is not None and step.num_running + step.num_waiting > 0:
            host_s = max(after.start_s - step.start_s - step.executor_s, 0.0)
        samples.append(StepSample(features_of(step, shares), configuration, step.executor_s, host_s))
    return samples


def composition_of(step: StepRecord) -> StepComposition:
    """What the step computed, as the op list takes it; decoding sequences stand at their mean context."""
    pasts = [entry.start for entry in step.entries if _decodes(entry.samples, entry.num_tokens)]
    groups = [(1, e.num_tokens, e.start) for e in step.entries if not _decodes(e.samples, e.num_tokens)]
    if pasts:
        groups.insert(0, (len(pasts), 1, round(sum(pasts) / len(pasts))))
    return StepComposition(tuple(groups), sum(entry.samples for entry in step.entries))


def _decodes(samples: bool, new: int) -> bool:
    return samples and new == 1
