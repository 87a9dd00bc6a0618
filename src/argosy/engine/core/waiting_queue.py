"""Sequences that wait for admission, the most urgent first."""

from __future__ import annotations

from bisect import bisect_left, insort

from argosy.engine.core.request import Sequence

WaitingRank = tuple[int, float, int, int]


def waiting_rank(sequence: Sequence) -> WaitingRank:
    """Order of admission: priority, then arrival, then those that have run before, then order of submission."""
    priority, arrival_s, sequence_id = sequence.rank
    return (priority, arrival_s, 0 if sequence.preemptions else 1, sequence_id)


class WaitingQueue:
    """A list sorted by falling rank, so that the head is at its end: O(1) to take, O(log n) compares to add or discard.

    A sequence's rank must not change while it is in here.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[WaitingRank, Sequence]] = []
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_tokens(self) -> int:
        """Tokens known of those who wait, which do not change meanwhile."""
        return self._num_tokens

    @property
    def head(self) -> Sequence:
        """The one to admit next. Raises `IndexError` if nobody waits."""
        return self._entries[-1][1]

    def push(self, sequence: Sequence) -> None:
        """Let `sequence` wait."""
        self._num_tokens += len(sequence.token_ids)
        insort(self._entries, (waiting_rank(sequence), sequence), key=_descending)

    def pop(self) -> Sequence:
        """Take the head out."""
        sequence = self._entries.pop()[1]
        self._num_tokens -= len(sequence.token_ids)
        return sequence

    def discard(self, sequence: Sequence) -> None:
        """Take `sequence` out, wherever it stands."""
        index = bisect_left(self._entries, _negated(waiting_rank(sequence)), key=_descending)
        assert self._entries[index][1] is sequence, f"sequence {sequence.sequence_id} does not wait here"
        del self._entries[index]
        self._num_tokens -= len(sequence.token_ids)

    def sequences(self) -> list[Sequence]:
        """All who wait, the head first."""
        return [sequence for _, sequence in reversed(self._entries)]


def _negated(rank: WaitingRank) -> tuple[float, ...]:
    return tuple(-part for part in rank)


def _descending(entry: tuple[WaitingRank, Sequence]) -> tuple[float, ...]:
    return _negated(entry[0])
