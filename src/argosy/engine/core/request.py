"""What is asked of the engine, and the state of each sequence that answers it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from argosy.engine.core.sampling_params import SamplingParams


class FinishReason(enum.StrEnum):
    """Why a sequence ended. `stop` and `length` are answers; `abort` and `error` are not."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class SequenceStatus(enum.Enum):
    """WAITING has never run or is waiting again after a preemption; both hold no blocks."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()


@dataclass(frozen=True, slots=True)
class Request:
    """One submission: a prompt and `params.n` sequences wanted for it. All checks are done; ids are within the logits.

    Attributes:
        request_id: unique among the requests alive.
        arrival_s: on the engine's clock.
        priority: lower runs first under the "priority" policy.
        eos_token_ids: the model's, as united from tokenizer, config and generation config; empty under `ignore_eos`.
        seed: resolved, 64-bit unsigned.
        cache_salt: separates tenants in the prefix cache; set by who is trusted to.
        adapter_id: content id of the LoRA adapter, or "".
        bad_words_ids: `params.bad_words` as token sequences.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival_s: float
    seed: int
    eos_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    cache_salt: str = ""
    adapter_id: str = ""
    bad_words_ids: tuple[tuple[int, ...], ...] = ()


@dataclass(slots=True, eq=False)
class Sequence:
    """One of a request's sequences. Mutated by the scheduler and the KV manager only.

    Invariant: `num_computed <= len(token_ids)`, and a running sequence holds blocks for at least `num_computed` tokens.

    Attributes:
        token_ids: prompt, then output.
        num_prompt: length of the prompt in tokens.
        request_id, adapter_id: as in `request`.
        rank: (priority, arrival in seconds, sequence id); the lower one goes first and is preempted last.
        stop_ids: token ids that end it, once `min_len` tokens are known.
        max_len, length_reason: the length in tokens at which it ends, and the limit that says so.
        num_computed: positions whose KV is in the blocks.
        block_table: ids of the blocks held, in order of position; replaced, never edited, so that plans can share it.
        capacity: tokens that the block table has room for.
        num_published: leading blocks that stand in the prefix index.
        publish_at: the value of `num_computed` at which one more block can be published.
        decode_from: the value of `num_computed` from which all that was known at admission, but for the last token, is
            computed: from there on it decodes.
        next_prompt_logprob: first prompt position whose logprobs are still owed, or 0 if none are.
        protected: holds blocks for its whole remaining life and is never preempted.
        has_parked_siblings: other sequences of the request wait for its prompt to be computed, to fork from it.
        known_to_executor: it stood in a plan's `new` and not yet in a plan's `finished`.
        num_cached_tokens: prompt tokens found in the prefix cache at first admission.
        preemptions: how often it lost its blocks.
        first_scheduled_s, first_token_s: on the engine's clock, or None before.
        finish_reason, stop_reason: why it ended, and the stop string, stop id or limit that ended it.
    """

    sequence_id: int
    request: Request
    sample_index: int
    token_ids: list[int]
    num_prompt: int
    request_id: str = ""
    adapter_id: str = ""
    rank: tuple[int, float, int] = (0, 0.0, 0)
    stop_ids: frozenset[int] = frozenset()
    min_len: int = 0
    max_len: int = 0
    length_reason: str = ""
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed: int = 0
    block_table: tuple[int, ...] = ()
    capacity: int = 0
    num_published: int = 0
    publish_at: int = 0
    decode_from: int = 0
    next_prompt_logprob: int = 0
    protected: bool = False
    has_parked_siblings: bool = False
    known_to_executor: bool = False
    num_cached_tokens: int = 0
    preemptions: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt
