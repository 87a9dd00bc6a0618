"""Attempts of disaggregated serving: one replica computes the prompt, its KV moves, another one decodes.

prefill leg (1 token, dropped) -> KV transfer -> decode leg (all tokens; its first one is the client's first)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from argosy.engine.core.invariants import InvariantViolated
from argosy.fleet.policies.routing.pair import PairDecision, PairRouter
from argosy.sim.event_loop import EventHandle, EventLoop
from argosy.sim.fleet.legs import Leg, Legs
from argosy.sim.fleet.live_request import AttemptSink, Failure, LiveRequest
from argosy.sim.fleet.pool import Member, Pool
from argosy.sim.fleet.prompts import RequestDescriber
from argosy.sim.fleet.single import AttemptTimeouts
from argosy.sim.fleet.transfer import KvLink, send_kv
from argosy.sim.outcome import RequestOutcome


@dataclass(slots=True, eq=False)
class _Attempt:
    """`leg` is the one in progress, None while the KV is on its way or before the first; `computed` is what became of the
    prefill leg."""

    live: LiveRequest
    decision: PairDecision
    leg: Leg | None = None
    transfer: EventHandle | None = None
    computed: RequestOutcome | None = None
    timer: EventHandle | None = None


class PairDispatcher:
    """Picks a member of each pool by `router`; both are booked from the start, and let go of at whatever stage it ends.

    A request that wants a single token is answered by the prefill replica alone.
    """

    def __init__(
        self,
        loop: EventLoop,
        prefill: Pool,
        decode: Pool,
        router: PairRouter,
        describer: RequestDescriber,
        link: KvLink,
        timeouts: AttemptTimeouts | None = None,
        *,
        on_refused: Callable[[Member], None] | None = None,
    ) -> None:
        """As `SingleDispatcher`, for two pools. `timeouts.first_token_s` runs until the first token is there."""
        self.router = router
        self._loop = loop
        self._prefill_pool, self._decode_pool = prefill, decode
        self._describer = describer
        self._link = link
        self._timeouts = AttemptTimeouts() if timeouts is None else timeouts
        self._on_refused = on_refused
        self._attempts: dict[str, _Attempt] = {}
        for pool, one in ((prefill, router.prefill), (decode, router.decode)):
            if one.policy.prefix_matcher is not None:
                pool.forget_prefixes = one.policy.prefix_matcher.forget

    @property
    def num_in_flight(self) -> int:
        """As `Dispatcher`."""
        return len(self._attempts)

    def bind(self, sink: AttemptSink) -> None:
        """As `Dispatcher`."""
        self._sink = sink
        self._prefill, self._decode = (
            Legs(self._loop, pool, connect_s=self._timeouts.connect_s, on_steps=sink.on_steps)
            for pool in (self._prefill_pool, self._decode_pool)
        )
        for pool in (self._prefill_pool, self._decode_pool):
            pool.on_capacity(sink.serve_waiting)

    def dispatch(self, live: LiveRequest) -> None:
        """As `Dispatcher`."""
        request = live.request
        asked = self._describer.describe(request, frozenset(live.tried))
        pair = self.router.pick(asked, self._prefill_pool.states, self._decode_pool.states, self._loop.now_s())
        attempt = _Attempt(live, pair)
        self._attempts[request.request_id] = attempt
        prompt_only = dataclasses.replace(request, output_tokens=1, output_segments=())
        attempt.leg = self._prefill.start(prompt_only, self._prefill_pool.of(pair.prefill.replica), self)
        if self._timeouts.first_token_s is not None:
            attempt.timer = self._loop.after(self._timeouts.first_token_s, lambda: self._stop_waiting(attempt))

    def cancel(self, live: LiveRequest) -> RequestOutcome | None:
        """As `Dispatcher`."""
        attempt = self._attempts[live.request.request_id]
        said = self._withdraw(attempt)
        self._close(attempt)
        return said

    def on_leg_token(self, leg: Leg) -> None:
        """As `LegOwner`."""
        attempt = self._attempts[leg.request.request_id]
        if attempt.computed is None and attempt.live.request.output_tokens > 1:
            return
        if attempt.timer is not None:
            attempt.timer.cancel()
        self._sink.on_first_token(attempt.live, leg.member.replica)

    def on_leg_end(self, leg: Leg, failure: Failure | None, outcome: RequestOutcome | None) -> None:
        """As `LegOwner`."""
        attempt = self._attempts[leg.request.request_id]
        attempt.leg = None
        if failure is not None:
            self._close(attempt)
            self._sink.on_failed(attempt.live, failure, leg.member.name, self._whole(attempt, outcome))
            return
        assert outcome is not None, "a replica gave the answer"
        if attempt.computed is None and attempt.live.request.output_tokens > 1:
            self._send_kv(attempt, leg.member, outcome)
            return
        self._close(attempt, latency_s=outcome.ttft_s)
        self._describer.output_length.observe(leg.request.tenant, outcome.num_output_tokens)
        whole = self._whole(attempt, outcome)
        assert whole is not None, "there is an outcome"
        self._sink.on_answered(attempt.live, whole)

    def on_leg_refused(self, leg: Leg) -> None:
        """As `LegOwner`."""
        if self._on_refused is not None:
            self._on_refused(leg.member)

    def check_invariants(self) -> None:
        """Each attempt is in one leg or transfer, and booked on both pools until its prompt is computed."""
        attempts = self._attempts.values()
        moving = sum([one.transfer is not None for one in attempts])
        computing = sum([one.computed is None for one in attempts])
        decode_booked = sum([member.state.booked.requests for member in self._decode_pool])
        prefill_booked = sum([member.state.booked.requests for member in self._prefill_pool])
        for holds, what in (
            (len(self._prefill) + len(self._decode) + moving == len(self._attempts), "each attempt is in one stage"),
            (decode_booked == self.router.decode.num_alive == len(self._attempts), "each attempt is booked for decoding"),
            (prefill_booked == self.router.prefill.num_alive == computing, "prompts to compute are booked for prefill"),
        ):
            if not holds:
                raise InvariantViolated(what)
        self._prefill.check_invariants()
        self._decode.check_invariants()

    def _send_kv(self, attempt: _Attempt, member: Member, outcome: RequestOutcome) -> None:
        attempt.computed = outcome
        self.router.prefilled(attempt.decision, self._loop.now_s(), latency_s=outcome.ttft_s)
        num_tokens = attempt.live.request.num_prompt_tokens
        attempt.transfer = send_kv(self._loop, self._link, member, num_tokens, lambda: self._begin_decoding(attempt))
        self._prefill_pool.settle(member)

    def _begin_decoding(self, attempt: _Attempt) -> None:
        attempt.transfer = None
        request = attempt.live.request
        member = self._decode_pool.of(attempt.decision.decode.replica)
        attempt.leg = self._decode.start(request, member, self, transferred_tokens=request.num_prompt_tokens)

    def _stop_waiting(self, attempt: _Attempt) -> None:
        name = attempt.decision.prefill.replica.replica_id
        if attempt.computed is not None:
            name = attempt.decision.decode.replica.replica_id
        said = self._withdraw(attempt)
        self._close(attempt)
        self._sink.on_failed(attempt.live, Failure.SILENT, name, said)

    def _withdraw(self, attempt: _Attempt) -> RequestOutcome | None:
        if attempt.transfer is not None:
            attempt.transfer.cancel()
            return attempt.computed
        assert attempt.leg is not None, "an attempt is in a leg or a transfer"
        legs = self._prefill if attempt.computed is None else self._decode
        return self._whole(attempt, legs.cancel(attempt.leg))

    def _whole(self, attempt: _Attempt, last: RequestOutcome | None) -> RequestOutcome | None:
        """What became of the request: the beginning as the prefill replica tells it, the rest as the last one does."""
        first = attempt.computed
        if first is None or last is None:
            return last if first is None else first
        return dataclasses.replace(
            last,
            submitted_s=first.submitted_s,
            first_scheduled_s=first.first_scheduled_s,
            num_cached_tokens=first.num_cached_tokens,
            preemptions=first.preemptions + last.preemptions,
            corrupted=first.corrupted or last.corrupted,
        )

    def _close(self, attempt: _Attempt, *, latency_s: float | None = None) -> None:
        del self._attempts[attempt.live.request.request_id]
        if attempt.timer is not None:
            attempt.timer.cancel()
        pair = attempt.decision
        self.router.finish(pair, self._loop.now_s(), latency_s=latency_s)
        for pool, decision in ((self._prefill_pool, pair.prefill), (self._decode_pool, pair.decode)):
            pool.settle_state(decision.replica)
