"""What runs a step: the one interface between the step loop and any hardware, process or cost model."""

from __future__ import annotations

from typing import Protocol

from argosy.engine.core.plan import StepPlan, StepResult


class Executor(Protocol):
    """Owns the weights, the KV pool and each live sequence's sampling state; decides nothing.

    `execute` is called by one thread, one plan at a time, with `plan.step` rising. It mutates the KV blocks the plan names
    and the state of the sequences in it, nothing else; the caller owns the result. A failure of one sequence is reported
    in its `SequenceResult.error`; an exception means that the executor is lost.
    """

    @property
    def vocab_size(self) -> int:
        """Width of the logits: the bound on every token id."""
        ...

    @property
    def num_blocks(self) -> int:
        """KV blocks in the pool."""
        ...

    @property
    def kv_dtype(self) -> str:
        """Element type of the KV pool, e.g. "float32"."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step and return what it gave each scheduled sequence."""
        ...

    def close(self) -> None:
        """Free what it holds. Called once; `execute` is not called after it."""
        ...
