"""The sequences of one request: how they begin, and who of them waits for whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.request import FinishReason, Request, Sequence, SequenceStatus
from argosy.engine.core.stopping import length_limit, stop_ids


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
        """A running sequence that has computed the whole prompt, for `sequence` to share its blocks, or None.

        None also if `sequence` has output of its own. One that was admitted in the same step is never a source, so that
        no block is both source and destination of the copies of one plan.
        """
        if len(self.sequences) == 1 or len(sequence.token_ids) > sequence.num_prompt:
            return None
        for other in self.sequences:
            if other.status is SequenceStatus.RUNNING and other.num_computed >= other.num_prompt:
                return other
        return None


def make_sequences(config: SchedulerConfig, request: Request, first_id: int) -> tuple[Sequence, ...]:
    """The `params.n` sequences of a request, with ids from `first_id` on.

    All wait, but for those with nothing to compute (`max_tokens` 0 and no prompt logprobs owed): they are finished. Prompt
    logprobs are owed once, by the first sequence.
    """
    params, num_prompt = request.params, len(request.prompt_token_ids)
    priority = request.priority if config.scheduling_policy == "priority" else 0
    max_len, length_reason = length_limit(config, request)
    ids_that_stop = stop_ids(request)
    sequences = tuple(
        Sequence(
            first_id + sample_index,
            request,
            sample_index,
            list(request.prompt_token_ids),
            num_prompt,
            request_id=request.request_id,
            adapter_id=request.adapter_id,
            rank=(priority, request.arrival_s, first_id + sample_index),
            stop_ids=ids_that_stop,
            min_len=num_prompt + params.min_tokens,
            max_len=max_len,
            length_reason=length_reason,
        )
        for sample_index in range(params.n)
    )
    if params.prompt_logprobs is not None and num_prompt > 1:
        sequences[0].next_prompt_logprob = 1
    for sequence in sequences:
        if max_len == num_prompt and not sequence.next_prompt_logprob:
            sequence.status = SequenceStatus.FINISHED
            sequence.finish_reason, sequence.stop_reason = FinishReason.LENGTH, length_reason
    return sequences
