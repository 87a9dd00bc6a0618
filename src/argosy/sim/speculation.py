"""How many drafts are accepted, and what drafting costs: a process in place of a draft model.

The seam: a plan has no fields for drafts. A speculating executor gives a sequence more than one token a step, and is charged
for verifying `drafts + 1` positions whatever the plan says it computes; so the scheduler's account of tokens per step counts
accepted ones, and its time those that were tried.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from random import Random

from argosy.errors import ConfigError
from argosy.sim.step_pricer import StepPricer, StepShape


class SpeculationProcess:
    """Each of `drafts` tokens is accepted with probability `acceptance`, up to the first that is not.

    Leviathan et al., "Fast inference from transformers via speculative decoding", 2023.

    The number accepted is a pure function of (seed, sequence, position): neither batch nor preemption changes it.
    """

    def __init__(self, drafts: int, acceptance: float, *, seed: int, draft: StepPricer | None = None) -> None:
        """`draft` prices the draft model's steps; None drafts at no cost, as from n-grams.

        Raises:
            ConfigError: less than one draft, or an acceptance outside 0 to 1.
        """
        if drafts < 1:
            raise ConfigError(f"drafts must be at least 1, got {drafts}")
        if not 0.0 <= acceptance <= 1.0:
            raise ConfigError(f"acceptance must be within [0, 1], got {acceptance}")
        self.drafts = drafts
        self.acceptance = acceptance
        self._seed = seed
        self._draft = draft

    def num_accepted(self, sequence_id: int, num_output: int) -> int:
        """Drafts accepted in the step in which the sequence has `num_output` tokens: 0 to `drafts`."""
        key = f"{self._seed}\0{sequence_id}\0{num_output}".encode()
        rng = Random(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big"))  # noqa: S311
        for accepted in range(self.drafts):
            if rng.random() >= self.acceptance:
                return accepted
        return self.drafts

    def draft_s(self, pasts: Sequence[int]) -> float:
        """Seconds in which the draft model proposes, one step a draft, for sequences at contexts `pasts`."""
        if self._draft is None:
            return 0.0
        total, count = sum(pasts), len(pasts)
        seconds = 0.0
        for ahead in range(1, self.drafts + 1):
            seen = tuple(
                total + ahead * count if limit is None else sum([min(past + ahead, limit) for past in pasts])
                for limit in self._draft.limits
            )
            seconds += self._draft.step_s(StepShape(count, 1, seen, seen))
        return seconds
