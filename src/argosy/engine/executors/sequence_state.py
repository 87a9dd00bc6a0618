"""What the sampler keeps of one sequence between steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from argosy.engine.core.plan import NewSequence, ScheduledSequence
from argosy.engine.core.sampling_params import SamplingParams


class SequenceState:
    """Sampling parameters of a sequence, and, where they look back, the output tokens they look at.

    The scheduler decides what the output is: `learn` and `record` overwrite whatever was held from their index on, so a
    token computed again after a preemption is not counted twice, and one that was taken back is forgotten.

    Attributes:
        new: as the plan introduced the sequence.
        output_token_ids: outputs so far; kept only if `looks_back`.
        penalized: the tokens that penalties act on; None without penalties.
        edits_logits: whether anything may change the logits before the temperature does.
        bias_ids, bias_values: logit_bias as arrays [entries].
    """

    def __init__(self, new: NewSequence) -> None:
        params = new.params
        self.new = new
        self.output_token_ids: list[int] = []
        self.penalized = TokenCounts(new.prompt_token_ids) if _has_penalties(params) else None
        self.looks_back = self.penalized is not None or any(len(word) > 1 for word in new.bad_words_ids)
        self.edits_logits = bool(
            self.penalized is not None or params.logit_bias or new.bad_words_ids or (params.min_tokens and new.stop_ids)
        )
        self.bias_ids = np.array([token_id for token_id, _ in params.logit_bias], dtype=np.int64)
        self.bias_values = np.array([bias for _, bias in params.logit_bias], dtype=np.float32)

    @property
    def params(self) -> SamplingParams:
        """The sequence's sampling parameters."""
        return self.new.params

    def learn(self, entry: ScheduledSequence) -> None:
        """Take in the output tokens that a step computes, and forget those past `entry.num_output_tokens`."""
        if not self.looks_back:
            return
        num_prompt = len(self.new.prompt_token_ids)
        first = max(entry.start - num_prompt, 0)
        outputs = entry.token_ids[max(num_prompt - entry.start, 0) :]
        if tuple(self.output_token_ids[first : first + len(outputs)]) != outputs:
            self._forget_from(first)
            for index, token_id in enumerate(outputs, start=first):
                self.record(index, token_id)
        self._forget_from(entry.num_output_tokens)

    def record(self, index: int, token_id: int) -> None:
        """Output number `index` is `token_id`; later ones, if held, are forgotten."""
        if not self.looks_back:
            return
        self._forget_from(index)
        assert index == len(self.output_token_ids), "an output token is missing from the history"
        self.output_token_ids.append(token_id)
        if self.penalized is not None:
            self.penalized.add(token_id, 1)

    def _forget_from(self, index: int) -> None:
        while len(self.output_token_ids) > index:
            token_id = self.output_token_ids.pop()
            if self.penalized is not None:
                self.penalized.add(token_id, -1)

    def masked_ids(self, num_output_tokens: int) -> Sequence[int]:
        """Ids that may not be sampled as output number `num_output_tokens`: stop ids before `min_tokens`, and the last
        token of each bad word whose other tokens are the latest outputs."""
        masked: list[int] = []
        if num_output_tokens < self.params.min_tokens:
            masked.extend(self.new.stop_ids)
        for word in self.new.bad_words_ids:
            before = len(word) - 1
            if before == 0 or tuple(self.output_token_ids[-before:]) == word[:-1]:
                masked.append(word[-1])
        return masked


class TokenCounts:
    """How often each token of a prompt and its output was generated, as arrays ready for the sampler.

    Tokens seen stand once, in the order first seen; those of the prompt start with an output count of zero.
    """

    def __init__(self, prompt_token_ids: Iterable[int]) -> None:
        self._index = {token_id: i for i, token_id in enumerate(dict.fromkeys(prompt_token_ids))}
        self._num_prompt = len(self._index)
        self._size = len(self._index)
        self._ids = np.fromiter(self._index, dtype=np.int64, count=self._size)
        self._counts = np.zeros(self._size, dtype=np.int64)

    @property
    def ids(self) -> NDArray[np.int64]:
        """[seen] distinct tokens of prompt and output; one whose outputs were all forgotten is not seen."""
        return self._ids[self._live()]

    @property
    def counts(self) -> NDArray[np.int64]:
        """[seen] times each of `ids` was generated; the prompt does not count."""
        return self._counts[self._live()]

    def _live(self) -> NDArray[np.bool_] | slice:
        generated = self._counts[self._num_prompt : self._size]
        if generated.all():
            return slice(0, self._size)
        live = np.zeros(len(self._counts), dtype=np.bool_)
        live[: self._num_prompt] = True
        live[self._num_prompt : self._size] = generated > 0
        return live

    def add(self, token_id: int, change: int) -> None:
        """Generated once more (`change` 1) or taken back (-1)."""
        index = self._index.get(token_id)
        if index is None:
            index = self._index[token_id] = self._size
            self._size += 1
            if self._size > len(self._ids):
                room = max(64, len(self._ids))
                self._ids = np.concatenate((self._ids, np.zeros(room, dtype=np.int64)))
                self._counts = np.concatenate((self._counts, np.zeros(room, dtype=np.int64)))
            self._ids[index] = token_id
        self._counts[index] += change
        assert self._counts[index] >= 0, "a token was taken back that was never generated"


def _has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
