"""How one request fared at one replica, and what a replica tells of its steps."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from argosy.sim.workload.trace_request import TraceRequest

if TYPE_CHECKING:
    from argosy.sim.replica import Replica


class Outcome(enum.StrEnum):
    """How a request ended. Exactly one for every request that a replica took."""

    FINISHED = "finished"
    TIMED_OUT = "timed_out"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One request at one replica; times in simulated seconds, None where the request never came so far.

    Attributes:
        submitted_s: when the replica took it, `request.arrival_s` or later.
        first_scheduled_s, first_token_s, finished_s: admission to the batch, end of the step that gave the first token, end.
        num_output_tokens: generated, the lost ones of an aborted request included.
        num_cached_tokens: prompt tokens found in the prefix cache at first admission.
        preemptions: how often it lost its KV blocks.
        corrupted: whether a replica with silent corruption computed part of it; no client can tell.
    """

    request: TraceRequest
    replica: str
    outcome: Outcome
    submitted_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    finished_s: float
    num_output_tokens: int
    num_cached_tokens: int
    preemptions: int
    corrupted: bool = False

    @property
    def ttft_s(self) -> float | None:
        """Time to first token from the request's arrival; None if none came."""
        return None if self.first_token_s is None else self.first_token_s - self.request.arrival_s

    @property
    def e2e_s(self) -> float:
        """From arrival to the end, whatever the end was."""
        return self.finished_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first, (E2E - TTFT) / (tokens - 1); undefined below two tokens."""
        if self.first_token_s is None or self.num_output_tokens < 2:
            return None
        return (self.finished_s - self.first_token_s) / (self.num_output_tokens - 1)


class StepSpan(NamedTuple):
    """One step, or several in a row between which nothing changed but lengths. A named tuple since there are so many.

    Attributes:
        first_step: number of the first one; the others follow.
        start_s: when the first one began. A later one begins when the one before it ends.
        ends_s: when each one ended.
        num_sequences: that took part in each; num_decoding of them went on with their answer, by one token unless drafts
            were accepted.
        num_tokens, num_prefill_tokens: computed in each.
        context_tokens: tokens before those computed, over all sequences of the first step; each further step adds
            `num_decoding`.
        num_generated_tokens: that each step gave.
        num_running, num_waiting, kv_blocks_held, kv_blocks_cached: at the end of each.
        num_preemptions, prefix_query_tokens, prefix_hit_tokens: during the (then only) step.
    """

    first_step: int
    start_s: float
    ends_s: Sequence[float]
    num_sequences: int
    num_decoding: int
    num_tokens: int
    num_prefill_tokens: int
    context_tokens: int
    num_generated_tokens: int
    num_running: int
    num_waiting: int
    kv_blocks_held: int
    kv_blocks_cached: int
    num_preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0


class ReplicaListener(Protocol):
    """Hears what a replica does. Called from within the event loop, in order of time for one replica.

    Steps may be told of late, but before anything that comes after them at the same replica.
    """

    def on_first_token(self, replica: Replica, request: TraceRequest, now_s: float) -> None:
        """The first token of `request` is there."""
        ...

    def on_finish(self, replica: Replica, outcome: RequestOutcome) -> None:
        """A request that the replica took has ended, once for each. It may submit others from within."""
        ...

    def on_steps(self, replica: Replica, span: StepSpan) -> None:
        """Steps are over."""
        ...
