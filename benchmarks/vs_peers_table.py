"""The README's table of ours beside the peers, from benchmarks/results/vs_peers.json.

python benchmarks/vs_peers_table.py                    print it
python benchmarks/vs_peers_table.py --write README.md  put it between its two marker lines there
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from report import RESULTS

BEGIN, END = "<!-- vs_peers: begin -->", "<!-- vs_peers: end -->"
NONE = "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--result", type=Path, default=RESULTS / "vs_peers.json")
    parser.add_argument("--write", type=Path, help="a page with the two marker lines")
    options = parser.parse_args()
    if not options.result.is_file():
        sys.exit(f"error: there is no {options.result.name}; run vs_peers.py first")
    text = table(json.loads(options.result.read_text()))
    if options.write is None:
        print(text)
        return
    options.write.write_text(between_markers(options.write.read_text(), text))


def between_markers(page: str, text: str) -> str:
    """The page with `text` between its marker lines. Exits with a line if it has not both, in order."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"error: the page needs a line {BEGIN} and below it a line {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def table(result: dict[str, Any]) -> str:
    """A Markdown table: one line per contestant, one column per measurement, tokens per second unless it says otherwise."""
    columns = columns_of(result)
    names = list(dict.fromkeys(name for _, values in columns for name in values))
    lines = [
        "| " + " | ".join(("engine, weights", *(title for title, _ in columns))) + " |",
        "|---|" + "---|" * len(columns),
        *("| " + " | ".join((name, *(values.get(name, NONE) for _, values in columns))) + " |" for name in names),
    ]
    machine = result["machine"]
    told = f"{machine['cpu']}, {result['threads']} threads ({machine['features']}), {result['date']}"
    left_out = {**result["skipped"], **result["dropped"]}
    notes = [f"{result['model']} on {told}; medians of {result['rounds']} alternating rounds, tokens/s."]
    notes += [f"{name}: {reason}." for name, reason in left_out.items()]
    return "\n".join((*lines, "", " ".join(notes)))


def columns_of(result: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """(title, text by contestant) of everything that was measured."""
    columns = [(f"prefill {part['prompt_tokens']}", _rates(part)) for part in result.get("prefill", ())]
    columns += [(f"decode {part['sequences']}", _rates(part)) for part in result.get("decode", ())]
    served = result.get("served")
    if served is not None:
        found = served["contestants"]
        columns.append((f"served, {served['concurrency']} at once", _rates(served, "output_tokens_per_s")))
        columns.append(("its p99 TTFT", {name: f"{entry['ttft_p99_s']:.2f} s" for name, entry in found.items()}))
    columns += [
        (f"busy neighbour, {part['sequences']}", {n: f"{e['share']:.0%}" for n, e in part["contestants"].items()})
        for part in result.get("busy", ())
    ]
    return columns


def _rates(part: dict[str, Any], field: str = "tokens_per_s") -> dict[str, str]:
    return {name: f"{entry[field]:,.0f}" for name, entry in part["contestants"].items()}


if __name__ == "__main__":
    main()
