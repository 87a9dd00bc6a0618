"""Which tokens run in the next step.

There are no phases: every sequence catches up to the tokens it knows, under one token budget per step. A decoding sequence
is one that lacks only its last token; a chunked prompt, a prefix hit and a resumption after preemption are sequences that
lack more of them.

Why every request ends. (1) A step with running sequences computes at least one token: the budget has room for one token of
each, and the best-ranked one that decodes is never preempted unless what it needs is held by protected sequences, which
run in the same step. (2) A sequence is preempted at most `max_preemptions` times; after that it comes back with blocks for
its whole life and stays. (3) When nothing runs, every block can be allocated and the head of the queue fits, because
`submit` refuses what does not fit alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

from argosy.engine.core.coasting import Coasters, Foresight, KnownOutputs
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.events import OutputEvent
from argosy.engine.core.eviction import make_policy
from argosy.engine.core.invariants import InvariantViolated
from argosy.engine.core.kv_events import KVListener
from argosy.engine.core.kv_manager import KVManager
from argosy.engine.core.plan import NO_COASTING, BlockCopy, NewSequence, ScheduledSequence, StepPlan, StepResult
from argosy.engine.core.request import FinishReason, Request, Sequence, SequenceStatus
from argosy.engine.core.request_group import make_sequences
from argosy.engine.core.roster import Roster
from argosy.engine.core.stopping import ending_of
from argosy.errors import ContextLengthExceeded, InvalidRequest, QueueFull

_RUNNING = SequenceStatus.RUNNING
_tuple_new = tuple.__new__
_by_rank = attrgetter("rank")


@dataclass(slots=True)
class _Draft:
    """A plan while it is being made: `sequences` and `scheduled` run in parallel."""

    sequences: list[Sequence] = field(default_factory=list)
    scheduled: list[ScheduledSequence] = field(default_factory=list)
    new: list[NewSequence] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    preempted: set[Sequence] = field(default_factory=set)
    num_tokens: int = 0
    num_prefill_tokens: int = 0


class Scheduler:
    """Decides, remembers, and does nothing else. One plan is in flight at a time.

    Calls alternate: `schedule`, then `commit` of its plan. `submit`, `finish` and `abort` may come at any time between
    two of them; what a plan in flight yields for a sequence that ended meanwhile is dropped, and its blocks are let go of
    when the step is over.

    Attributes:
        kv: the block pool; read it for the numbers of free, cached and held blocks.
        num_preemptions: since the start.
        prefix_queries_tokens, prefix_hits_tokens: prompt tokens looked up in and found in the prefix cache, counted once
            per sequence, at its first admission. Forks and requests that may not read the cache look nothing up.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        kv_listener: KVListener | None = None,
        known_outputs: KnownOutputs | None = None,
    ) -> None:
        """With `known_outputs`, decoding sequences may coast and `foresee` and `skip` have something to tell."""
        self.config = config
        self.kv = KVManager(
            config.num_blocks,
            config.block_size,
            kv_dtype=config.kv_dtype,
            enable_prefix_caching=config.enable_prefix_caching,
            policy=make_policy(config.eviction_policy),
            listener=kv_listener,
        )
        self.num_preemptions = 0
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0
        self._watermark_blocks = int(config.watermark * config.num_blocks)
        self._prefill_cap = max(1, int(config.prefill_share * config.max_num_batched_tokens), config.chunk_alignment)
        self._roster = Roster()
        self._coasters = None if known_outputs is None else Coasters(known_outputs)
        self._next_sequence_id = 0
        self._step = 0
        self._in_flight: list[Sequence] | None = None
        self._ended_in_flight: list[Sequence] = []
        self._unsent_endings: list[int] = []
        self._refused: tuple[int, int, int] | None = None

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks and take part in steps."""
        return len(self._roster.running)

    @property
    def num_waiting(self) -> int:
        """Sequences that hold no blocks: not yet admitted, preempted, or waiting to fork."""
        return self._roster.num_waiting

    @property
    def num_waiting_requests(self) -> int:
        """Requests with at least one sequence that waits; `submit` holds this number against `max_waiting`."""
        return self._roster.num_waiting_requests

    @property
    def num_steps(self) -> int:
        """Steps planned so far, which is the number of the last one."""
        return self._step

    @property
    def num_running_tokens(self) -> int:
        """Tokens known of the sequences that run, prompt and output so far."""
        known = sum([len(sequence.token_ids) for sequence in self._roster.running])
        return known if self._coasters is None else known + self._coasters.num_coasted_tokens

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens known of the sequences in the queue; those that wait to fork are not in it."""
        return self._roster.queue.num_tokens

    @property
    def has_work(self) -> bool:
        """Whether some sequence has not ended."""
        return len(self._roster) > 0

    def submit(self, request: Request) -> tuple[Sequence, ...]:
        """Queue a request and return its `params.n` sequences, owned by the scheduler.

        With `max_tokens` 0 there is nothing to compute but prompt logprobs: sequences that owe none come back with status
        FINISHED, without ever having run and without an event.

        Raises:
            InvalidRequest: the prompt is empty, or a request with this id is alive.
            ContextLengthExceeded: prompt and one more token exceed the context or the KV pool.
            QueueFull: as many requests wait as may.
        """
        self._check(request)
        sequences = make_sequences(self.config, request, self._next_sequence_id)
        self._next_sequence_id += len(sequences)
        alive = [s for s in sequences if s.status is SequenceStatus.WAITING]
        if alive:
            self._roster.add(request, alive)
        return sequences

    def schedule(self, now_s: float) -> StepPlan | None:
        """Decide the next step; None if there is nothing to run. `now_s` is in seconds and never falls.

        Order: sequences that decode, by rank; then the running ones that catch up; then admissions. Only the first kind
        needs blocks it does not have, so that whoever is preempted has not been scheduled yet.
        """
        assert self._in_flight is None, "the plan in flight must be committed first"
        if not self._roster:
            return None
        draft = _Draft()
        catching_up = self._schedule_decoding(draft)
        budget = self.config.max_num_batched_tokens - draft.num_tokens
        if draft.num_tokens:
            budget = min(budget, self._prefill_cap)
        for sequence in catching_up:
            if sequence.status is _RUNNING:
                budget -= self._schedule_chunk(sequence, budget, draft)
        while budget > 0 and self._can_admit(draft) and (admitted := self._admit_head(draft, now_s)):
            budget -= self._schedule_chunk(admitted, budget, draft)
        coasting = NO_COASTING if self._coasters is None else self._coasters.batch()
        assert draft.num_tokens, "a step with work to do computes something"
        self._step += 1
        self._in_flight = draft.sequences
        finished, self._unsent_endings = tuple(self._unsent_endings), []
        return StepPlan(
            self._step,
            tuple(draft.new),
            finished,
            tuple(draft.copies),
            tuple(draft.scheduled),
            draft.num_tokens,
            draft.num_prefill_tokens,
            coasting,
        )

    def commit(self, plan: StepPlan, result: StepResult, now_s: float) -> list[OutputEvent]:
        """Take in what the step gave and return the news, in the order of the plan; `now_s` is when the step was over.

        Publishes the blocks that were filled, ends what has met a limit or failed, and lets go of its blocks.
        """
        sequences = self._in_flight
        assert sequences is not None, "no plan is in flight"
        assert plan.step == result.step == self._step, f"step {self._step} is in flight, got {plan.step}, {result.step}"
        self._in_flight = None
        for sequence in self._ended_in_flight:
            self.kv.release(sequence)
        self._ended_in_flight.clear()
        events: list[OutputEvent] = []
        for sequence, scheduled, given in zip(sequences, plan.sequences, result.results, strict=True):
            if sequence.status is not _RUNNING:
                continue
            sequence_id, token_ids, logprobs, prompt_logprobs, error = given
            assert sequence_id == sequence.sequence_id, "results must come in the order of the plan"
            if error:
                self._end(sequence, FinishReason.ERROR, None)
                events.append(_event(sequence, error=error))
                continue
            _, chunk, start, _, samples, _, _, prompt_logprobs_from = scheduled
            sequence.num_computed = computed = start + len(chunk)
            if computed >= sequence.publish_at:
                self.kv.publish(sequence)
            if sequence.has_parked_siblings and computed >= sequence.num_prompt:
                self._roster.unpark(sequence)
            assert bool(token_ids) is samples, "an entry gives tokens if and only if it samples"
            if prompt_logprobs_from >= 0:
                self._count_prompt_logprobs(sequence, prompt_logprobs_from, len(prompt_logprobs))
            if not token_ids:
                if computed == sequence.max_len:
                    self._end(sequence, FinishReason.LENGTH, sequence.length_reason)
                elif not prompt_logprobs:
                    continue
            else:
                known_ids = sequence.token_ids
                if len(known_ids) + len(token_ids) < sequence.max_len and sequence.stop_ids.isdisjoint(token_ids):
                    known_ids.extend(token_ids)
                else:
                    num_accepted = self._take_in_last(sequence, token_ids)
                    token_ids, logprobs = token_ids[:num_accepted], logprobs[:num_accepted]
                if sequence.first_token_s is None:
                    sequence.first_token_s = now_s
            events.append(
                _tuple_new(
                    OutputEvent,
                    (
                        sequence_id,
                        sequence.request_id,
                        sequence.sample_index,
                        token_ids,
                        logprobs,
                        prompt_logprobs,
                        sequence.finish_reason,
                        sequence.stop_reason,
                        "",
                    ),
                )
            )
        if self._coasters is not None:
            self._coasters.num_done += 1
            for sequence in sequences:
                if sequence.status is _RUNNING:
                    self._coasters.begin(sequence)
        return events

    def foresee(self, max_steps: int) -> Foresight | None:
        """Say how many of the next steps change nothing but lengths, at most `max_steps`; see `Foresight`. Mutates nothing.

        None if the next step is not one of them: nobody runs or not everybody decodes, somebody could be admitted, or the
        pool might run dry. To be asked between `commit` and `schedule`; what it says holds until anything else is called
        than these two and `skip`.
        """
        assert self._in_flight is None, "the plan in flight must be committed first"
        coasters, running = self._coasters, self._roster.running
        if coasters is None or not running or (self._roster.queue and len(running) < self.config.max_num_seqs):
            return None
        # Each sequence takes at most one block in every `block_size` steps.
        num_steps = min(max_steps, self.kv.num_available // len(running) * self.kv.block_size)
        awake = coasters.awake(running)
        for sequence in awake:
            if not coasters.may_coast(sequence):
                return None
            num_steps = min(num_steps, coasters.steps_to_end(sequence))
        if len(coasters):
            num_steps = min(num_steps, coasters.steps_to_first_end())
        if num_steps < 1:
            return None
        context_tokens = coasters.context_tokens + sum([sequence.num_computed for sequence in awake])
        contexts = (*coasters.contexts(), *[s.num_computed for s in awake]) if coasters.has_limits else ()
        return Foresight(num_steps, len(running), context_tokens, contexts)

    def skip(self, max_steps: int) -> int:
        """Plan and commit together up to `max_steps` steps in which everybody coasts.

        The state afterwards is what as many calls of `schedule` and `commit` would have left, and the pool's numbers of
        held and cached blocks are the same after each of the steps. So a call covers those up to the next that takes or
        fills a block, and one more call what follows.

        Returns:
            How many there were; 0, and nothing changed, if the next step must be planned.
        """
        assert self._in_flight is None, "the plan in flight must be committed first"
        coasters, running, queue = self._coasters, self._roster.running, self._roster.queue
        if coasters is None or not running or len(coasters) < len(running) or self._unsent_endings:
            return 0
        if queue and len(running) < self.config.max_num_seqs and not self._is_refused(queue.head):
            return 0
        steps = min(max_steps, coasters.steps_to_due())
        if steps <= 0:
            growing, filling, must_plan = coasters.events()
            if max_steps < 1 or must_plan or len(growing) > self.kv.num_available:
                return 0
            coasters.drop_due()
            for sequence in growing:
                self.kv.grow(sequence, coasters.num_known(sequence))
                coasters.go_on(sequence)
            steps = 1 if filling else min(max_steps, coasters.steps_to_due())
            coasters.num_done += steps
            for sequence in filling:
                coasters.catch_up(sequence)
                self.kv.publish(sequence)
                coasters.go_on(sequence)
        else:
            coasters.num_done += steps
        self._step += steps
        return steps

    def settle(self) -> None:
        """Bring every sequence up to date: nobody coasts until the next `commit`."""
        if self._coasters is not None:
            self._coasters.wake_all()

    def finish(self, sequence_id: int, reason: FinishReason, stop_reason: int | str | None) -> None:
        """End one sequence for a reason found outside, such as a stop string. Idempotent; gives no event."""
        sequence = self._roster.get(sequence_id)
        if sequence is not None:
            self._end(sequence, reason, stop_reason)

    def abort(self, request_id: str) -> list[OutputEvent]:
        """End all sequences of a request, in any state, and return their last events. Idempotent."""
        group = self._roster.group(request_id)
        if group is None:
            return []
        events: list[OutputEvent] = []
        for sequence in reversed(group.sequences):
            if sequence.status is not SequenceStatus.FINISHED:
                self._end(sequence, FinishReason.ABORT, None)
                events.append(_event(sequence))
        events.reverse()
        return events

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix; running sequences go on with what they hold and publish nothing of it."""
        self.kv.reset_prefix_cache()

    def check_invariants(self) -> None:
        """Raise `InvariantViolated` if the state contradicts itself. O(everything alive), for tests and simulation."""
        self.kv.check_invariants()
        self._roster.check_invariants()
        running = self._roster.running
        if self._coasters is not None:
            self._coasters.check_invariants(running)
        holders = {s.sequence_id for s in (*running, *self._ended_in_flight)}
        for holds, what in (
            (self.kv.holders() == holders, "who holds blocks runs, or ended while its plan is in flight"),
            (len(running) <= self.config.max_num_seqs, "no more run than may"),
            (all(s.status is SequenceStatus.FINISHED for s in self._ended_in_flight), "who ended in flight has ended"),
        ):
            if not holds:
                raise InvariantViolated(what)

    def _check(self, request: Request) -> None:
        num_prompt, limit = len(request.prompt_token_ids), self.config.effective_max_len
        if num_prompt == 0:
            raise InvalidRequest("the prompt must hold at least one token", param="prompt")
        if num_prompt >= limit:
            holder = "KV pool" if limit < self.config.max_model_len else "context"
            raise ContextLengthExceeded(
                f"the prompt has {num_prompt} tokens, but with one more to generate the {holder} takes at most "
                f"{limit - 1}: shorten the prompt",
                param="prompt",
            )
        if self._roster.group(request.request_id) is not None:
            raise InvalidRequest(f"a request with id {request.request_id!r} is being served", param="request_id")
        if self._roster.num_waiting_requests >= self.config.max_waiting:
            raise QueueFull(f"{self._roster.num_waiting_requests} requests wait already: try again later")

    def _schedule_decoding(self, draft: _Draft) -> list[Sequence]:
        """Schedule every running sequence that decodes, preempting others if the pool is full; return those that do not.

        This and `commit` run once per generated token; both build named tuples with `tuple.__new__`, which spares the
        Python-level call of their own constructors.
        """
        catching_up: list[Sequence] = []
        sequences, scheduled, preempted = draft.sequences, draft.scheduled, draft.preempted
        num_tokens = 0
        num_behind = len(self._roster.running)
        coasters = self._coasters
        for sequence in self._attended():
            if coasters is not None and sequence in coasters:
                if self._make_room(sequence, coasters.num_known(sequence), preempted):
                    coasters.go_on(sequence)
                continue
            num_behind -= 1
            start = sequence.num_computed
            if start < sequence.decode_from:
                catching_up.append(sequence)
                continue
            if preempted and sequence in preempted:
                continue
            token_ids = sequence.token_ids
            known = len(token_ids)
            if known > sequence.capacity and not self._make_room(sequence, known, preempted):
                continue
            samples = True
            chunk: tuple[int, ...] = (token_ids[-1],)
            if known - start > 1:
                left = self.config.max_num_batched_tokens - num_tokens - num_behind
                chunk = tuple(token_ids[start : start + left])
                samples = start + len(chunk) == known
                draft.num_prefill_tokens += len(chunk)
            num_tokens += len(chunk)
            sequences.append(sequence)
            scheduled.append(
                _tuple_new(
                    ScheduledSequence,
                    (
                        sequence.sequence_id,
                        chunk,
                        start,
                        sequence.block_table,
                        samples,
                        known - sequence.num_prompt,
                        sequence.adapter_id,
                        -1,
                    ),
                )
            )
        draft.num_tokens = num_tokens if coasters is None else num_tokens + len(coasters)
        return catching_up

    def _attended(self) -> list[Sequence]:
        """The running sequences that do not just coast through the next step, in order of rank."""
        coasters, running = self._coasters, self._roster.running
        if coasters is None:
            return running.copy()
        growing = coasters.take_due()
        awake = coasters.awake(running)
        return sorted(growing + awake, key=_by_rank) if growing and awake else growing or awake

    def _schedule_chunk(self, sequence: Sequence, budget: int, draft: _Draft) -> int:
        """Schedule as many of the tokens `sequence` lacks as `budget` and alignment allow; return how many."""
        start, known = sequence.num_computed, len(sequence.token_ids)
        end = min(known, start + budget)
        if end < known and self.config.chunk_alignment:
            end -= end % self.config.chunk_alignment
        num_tokens = end - start
        if num_tokens <= 0:
            return 0
        samples = end == known and known < sequence.max_len
        owed = sequence.next_prompt_logprob
        if not sequence.known_to_executor:
            sequence.known_to_executor = True
            draft.new.append(_introduction(sequence))
        draft.sequences.append(sequence)
        draft.scheduled.append(
            ScheduledSequence(
                sequence.sequence_id,
                tuple(sequence.token_ids[start:end]),
                start,
                sequence.block_table,
                samples,
                known - sequence.num_prompt,
                sequence.adapter_id,
                owed if 0 < owed <= end else -1,
            )
        )
        draft.num_tokens += num_tokens
        if num_tokens > 1 or not samples:
            draft.num_prefill_tokens += num_tokens
        return num_tokens

    def _make_room(self, sequence: Sequence, num_tokens: int, preempted: set[Sequence]) -> bool:
        """Get blocks for `num_tokens` of `sequence`, preempting from the lowest rank up; False if it went itself."""
        while not self.kv.grow(sequence, num_tokens):
            victim = next(s for s in reversed(self._roster.running) if not s.protected)
            self._preempt(victim)
            preempted.add(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        if self._coasters is not None:
            self._coasters.wake(sequence)
        self.kv.release(sequence)
        self._roster.preempt(sequence)
        self.num_preemptions += 1

    def _can_admit(self, draft: _Draft) -> bool:
        """Whether to look at the queue: not in a step that had to preempt, unless nothing runs."""
        running = self._roster.running
        return len(self._roster.queue) > 0 and len(running) < self.config.max_num_seqs and not (draft.preempted and running)

    def _admit_head(self, draft: _Draft, now_s: float) -> Sequence | None:
        """Give the head of the queue blocks for all it knows and let it run; None if they are not there.

        A prefix match costs time in proportion to the prompt, so one that did not fit is repeated only when there are
        more blocks to have, or more prompt blocks to match.
        """
        sequence = self._roster.queue.head
        if self._is_refused(sequence):
            return None
        num_available, num_publications = self.kv.num_available, self.kv.num_prompt_publications
        source = self._roster.group_of(sequence).fork_source(sequence)
        if not self._give_blocks(sequence, source, draft):
            self._refused = (sequence.sequence_id, num_available, num_publications)
            return None
        if sequence.first_scheduled_s is None:
            sequence.first_scheduled_s = now_s
            if source is None and self.config.enable_prefix_caching and not sequence.next_prompt_logprob:
                sequence.num_cached_tokens = sequence.num_computed
                self.prefix_queries_tokens += sequence.num_prompt
                self.prefix_hits_tokens += sequence.num_computed
        known = len(sequence.token_ids)
        sequence.decode_from = known - 1 if known < sequence.max_len else known
        self._roster.start(sequence)
        return sequence

    def _is_refused(self, head: Sequence) -> bool:
        """Whether `head` did not fit when it was last tried, and nothing has changed that could make it fit."""
        if self._refused is None or not self._roster.running:
            return False
        sequence_id, num_available, num_publications = self._refused
        return (
            sequence_id == head.sequence_id
            and self.kv.num_available <= num_available
            and self.kv.num_prompt_publications == num_publications
        )

    def _give_blocks(self, sequence: Sequence, source: Sequence | None, draft: _Draft) -> bool:
        """By fork if there is a source, else with what the prefix cache has; False, and nothing changed, if too few."""
        known = len(sequence.token_ids)
        protected = sequence.preemptions >= self.config.max_preemptions
        reserve = max(known, sequence.max_len - 1) if protected else known
        headroom = self._watermark_blocks if self._roster.running else 0
        if source is not None:
            copies = self.kv.fork(source, sequence, num_tokens=known - 1, reserve_tokens=reserve, headroom_blocks=headroom)
            if copies is None:
                return False
            draft.copies.extend(copies)
        else:
            # Logprobs of a prompt position need the logits of the one before it, so that one must not come from the cache.
            owed = sequence.next_prompt_logprob
            reusable = owed - 1 if owed else known - 1
            if not self.kv.admit(sequence, reserve_tokens=reserve, reusable_tokens=reusable, headroom_blocks=headroom):
                return False
        sequence.protected = protected
        return True

    def _take_in_last(self, sequence: Sequence, token_ids: tuple[int, ...]) -> int:
        """Append tokens of which one may end the sequence, and end it if so; return how many were accepted."""
        num_accepted, reason, stop_reason = ending_of(sequence, token_ids)
        sequence.token_ids.extend(token_ids[:num_accepted])
        if reason is not None:
            self._end(sequence, reason, stop_reason)
        return num_accepted

    def _count_prompt_logprobs(self, sequence: Sequence, first: int, num_given: int) -> None:
        last = min(sequence.num_computed, sequence.num_prompt - 1)
        assert num_given == last - first + 1, f"asked for prompt logprobs {first}..{last}, got {num_given}"
        sequence.next_prompt_logprob = last + 1 if last + 1 < sequence.num_prompt else 0

    def _end(self, sequence: Sequence, reason: FinishReason, stop_reason: int | str | None) -> None:
        if sequence.status is _RUNNING:
            if self._coasters is not None:
                self._coasters.wake(sequence)
            if self._in_flight is None:
                self.kv.release(sequence)
            else:
                self._ended_in_flight.append(sequence)
        if sequence.known_to_executor:
            self._unsent_endings.append(sequence.sequence_id)
        self._roster.end(sequence, reason, stop_reason)


def _introduction(sequence: Sequence) -> NewSequence:
    request = sequence.request
    return NewSequence(
        sequence.sequence_id,
        request.prompt_token_ids,
        request.params,
        sequence.sample_index,
        request.seed,
        tuple(sorted(sequence.stop_ids)),
        request.bad_words_ids,
    )


def _event(sequence: Sequence, *, error: str = "") -> OutputEvent:
    """An event without tokens."""
    return OutputEvent(
        sequence.sequence_id,
        sequence.request_id,
        sequence.sample_index,
        (),
        (),
        (),
        sequence.finish_reason,
        sequence.stop_reason,
        error,
    )
