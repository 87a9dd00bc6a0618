"""Sequences whose next steps are certain to add one token each and to change nothing else.

Where outputs are known beforehand, as in a simulation, a decoding sequence needs no attention for most of its steps: until
it fills a block to publish, or ends, each step only makes it one token longer, and now and then takes another block. Such a
sequence coasts: it is left out of plans, which count it in `StepPlan.coasting`, and its tokens are added when it wakes.

    computed        c ........... c + m - 1 | c + m
    step            n ........... n + m - 1 | n + m      due: wakes, and takes part in this step like any other
                    coasts, one token each  |

Everything that decides is left to the scheduler: whoever is due, preempted or ended is woken first, and so goes through the
same code, in the same order, as if it had never coasted. Who only needs a block gets it from the same code, in its turn.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence as ListLike
from operator import attrgetter
from typing import NamedTuple, Protocol

from argosy.engine.core.invariants import InvariantViolated
from argosy.engine.core.plan import Coasting
from argosy.engine.core.request import Sequence, SequenceStatus

# A sequence that may end in the next step has to be listed there.
_LEAST_STEPS = 2
_FOR_EVER = 2**62
_by_rank = attrgetter("rank")
_NEVER = (-1, -1, -1)


class KnownOutputs(Protocol):
    """Who knows beforehand what sequences will be given. A simulation does; a model does not."""

    @property
    def context_limits(self) -> tuple[int, ...]:
        """Attention windows in tokens, for `Coasting.capped_tokens`."""
        ...

    def num_certain(self, sequence_id: int, num_output: int) -> int:
        """For how many steps from `num_output` outputs on each gives one token that does not end the sequence by its id."""
        ...

    def output_ids(self, sequence_id: int, first: int, stop: int) -> ListLike[int]:
        """The outputs at places `first` to `stop - 1`, from 0."""
        ...


class Foresight(NamedTuple):
    """Steps ahead in which only lengths change, but for the end of the last one, which may end sequences.

    Attributes:
        num_steps: at least 1.
        num_sequences: that decode one token in each.
        context_tokens: computed before the first step, over all of them.
        contexts: the same per sequence, in no particular order, if there are context limits; else empty.
    """

    num_steps: int
    num_sequences: int
    context_tokens: int
    contexts: tuple[int, ...]


class Events(NamedTuple):
    """What a step is to those who coast; each list by rank.

    Attributes:
        growing: need another block for it.
        filling: will have filled a block after it, which can be published.
        must_plan: somebody may end with it, or takes and fills a block, as blocks of one token make them, or does neither,
            since the cache was reset.
    """

    growing: list[Sequence]
    filling: list[Sequence]
    must_plan: bool


# Since when a sequence has coasted (or was given its tokens), when its next event is, and when it will have ended, all in
# `Coasters.num_done`. A plain tuple since one is made for every block of every sequence.
_Coast = tuple[int, int, int]


class Coasters:
    """Who coasts, since when and until when. Mutates of a `Sequence` only `token_ids` and `num_computed`, when it wakes.

    Attributes:
        num_done: steps that are over, counted from the start; the clock of all places below.
    """

    def __init__(self, outputs: KnownOutputs) -> None:
        self.num_done = 0
        self._outputs = outputs
        self._limits = outputs.context_limits
        self._coasts: dict[Sequence, _Coast] = {}
        self._due: dict[int, list[Sequence]] = {}
        # A sequence with `computed` tokens after `num_done` steps has base computed - num_done for as long as it coasts.
        self._sum_of_bases = 0
        self._bases: list[int] = []

    def __len__(self) -> int:
        return len(self._coasts)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._coasts

    @property
    def context_tokens(self) -> int:
        """Tokens computed of those who coast, before the next step."""
        return self._sum_of_bases + len(self._coasts) * self.num_done

    @property
    def has_limits(self) -> bool:
        """Whether there are context limits, for which contexts are kept one by one."""
        return bool(self._limits)

    @property
    def num_coasted_tokens(self) -> int:
        """Tokens that those who coast have been given and that are not in their `token_ids` yet."""
        return sum([self.num_done - since for since, _, _ in self._coasts.values()])

    def batch(self) -> Coasting:
        """Those who coast, as the plan of the next step counts them."""
        capped = tuple([self._capped(limit) for limit in self._limits]) if self._limits else ()
        return Coasting(len(self._coasts), self.context_tokens, capped)

    def contexts(self) -> list[int]:
        """Tokens computed of each of those who coast; only kept where there are context limits."""
        return [base + self.num_done for base in self._bases]

    def may_coast(self, sequence: Sequence) -> bool:
        """Whether all a running sequence gets in a step is one more token: not the first one, and no logprobs."""
        return (
            sequence.first_token_s is not None
            and sequence.num_computed >= sequence.decode_from
            and len(sequence.token_ids) - sequence.num_computed == 1
            and sequence.request.params.logprobs is None
        )

    def begin(self, sequence: Sequence) -> None:
        """Let a running sequence coast, if it may and does not end in the next step."""
        if not self.may_coast(sequence):
            return
        now, end = self.num_done, self.num_done + self.steps_to_end(sequence)
        if end - now < _LEAST_STEPS:
            return
        self._await_event(sequence, now, len(sequence.token_ids), end)
        base = sequence.num_computed - now
        self._sum_of_bases += base
        if self._limits:
            insort(self._bases, base)

    def steps_to_end(self, sequence: Sequence) -> int:
        """Steps of an awake, decoding sequence up to and with the one that may end it."""
        known = len(sequence.token_ids)
        certain = self._outputs.num_certain(sequence.sequence_id, known - sequence.num_prompt)
        return min(sequence.max_len - known, certain + 1)

    def steps_to_first_end(self) -> int:
        """Steps up to and with the first that may end one of those who coast."""
        return min([end for _, _, end in self._coasts.values()]) - self.num_done

    def wake(self, sequence: Sequence) -> None:
        """Give `sequence` the tokens of the steps it coasted through. Does nothing if it does not coast."""
        coast = self._coasts.pop(sequence, None)
        if coast is None:
            return
        base = sequence.num_computed - coast[0]
        self._sum_of_bases -= base
        if self._limits:
            del self._bases[bisect_left(self._bases, base)]
        self._give_tokens(sequence, coast[0])

    def num_known(self, sequence: Sequence) -> int:
        """Tokens known of one who coasts, those that are not in its `token_ids` yet included."""
        return len(sequence.token_ids) + self.num_done - self._coasts[sequence][0]

    def events(self) -> Events:
        """What the next step is to those who coast. Mutates nothing."""
        now, growing, filling, must_plan = self.num_done, [], [], False
        for sequence in self._due.get(now, ()):
            since, due, end = self._coasts.get(sequence, _NEVER)
            if due != now:
                continue
            known = len(sequence.token_ids) + now - since
            grows, fills = known > sequence.capacity, known >= sequence.publish_at
            if now + 1 >= end or grows is fills:
                must_plan = True
            elif grows:
                growing.append(sequence)
            else:
                filling.append(sequence)
        if len(growing) > 1:
            growing.sort(key=_by_rank)
        if len(filling) > 1:
            filling.sort(key=_by_rank)
        return Events(growing, filling, must_plan)

    def take_due(self) -> list[Sequence]:
        """Wake everyone to whom something is due, but those who only need another block: they are returned, by rank.

        These coast on; once they have the block, `go_on` must be called for each.
        """
        growing = self.events().growing
        for sequence in self._due.pop(self.num_done, ()):
            if sequence not in growing and self._coasts.get(sequence, _NEVER)[1] == self.num_done:
                self.wake(sequence)
        return growing

    def go_on(self, sequence: Sequence) -> None:
        """One who coasts has got another block, or published one."""
        since, _, end = self._coasts[sequence]
        self._await_event(sequence, since, len(sequence.token_ids) + self.num_done - since, end)

    def catch_up(self, sequence: Sequence) -> None:
        """Give one who coasts, and coasts on, the tokens of its steps so far. `go_on` must follow."""
        since, due, end = self._coasts[sequence]
        self._give_tokens(sequence, since)
        self._coasts[sequence] = (self.num_done, due, end)

    def awake(self, running: list[Sequence]) -> list[Sequence]:
        """Those of `running` who do not coast, in the same order."""
        coasts = self._coasts
        return [] if len(coasts) == len(running) else [sequence for sequence in running if sequence not in coasts]

    def wake_all(self) -> None:
        """Wake everyone."""
        for sequence in list(self._coasts):
            self.wake(sequence)
        self._due.clear()

    def drop_due(self) -> None:
        """What the next step is to those who coast has been seen to."""
        self._due.pop(self.num_done, None)

    def steps_to_due(self) -> int:
        """Steps in which nothing is due to anybody; 0 if something is in the next one."""
        return min(self._due) - self.num_done if self._due else _FOR_EVER

    def check_invariants(self, running: ListLike[Sequence]) -> None:
        """Raise `InvariantViolated` if someone coasts who should not, or sums are wrong. O(sequences)."""
        bases = [sequence.num_computed - since for sequence, (since, _, _) in self._coasts.items()]
        listed = {(sequence, place) for place, entries in self._due.items() for sequence in entries}
        for holds, what in (
            (all(s.status is SequenceStatus.RUNNING for s in self._coasts), "who coasts runs"),
            (set(self._coasts) <= set(running), "who coasts is on the roster"),
            (sum(bases) == self._sum_of_bases, "contexts of those who coast are summed"),
            (not self._limits or sorted(bases) == self._bases, "contexts of those who coast are sorted"),
            (all(due >= self.num_done for _, due, _ in self._coasts.values()), "nobody coasts past what is due"),
            (all((s, due) in listed for s, (_, due, _) in self._coasts.items()), "who coasts is listed when due"),
        ):
            if not holds:
                raise InvariantViolated(what)

    def _await_event(self, sequence: Sequence, since: int, known: int, end: int) -> None:
        """List a sequence under the first step that takes a block, fills one to publish, or may end it."""
        due = min(self.num_done + min(sequence.capacity + 1, sequence.publish_at) - known, end - 1)
        self._coasts[sequence] = (since, due, end)
        listed = self._due.get(due)
        if listed is None:
            self._due[due] = [sequence]
        else:
            listed.append(sequence)

    def _give_tokens(self, sequence: Sequence, since: int) -> None:
        steps = self.num_done - since
        if steps:
            first = sequence.num_output
            sequence.token_ids.extend(self._outputs.output_ids(sequence.sequence_id, first, first + steps))
            sequence.num_computed += steps

    def _capped(self, limit: int) -> int:
        """Sum over those who coast of min(computed + 1, limit)."""
        grown = bisect_left(self._bases, limit - 1 - self.num_done)
        below = sum(self._bases[:grown]) + grown * (self.num_done + 1)
        return below + (len(self._bases) - grown) * limit
