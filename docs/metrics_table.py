"""Write the table of the gateway's metrics into the page on it, from the list that the collectors are made from."""

from __future__ import annotations

import re
from pathlib import Path

from argosy.fleet.gateway.metric_list import METRICS

PAGE = Path(__file__).parent / "gateway.md"
BEGIN, END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->\n"


def table() -> str:
    """A row for each metric."""
    rows = [
        f"| `{spec.name}` | {spec.kind} | {', '.join(f'`{label}`' for label in spec.labels)} | {spec.text} |\n"
        for spec in METRICS
    ]
    return "| metric | kind | labels | |\n|---|---|---|---|\n" + "".join(rows)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(re.sub(f"(?s){BEGIN}.*{END}", lambda _: BEGIN + table() + END, page), encoding="utf-8")
