"""Deltas of one sequence put together while nobody reads them."""

from __future__ import annotations

from dataclasses import replace

from argosy.engine.core.plan import TokenLogprob
from argosy.engine.outputs import OutputDelta


class PendingDelta:
    """One or more consecutive deltas of one sequence as one. Mutated by `add`; joining is linear however many there are."""

    def __init__(self, first: OutputDelta) -> None:
        self._last = first
        self._num_deltas = 1
        self._texts = [first.text]
        self._token_ids = list(first.token_ids)
        self._logprobs: list[TokenLogprob] | None = None if first.logprobs is None else list(first.logprobs)
        self._prompt_logprobs = first.prompt_logprobs

    def add(self, delta: OutputDelta) -> None:
        """Take the delta that follows."""
        self._last = delta
        self._num_deltas += 1
        self._texts.append(delta.text)
        self._token_ids.extend(delta.token_ids)
        if self._logprobs is not None:
            self._logprobs.extend(delta.logprobs or ())
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs

    def join(self) -> OutputDelta:
        """All of them as one delta; the totals and the end are those of the last."""
        if self._num_deltas == 1:
            return self._last
        return replace(
            self._last,
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            prompt_logprobs=self._prompt_logprobs,
        )
