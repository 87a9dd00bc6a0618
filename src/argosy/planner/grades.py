"""How reports mark the grade of a figure, and what the marks mean."""

from __future__ import annotations

from argosy.cost.quantity import Grade

GRADE_MARKS = {
    Grade.MEASURED: "●",
    Grade.PRIMARY: "◆",
    Grade.FITTED: "◐",
    Grade.DERIVED: "○",
    Grade.SECONDARY: "◇",
    Grade.MEMORY: "?",
}
GRADE_MEANINGS = {
    Grade.MEASURED: "measured",
    Grade.PRIMARY: "primary source",
    Grade.FITTED: "fitted",
    Grade.DERIVED: "derived",
    Grade.SECONDARY: "second-hand",
    Grade.MEMORY: "from memory",
}


def marked(text: str, grade: Grade) -> str:
    """`text` with the mark of its grade."""
    return f"{text} {GRADE_MARKS[grade]}"


def grade_legend() -> str:
    """What all marks mean, in one line, best first."""
    return "  ".join(f"{GRADE_MARKS[grade]} {GRADE_MEANINGS[grade]}" for grade in Grade)
