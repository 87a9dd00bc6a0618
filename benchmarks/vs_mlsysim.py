"""Argosy's cost model beside `mlsysim`, on questions that both answer, against published or measured references.

    python benchmarks/vs_mlsysim.py --python PATH [PATH ...] [--rows PATH] [--markdown]

The interpreters have `mlsysim` installed; the first is compared, further ones (other versions) are listed where their
answers differ from its. An answer is right when its relative error is within the question's tolerance: 0.5 % for formulas
and exact counts, 1.5 % for printed data sheets and FLOP counts, 5 % for lower bounds, 15 % for measured values. `--rows`
compares TPOT with all rows of Llama-3.1-8B on one H100 in a table of measured rows, columns as `argosy.cost.measured_rows`
reads them. Writes benchmarks/results/vs_mlsysim.json; `--markdown` prints the table as Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from argosy.cost.efficiency import Constants
from argosy.cost.measured_rows import MeasuredRow, Quantisation, read_rows
from argosy.cost.measured_serving import MeasuredConfiguration, by_configuration
from mlsysim_questions import MEASURED, REASONS_FOR, Question, all_questions
from report import write_result

ANSWERS = Path(__file__).with_name("mlsysim_answers.py")
HAS_PACKAGE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('mlsysim') is None)"
TIMEOUT_S = 300
COLUMNS = ("question", "unit", "reference", "Argosy", "mlsysim", "right", "why")


@dataclass(frozen=True, slots=True)
class Compared:
    """A question with both answers; `theirs` is None where `mlsysim` gave none."""

    question: Question
    ours: float
    theirs: float | None

    def error(self, value: float | None) -> float | None:
        """Signed relative error against the reference."""
        return None if value is None else value / self.question.reference - 1.0

    def right(self, value: float | None) -> bool:
        """Whether a value is within the question's tolerance."""
        error = self.error(value)
        return error is not None and abs(error) <= self.question.tolerance

    @property
    def verdict(self) -> str:
        """Who is within tolerance."""
        names = {(True, True): "both", (True, False): "Argosy", (False, True): "mlsysim", (False, False): "neither"}
        return names[self.right(self.ours), self.right(self.theirs)]

    def as_dict(self) -> dict[str, Any]:
        """What is written."""
        asked = self.question
        return {
            "question": asked.text,
            "unit": asked.unit,
            "reference": rounded(asked.reference),
            "source": asked.source,
            "tolerance": asked.tolerance,
            "argosy": rounded(self.ours),
            "argosy_error": rounded(self.error(self.ours)),
            "mlsysim": rounded(self.theirs),
            "mlsysim_error": rounded(self.error(self.theirs)),
            "right": self.verdict,
            "why": asked.reason,
        }


def rounded(value: float | None) -> float | None:
    """Six significant digits; errors too small to matter become 0."""
    if value is None or abs(value) < 1e-9:
        return None if value is None else 0.0
    return round(value, 5 - math.floor(math.log10(abs(value))))


def missing(python: str) -> str | None:
    """Why this interpreter cannot be asked, or None if it can."""
    if shutil.which(python) is None:
        return "there is no such interpreter"
    if subprocess.run([python, "-c", HAS_PACKAGE], check=False, timeout=TIMEOUT_S).returncode:
        return "it has no package mlsysim; install it there with pip"
    return None


