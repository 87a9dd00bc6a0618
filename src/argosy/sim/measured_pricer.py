"""Step times from a curve that was measured on the machine, in place of the roofline's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from argosy.cost.measured_steps import MeasuredSteps, attention_shares
from argosy.cost.op_template import causal_pairs
from argosy.cost.step_time_model import StepTimeModel
from argosy.errors import ConfigError
from argosy.sim.step_pricer import StepPricer, StepShape

_MOST_REMEMBERED = 1 << 16


class MeasuredPricer(StepPricer):
    """A `StepPricer` whose seconds are those of `measured`; `model` says what is deployed and which windows it has."""

    def __init__(self, model: StepTimeModel, measured: MeasuredSteps) -> None:
        """Raises `ConfigError` for several devices: only one machine was measured."""
        super().__init__(model)
        if model.deployment.plan.devices != 1:
            raise ConfigError("measured step times are of one device; use a roofline calibration for several")
        self.measured = measured
        shares = attention_shares(model.deployment)
        self._shares = tuple(shares[limit] for limit in self.limits)
        self._fixed: dict[tuple[int, int, int], float] = {}

    def step_s(self, shape: StepShape) -> float:
        """Seconds from the start of a step to the start of the next, the host's part included."""
        num_decoding, width, seen, _, chunks = shape
        tokens = logits = num_decoding * width
        pairs = 0.0
        for new, past, samples in chunks:
            tokens += new
            logits += samples
            for share, limit in zip(self._shares, self.limits, strict=True):
                pairs += share * causal_pairs(new, past, limit)
        seconds = self._fixed_s(tokens, logits, num_decoding + len(chunks))
        if num_decoding:
            for share, tokens_seen in zip(self._shares, seen, strict=True):
                seconds += self.measured.seen_s * share * tokens_seen
        return seconds + self.measured.pair_s * pairs

    def decode_run_s(self, num_decoding: int, seen: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """As `StepPricer.decode_run_s`, equal bit for bit to `step_s` of each."""
        seconds = np.full(len(seen[0]) if seen else 0, self._fixed_s(num_decoding, num_decoding, num_decoding))
        for share, tokens_seen in zip(self._shares, seen, strict=True):
            seconds = seconds + self.measured.seen_s * share * tokens_seen
        return seconds + self.measured.pair_s * 0.0

    def _fixed_s(self, tokens: int, logits: int, sequences: int) -> float:
        key = (tokens, logits, sequences)
        known = self._fixed.get(key)
        if known is None:
            if len(self._fixed) >= _MOST_REMEMBERED:
                self._fixed.clear()
            known = self._fixed[key] = self.measured.fixed_s(tokens, logits, sequences)
        return known
