"""The contract between deciding and computing: a `StepPlan` goes out, a `StepResult` comes back.

Ints, floats, strings and tuples only, so that a plan can be logged, replayed, sent to another process, or answered by a
cost model in place of a GPU. Named tuples because one of each is made per sequence and step.
"""

from __future__ import annotations

from typing import NamedTuple

from argosy.engine.core.sampling_params import SamplingParams


class NewSequence(NamedTuple):
    """All an executor must know of a sequence before its first step; it keeps it until the id appears in `finished`.

    Attributes:
        sequence_id: unique for the life of the engine, never reused.
        prompt_token_ids: the whole prompt, for penalties and prompt logprobs.
        params: with `max_tokens` and `min_tokens` as submitted.
        sample_index: 0..n-1 among the sequences of one request; keys the random stream together with `seed`.
        seed: 64-bit unsigned, always resolved.
        stop_ids: ids to mask while fewer than `min_tokens` are generated.
        bad_words_ids: each a token sequence whose last token is masked when the others have just been generated.
    """

    sequence_id: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    sample_index: int
    seed: int
    stop_ids: tuple[int, ...]
    bad_words_ids: tuple[tuple[int, ...], ...]


class BlockCopy(NamedTuple):
    """Copy a whole KV block before the step computes anything (copy-on-write)."""

    source: int
    destination: int


class ScheduledSequence(NamedTuple):
    """One sequence's part of a step: compute `token_ids` at positions `start, start + 1, …`.

    KV of position p lies in block `block_table[p // block_size]`, slot `p % block_size`; the blocks for every position of
    this step are allocated. Positions below `start` are computed already and must not be written.

    Attributes:
        sample: whether to sample one token from the logits of the last position (false for a prompt chunk that is not the
            last one, and while re-computing known tokens).
        num_output_tokens: tokens generated before this step; `start + len(token_ids)` is the position of the sampled one.
        adapter_id: content id of a LoRA adapter, or "".
        prompt_logprobs_from: first prompt position whose logprobs this step must return, or -1 for none. The positions
            p with prompt_logprobs_from <= p <= start + len(token_ids), 1 <= p < prompt length, are scored by the logits
            of p - 1 and returned in order.
    """

    sequence_id: int
    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    sample: bool
    num_output_tokens: int
    adapter_id: str
    prompt_logprobs_from: int


class Coasting(NamedTuple):
    """Sequences that decode one token in a step and are not listed one by one, since who runs it knows what they get.

    Attributes:
        context_tokens: computed before the step, over all of them.
        capped_tokens: for each of `KnownOutputs.context_limits`, the sum of min(context and the new token, limit).
    """

    num_sequences: int
    context_tokens: int
    capped_tokens: tuple[int, ...]


NO_COASTING = Coasting(0, 0, ())


class StepPlan(NamedTuple):
    """What one step computes. Order of work: forget `finished`, learn `new`, do `copies`, run `sequences`.

    `sequences` holds at most one entry per sequence id. `num_tokens` is the sum of their lengths and of the tokens of those
    that coast, `num_prefill_tokens` the part of it that belongs to entries of more than one token or that do not sample.
    Nobody coasts unless the scheduler was given `KnownOutputs`.
    """

    step: int
    new: tuple[NewSequence, ...]
    finished: tuple[int, ...]
    copies: tuple[BlockCopy, ...]
    sequences: tuple[ScheduledSequence, ...]
    num_tokens: int
    num_prefill_tokens: int
    coasting: Coasting = NO_COASTING


class TokenLogprob(NamedTuple):
    """Natural-log probabilities at one position, from the raw logits (before bias, penalties and temperature).

    `rank` is the token's 1-based rank in the row. `top` holds (token id, logprob) by falling probability and is as long as
    was asked for; it need not contain the token itself.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class SequenceResult(NamedTuple):
    """What a step gave one sequence.

    Attributes:
        token_ids: tokens sampled in this step: none, one, or with speculation the accepted run.
        logprobs: one per token of `token_ids` if asked for, else empty.
        prompt_logprobs: as `ScheduledSequence.prompt_logprobs_from` asks.
        error: a line to fail this sequence with (e.g. logits not finite), or "".
    """

    sequence_id: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    error: str


class StepResult(NamedTuple):
    """The answer to one plan: results in the order of `StepPlan.sequences`, and the seconds the step took."""

    step: int
    results: tuple[SequenceResult, ...]
    duration_s: float
