"""What a router is told of a simulated request."""

from __future__ import annotations

from dataclasses import dataclass, field

from argosy.fleet.policies.routing.output_length import OutputLengthEstimate
from argosy.fleet.policies.routing.request import RoutingRequest, chain_root, token_block_hashes
from argosy.sim.workload.trace_request import TraceRequest


@dataclass(slots=True)
class RequestDescriber:
    """Makes a `RoutingRequest` from a `TraceRequest`. Output lengths are estimated from earlier answers, not known.

    Attributes:
        block_tokens: tokens per block of the prompt's hashes, those of the replicas' KV blocks for a precise index; 0 makes
            no hashes, which take most of the time.
        vocab_size: of the replicas, since the tokens depend on it.
    """

    block_tokens: int = 0
    vocab_size: int = 32_768
    output_length: OutputLengthEstimate = field(default_factory=OutputLengthEstimate)

    def describe(self, request: TraceRequest, tried: frozenset[str]) -> RoutingRequest:
        """The request as the router sees it. Requests of one session share an affinity key."""
        blocks: tuple[int, ...] = ()
        if self.block_tokens:
            # The engine computes the last token of a prompt even if all of it is cached.
            token_ids = request.token_ids(self.vocab_size)[:-1]
            blocks = token_block_hashes(token_ids, self.block_tokens, chain_root(request.tenant))
        return RoutingRequest(
            request.request_id,
            prompt_tokens=request.num_prompt_tokens,
            expected_output_tokens=self.output_length.tokens(request.tenant),
            prefix_blocks=blocks,
            prefix_block_tokens=self.block_tokens,
            affinity_key=request.session_id,
            tenant=request.tenant,
            tried=tried,
        )
