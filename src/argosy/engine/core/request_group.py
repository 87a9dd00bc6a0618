"""The sequences of one request, and who of them waits for whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from argosy.engine.core.request import Request, Sequence, SequenceStatus


@dataclass(slots=True, eq=False)
class RequestGroup:
    """Book-keeping of one request alive. Mutated by the scheduler only.

    The prompt is computed once, by the first sequence; the others are parked until it is there, and then fork.

    Attributes:
        parked: sequences not yet in the queue, in order of sample index.
        num_waiting: sequences with status WAITING, parked ones included.
        num_alive: sequences that have not ended.
    """

    request: Request
    sequences: tuple[Sequence, ...]
    parked: list[Sequence] = field(default_factory=list)
    num_waiting: int = 0
    num_alive: int = 0

    def fork_source(self, sequence: Sequence) -> Sequence | None:
        """A running sequence that has computed all of the prompt that `sequence` can share, or None."""
        if len(self.sequences) == 1 or len(sequence.token_ids) > sequence.num_prompt:
            return None
        for other in self.sequences:
            if other.status is SequenceStatus.RUNNING and other.num_computed >= other.num_prompt - 1:
                return other
        return None
