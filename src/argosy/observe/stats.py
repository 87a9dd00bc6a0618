"""Numbers the engine reports: a snapshot after each step and a summary of each finished request.

The engine knows no metrics library; it calls a `StatsSink`. Times are seconds on the engine's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StepStats:
    """State after one step, and what happened in it. Token counts are of this step only.

    Also reported, with step 0 and no tokens, when a request left between two steps, and when the engine has ended.

    `num_prefix_queries` and `num_prefix_hits` are tokens, counted once per sequence, at its first admission.
    """

    step: int
    now_s: float
    duration_s: float
    num_running: int
    num_waiting: int
    kv_blocks_held: int
    kv_blocks_cached: int
    kv_blocks_total: int
    num_tokens: int
    num_prefill_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    num_prefix_queries: int
    num_prefix_hits: int
    inter_token_latencies_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One finished request. Latencies are None when the request ended before the event.

    `finish_reasons` has one entry per sequence. `queue_s` is arrival to first scheduling, `prefill_s` from there to the
    first token, `decode_s` from there to the last, `time_per_output_token_s` is decode_s over tokens after the first.
    """

    request_id: str
    finish_reasons: tuple[str, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    n: int
    max_tokens: int | None
    preemptions: int
    e2e_s: float
    queue_s: float | None
    time_to_first_token_s: float | None
    prefill_s: float | None
    decode_s: float | None
    time_per_output_token_s: float | None


class StatsSink(Protocol):
    """Receives the numbers on the engine's thread; must be quick and must not raise."""

    def on_step(self, stats: StepStats) -> None:
        """Called after every step."""
        ...

    def on_request_finished(self, stats: RequestStats) -> None:
        """Called once per request, when its last sequence ended, aborted and failed ones included."""
        ...
