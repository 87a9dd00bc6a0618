"""Where every sequence alive stands: running, queued, or parked until its sibling has computed their prompt."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter

from argosy.engine.core.invariants import InvariantViolated, check_sequences
from argosy.engine.core.request import FinishReason, Request, Sequence, SequenceStatus
from argosy.engine.core.request_group import RequestGroup
from argosy.engine.core.waiting_queue import WaitingQueue

_by_rank = attrgetter("rank")


class Roster:
    """Moves sequences between their places and counts them. Knows nothing of blocks.

    Mutates of a `Sequence` only `status`, `preemptions`, `has_parked_siblings`, `finish_reason` and `stop_reason`.

    Attributes:
        running: in order of rank, the best first. Read by others, changed here only.
        queue: who can be admitted next.
        num_waiting: sequences that do not run: queued or parked.
        num_waiting_requests: requests with at least one such sequence.
    """

    def __init__(self) -> None:
        self.running: list[Sequence] = []
        self.queue = WaitingQueue()
        self.num_waiting = 0
        self.num_waiting_requests = 0
        self._groups: dict[str, RequestGroup] = {}
        self._sequences: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def get(self, sequence_id: int) -> Sequence | None:
        """The sequence with this id, or None if it has ended."""
        return self._sequences.get(sequence_id)

    def group(self, request_id: str) -> RequestGroup | None:
        """The sequences of a request, or None if all have ended."""
        return self._groups.get(request_id)

    def group_of(self, sequence: Sequence) -> RequestGroup:
        """The group of a sequence alive."""
        return self._groups[sequence.request_id]

    def add(self, request: Request, sequences: list[Sequence]) -> None:
        """Queue the first sequence of a request and park the others until it has computed the prompt."""
        first, *others = sequences
        group = RequestGroup(request, tuple(sequences), parked=others, num_alive=len(sequences))
        self._groups[request.request_id] = group
        for sequence in sequences:
            self._sequences[sequence.sequence_id] = sequence
        self._count_waiting(group, len(sequences))
        first.has_parked_siblings = bool(others)
        self.queue.push(first)

    def start(self, sequence: Sequence) -> None:
        """The head of the queue runs."""
        head = self.queue.pop()
        assert head is sequence, "admission is in the order of the queue"
        sequence.status = SequenceStatus.RUNNING
        self._count_waiting(self.group_of(sequence), -1)
        insort(self.running, sequence, key=_by_rank)

    def preempt(self, sequence: Sequence) -> None:
        """A running sequence waits again."""
        self.running.remove(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.preemptions += 1
        self._count_waiting(self.group_of(sequence), 1)
        self.queue.push(sequence)

    def end(self, sequence: Sequence, reason: FinishReason, stop_reason: int | str | None) -> None:
        """Take a sequence out. If others wait for it to compute their prompt, the next one does it instead."""
        group = self.group_of(sequence)
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
        else:
            self._count_waiting(group, -1)
            if sequence in group.parked:
                group.parked.remove(sequence)
            else:
                self.queue.discard(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason, sequence.stop_reason = reason, stop_reason
        del self._sequences[sequence.sequence_id]
        group.num_alive -= 1
        if group.num_alive == 0:
            del self._groups[sequence.request_id]
        if sequence.has_parked_siblings:
            sequence.has_parked_siblings = False
            self._pass_on(group)

    def unpark(self, sequence: Sequence) -> None:
        """`sequence` has computed the prompt: let its siblings queue for admission."""
        group = self.group_of(sequence)
        for sibling in group.parked:
            self.queue.push(sibling)
        group.parked.clear()
        sequence.has_parked_siblings = False

    def check_invariants(self) -> None:
        """Raise `InvariantViolated` if a sequence is lost, in two places, or miscounted. O(sequences)."""
        groups = self._groups.values()
        check_sequences(self.running, self.queue.sequences(), groups)
        num_waiting = sum(group.num_waiting for group in groups)
        for holds, what in (
            (len(self._sequences) == len(self.running) + num_waiting, "every sequence alive runs or waits"),
            (self.num_waiting == num_waiting, "waiting sequences are counted"),
            (self.num_waiting_requests == sum(g.num_waiting > 0 for g in groups), "waiting requests are counted"),
        ):
            if not holds:
                raise InvariantViolated(what)

    def _pass_on(self, group: RequestGroup) -> None:
        if group.parked:
            sibling = group.parked.pop(0)
            sibling.has_parked_siblings = bool(group.parked)
            self.queue.push(sibling)

    def _count_waiting(self, group: RequestGroup, change: int) -> None:
        before = group.num_waiting
        group.num_waiting += change
        self.num_waiting += change
        self.num_waiting_requests += (group.num_waiting > 0) - (before > 0)
