"""What the tables of all `argosy plan` commands share: console, columns, memory bars, lines of explanation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from argosy.cost.quantity import Grade
from argosy.observe.report.figures import gib
from argosy.planner.grades import GRADE_MARKS, grade_legend

# One fill per part of a memory bar, told apart without colour as well.
BAR_PARTS = {
    "weights": ("█", "blue"),
    "draft weights": ("▙", "magenta"),
    "parameters": ("█", "blue"),
    "gradients": ("▚", "magenta"),
    "optimizer": ("▞", "cyan"),
    "activations": ("▒", "green"),
    "KV": ("▓", "yellow"),
    "workspace": ("≡", "green"),
    "communication buffers": ("=", "cyan"),
    "buffers": ("=", "cyan"),
    "runtime": ("░", "red"),
    "reserved": ("░", "red"),
    "free": ("·", "bright_black"),
}
_WIDEST = 100


def plan_console() -> Console:
    """Standard output; 100 columns where it is wider, and where it is no terminal and COLUMNS does not say otherwise."""
    console = Console(highlight=False, emoji=False, markup=False)
    width = _WIDEST if not console.is_terminal and "COLUMNS" not in console._environ else min(console.width, _WIDEST)
    return Console(highlight=False, emoji=False, markup=False, width=width)


def new_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """A table without rules; `columns` in `right` are set to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    flush_right = set(right)
    for column in columns:
        number = column in flush_right
        table.add_column(column, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return table


def heading(console: Console, text: str) -> None:
    """A line that begins a part of the output."""
    console.print()
    console.print(text, style="bold", soft_wrap=False)


def facts(console: Console, rows: Iterable[tuple[str, str] | tuple[str, str, Grade]]) -> None:
    """Names and what is said of them, aligned; a grade shows as its mark between them."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value, *grade in rows:
        table.add_row(name, GRADE_MARKS[grade[0]] if grade else "", value)
    console.print(Padding(table, (0, 0, 0, 2)))


def legend(console: Console) -> None:
    """What the marks of grades mean."""
    console.print()
    console.print(grade_legend(), style="dim")


def memory_bar(console: Console, label: str, parts: Sequence[tuple[str, float]], total_bytes: float) -> None:
    """A device's memory as a bar with its parts beneath; parts beyond `total_bytes` show as what is missing."""
    used = sum(value for name, value in parts if name != "free")
    missing = used - total_bytes
    over = f", {gib(missing)} too much" if missing > 0 else ""
    console.print(Text(f"  {label}: {gib(used)} of {gib(total_bytes)}{over}", style="red" if missing > 0 else ""))
    width = console.width - 4
    bar, ends = Text("  "), bar_cells([value for _, value in parts], max(used, total_bytes), width)
    for (name, _), cells in zip(parts, ends, strict=True):
        glyph, style = BAR_PARTS[name]
        bar.append(glyph * cells, style=style)
    console.print(bar)
    entries = [(*BAR_PARTS[name], f"{name} {gib(value)}") for name, value in parts if value > 0]
    bar_key(console, entries)


def bar_key(console: Console, entries: Iterable[tuple[str, str, str]]) -> None:
    """(fill, style, words) of the parts of a bar, as many on a line as fit."""
    line = Text("  ")
    for glyph, style, words in entries:
        if line.cell_len > 2 and line.cell_len + 4 + len(words) > console.width:
            console.print(line)
            line = Text("  ")
        line.append("  " if line.cell_len > 2 else "")
        line.append(glyph, style=style)
        line.append(f" {words}")
    console.print(line)


def bar_cells(values: Sequence[float], total: float, width: int) -> list[int]:
    """Cells of each part: rounded at running sums, so that they add up."""
    cells, reached, drawn = [], 0.0, 0
    for value in values:
        reached += max(0.0, value)
        end = round(reached / total * width)
        cells.append(end - drawn)
        drawn = end
    return cells
