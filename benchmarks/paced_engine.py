"""An engine whose steps take exactly as long as a formula says: what a simulation gets wrong of it is not step times.

Everything but the executor is the live engine's; the executor sleeps, so that other work on the machine hardly matters.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from argosy.engine.admission import Admission
from argosy.engine.build import EngineParts
from argosy.engine.client import EngineInfo
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.plan import SequenceResult, StepPlan, StepResult
from argosy.engine.monotonic_clock import MonotonicClock
from argosy.engine.step_loop import StepLoop
from argosy.engine.step_recorder import OnRecord, RecordingScheduler

_WIDTH = 32_000
_CONFIG = SchedulerConfig(
    num_blocks=1024, max_model_len=2048, max_num_seqs=32, max_num_batched_tokens=256, kv_dtype="float16"
)
# Sleeping is exact to about this; the rest is waited for in a loop.
_SLACK_S = 0.0008


def seconds_of(plan: StepPlan) -> float:
    """About what a small model takes on a laptop."""
    seconds = 0.004
    for entry in plan.sequences:
        new, past = len(entry.token_ids), entry.start
        seconds += 5e-4 * new + 2e-4 * entry.sample
        seconds += 1e-6 * (past + 1) if entry.sample and new == 1 else 3e-8 * new * (past + (new + 1) / 2)
    return seconds


class PacedExecutor:
    """Gives every sequence the same token, after `seconds_of` the plan."""

    vocab_size, kv_dtype, num_blocks = _WIDTH, "float16", _CONFIG.num_blocks

    def execute(self, plan: StepPlan) -> StepResult:
        start_s = time.monotonic()
        end_s = start_s + seconds_of(plan)
        time.sleep(max(0.0, end_s - start_s - _SLACK_S))
        while time.monotonic() < end_s:
            pass
        results = tuple(SequenceResult(one.sequence_id, (7,) if one.sample else (), (), (), "") for one in plan.sequences)
        return StepResult(plan.step, results, time.monotonic() - start_s)

    def close(self) -> None: ...


class _Letters:
    """A tokenizer for which every token is a letter."""

    vocab_size, bos_token_id, has_chat_template = _WIDTH, None, False
    special_token_ids: frozenset[int] = frozenset()
    eos_token_ids: frozenset[int] = frozenset()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:  # noqa: ARG002
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:  # noqa: ARG002
        return "x" * len(ids)

    def token_bytes(self, token_id: int) -> bytes:  # noqa: ARG002
        return b"x"

    def apply_chat_template(self, messages: object, **_: object) -> str:  # noqa: ARG002
        return ""


def paced_parts(on_record: OnRecord) -> EngineParts:
    """The engine, ready to be driven."""
    clock, tokenizer = MonotonicClock(), _Letters()
    scheduler = RecordingScheduler(_CONFIG, on_record=on_record, clock=clock)
    info = EngineInfo(
        model_name="paced",
        model_path="paced",
        max_model_len=_CONFIG.effective_max_len,
        logits_width=_WIDTH,
        block_size=_CONFIG.block_size,
        num_blocks=_CONFIG.num_blocks,
        max_num_seqs=_CONFIG.max_num_seqs,
        max_num_batched_tokens=_CONFIG.max_num_batched_tokens,
        max_waiting=_CONFIG.max_waiting,
        dtype="none",
        kv_dtype=_CONFIG.kv_dtype,
        device="cpu",
        deterministic=False,
        enable_prefix_caching=True,
        follows_priority=False,
        default_sampling={},
    )
    admission = Admission(tokenizer, _WIDTH, _CONFIG.effective_max_len, frozenset(), lambda: 0)
    return EngineParts(StepLoop(scheduler, PacedExecutor(), tokenizer, clock=clock), admission, info, clock)