def ask(python: str, rows: Sequence[MeasuredRow] = ()) -> dict[str, Any]:
    """The version of `mlsysim`, its answers, the errors of those it could not give, and its TPOT in ms for each row."""
    loads = json.dumps([(row.input_tokens, row.output_tokens, row.concurrency) for row in rows])
    command = [python, str(ANSWERS)]
    done = subprocess.run(command, input=loads, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SystemExit(f"the questions failed under that interpreter: {last}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measured_tpot(path: Path) -> MeasuredConfiguration:
    """The rows of Llama-3.1-8B in bf16 on one H100 SXM."""
    configurations, _ = by_configuration(read_rows(path))
    for one in configurations:
        row = one.rows[0]
        single = one.configuration.deployment.plan.devices == 1 and row.gemm is Quantisation.NONE
        if single and "Llama-3.1-8B" in row.model and one.configuration.device.name == "H100 SXM":
            return one
    raise SystemExit(f"{path} has no rows of Llama-3.1-8B in bf16 on one H100 SXM")


def tpot_errors(measured: MeasuredConfiguration, theirs_ms: Sequence[float]) -> dict[str, Any]:
    """Relative errors of TPOT over all rows, of both; Argosy with constants fitted to nothing."""
    tpot_s = np.array([row.tpot_s for row in measured.rows])
    ours_s = np.array([estimate.tpot_s for estimate in measured.estimates(Constants())])
    figures: dict[str, Any] = {"rows": len(tpot_s)}
    for name, answers_s in (("argosy", ours_s), ("mlsysim", np.array(theirs_ms) / 1e3)):
        errors = answers_s / tpot_s - 1.0
        figures[name] = {
            "median_error": round(float(np.median(np.abs(errors))), 3),
            "median_signed_error": round(float(np.median(errors)), 3),
            "within_15_percent": round(float((np.abs(errors) <= MEASURED).mean()), 3),
        }
    return figures


def differences(rows: list[Compared], other: dict[str, Any]) -> dict[str, float]:
    """Answers of another version that differ from the compared one's by more than 0.1 %."""
    answers = other["answers"]
    return {
        row.question.key: rounded(answers[row.question.key])
        for row in rows
        if row.question.key in answers
        and (row.theirs is None or not math.isclose(answers[row.question.key], row.theirs, rel_tol=1e-3))
    }


def shown(value: float | None, error: float | None = None) -> str:
    """A value with four digits, and its error where it is not nothing."""
    if value is None or not math.isfinite(value):
        return "no answer"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text if error is None or abs(error) < 5e-4 else f"{text} ({error:+.1%})"


def cells(row: Compared) -> tuple[str, ...]:
    asked = row.question
    return (
        asked.text,
        asked.unit,
        shown(asked.reference),
        shown(row.ours, row.error(row.ours)),
        shown(row.theirs, row.error(row.theirs)),
        row.verdict,
        asked.reason,
    )


def print_table(rows: list[Compared], *, markdown: bool) -> None:
    if markdown:
        print("| " + " | ".join(COLUMNS) + " |")
        print("|" + "---|" * len(COLUMNS))
        for row in rows:
            print("| " + " | ".join(cells(row)) + " |")
        return
    table = Table()
    for name in COLUMNS[:-1]:
        table.add_column(name, justify="right" if name in ("reference", "Argosy", "mlsysim") else "left")
    styles = {"both": "green", "Argosy": "cyan", "mlsysim": "yellow", "neither": "red"}
    for row in rows:
        *before, verdict, _ = cells(row)
        table.add_row(*before, f"[{styles[verdict]}]{verdict}[/]")
    console = Console()
    console.print(table)
    for row in rows:
        asked = row.question
        console.print(f"{asked.text}: {asked.reason}. Reference: {asked.source}.", highlight=False, markup=False)


def compared(answers: dict[str, float], errors: dict[str, str]) -> list[Compared]:
    """Every question with both answers; a key that only one side knows is a bug of this benchmark."""
    questions = all_questions()
    asked, given = {question.key for question in questions}, answers.keys() | errors.keys()
    assert asked == given, f"questions and answers do not match: {sorted(asked ^ given)}"
    return [Compared(question, question.ours(), answers.get(question.key)) for question in questions]


def main() -> None:
    parser = argparse.ArgumentParser(description="Argosy's cost model beside mlsysim.")
    parser.add_argument("--python", nargs="+", required=True, help="interpreters that have mlsysim, the compared one first")
    parser.add_argument("--rows", type=Path, help="a table of measured rows to compare TPOT with")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    for python in options.python:
        reason = missing(python)
        if reason is not None:
            print(f"skipped, nothing was compared: {python}: {reason}")
            return
    measured = None if options.rows is None else measured_tpot(options.rows)
    first = ask(options.python[0], () if measured is None else measured.rows)
    others = [ask(python) for python in options.python[1:]]
    rows = compared(first["answers"], first["errors"])
    counts = Counter(row.verdict for row in rows)
    changed = {other["version"]: differences(rows, other) for other in others}
    figures = {
        "mlsysim": first["version"],
        "right": dict(counts),
        "questions": {row.question.key: row.as_dict() for row in rows},
        "no answer": first["errors"],
        "other versions where they differ": changed,
    }
    if measured is not None:
        figures["tpot of measured rows"] = tpot_errors(measured, first["tpot_ms"])
    path = write_result("vs_mlsysim", figures)
    print_table(rows, markdown=options.markdown)
    print(f"mlsysim {first['version']}, {len(rows)} questions; right: {dict(counts)}; written to {path}")
    if measured is not None:
        print(f"TPOT of measured rows: {figures['tpot of measured rows']}")
    for version, answers in changed.items():
        print(f"mlsysim {version} answers differently: {answers}")
    if first["version"] != REASONS_FOR:
        print(f"the reasons were observed with mlsysim {REASONS_FOR}")


if __name__ == "__main__":
    main()
