"""Questions and answers about training in words and parts, as every report needs them."""

from __future__ import annotations

from argosy.observe.report.figures import count, seconds, usd
from argosy.planner.training_answer import TrainingMemoryBreakdown
from argosy.planner.training_question import TrainingQuestion

_DAY_S = 86_400.0


def question_words(question: TrainingQuestion) -> str:
    """One line: tokens, batch, optimizer, limits."""
    parts = [
        f"{count(question.tokens)} tokens",
        f"batches of {question.sequences_per_step:,} sequences of {question.sequence:,}",
        f"{question.optimizer} in {question.compute}",
    ]
    if question.deadline_days is not None:
        parts.append(f"within {seconds(question.deadline_days * _DAY_S)}")
    if question.max_usd is not None:
        parts.append(f"for at most {usd(question.max_usd)}")
    return ", ".join(parts)


def training_memory_parts(memory: TrainingMemoryBreakdown) -> tuple[tuple[str, float], ...]:
    """(name, bytes) of what a device's memory holds, what is free last."""
    return (
        ("parameters", memory.parameter_bytes),
        ("gradients", memory.gradient_bytes),
        ("optimizer", memory.optimizer_bytes),
        ("activations", memory.activation_bytes),
        ("workspace", memory.workspace_bytes),
        ("buffers", memory.buffer_bytes),
        ("runtime", memory.runtime_bytes),
        ("free", memory.free_bytes),
    )
