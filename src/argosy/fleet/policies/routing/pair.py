"""Routing for disaggregated serving: one replica computes the prompt, another one decodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from argosy.errors import NoReplicaAvailable
from argosy.fleet.policies.routing.policy import Replicas
from argosy.fleet.policies.routing.request import RoutingRequest
from argosy.fleet.policies.routing.router import Decision, Router


@dataclass(frozen=True, slots=True)
class PairDecision:
    """Both legs of a request, each booked on its replica."""

    prefill: Decision
    decode: Decision


class PairRouter:
    """Picks a pair or nothing, so that no leg waits for one that cannot come.

    The decode leg is booked at once, with the whole prompt as KV to hold and nothing to compute: what is decoded later is
    load on the decode pool from the moment it is on its way.
    """

    def __init__(self, prefill: Router, decode: Router) -> None:
        self.prefill = prefill
        self.decode = decode

    def pick(
        self, request: RoutingRequest, prefill_replicas: Replicas, decode_replicas: Replicas, now_s: float
    ) -> PairDecision:
        """Choose and book both. Mutates the two replicas' `booked`.

        Raises:
            NoReplicaAvailable: one of the pools has no replica for it; nothing is booked then.
        """
        prefill = self.prefill.pick(replace(request, expected_output_tokens=0), prefill_replicas, now_s)
        try:
            decode = self.decode.pick(request, decode_replicas, now_s)
        except NoReplicaAvailable:
            self.prefill.finish(prefill, now_s)
            raise
        return PairDecision(prefill, decode)

    def prefilled(self, pair: PairDecision, now_s: float, *, latency_s: float | None = None) -> None:
        """The prompt is computed: its replica is free of it. Idempotent."""
        self.prefill.finish(pair.prefill, now_s, latency_s=latency_s)
        self.decode.first_token(pair.decode, now_s)

    def finish(self, pair: PairDecision, now_s: float, *, latency_s: float | None = None) -> None:
        """Take both legs off, at whatever stage the request ended. Idempotent."""
        self.prefill.finish(pair.prefill, now_s)
        self.decode.finish(pair.decode, now_s, latency_s=latency_s)
