"""What the tables of all `argosy plan` commands share: console, columns, memory bars, lines of explanation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, JustifyMethod
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
_GAP = 2
# Least width of a column whose text may fold.
_FOLDED = 24


def plan_console() -> Console:
    """Standard output; 100 columns where it is wider, and where it is no terminal and COLUMNS does not say otherwise."""
    console = Console(highlight=False, emoji=False, markup=False)
    width = _WIDEST if not console.is_terminal and "COLUMNS" not in console._environ else min(console.width, _WIDEST)
    return Console(highlight=False, emoji=False, markup=False, width=width)


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    folds: str = "",
    drops: Sequence[str] = (),
    indent: int = 0,
) -> None:
    """Print a table without rules.

    Args:
        right: columns that are set to the right.
        folds: a column whose text may go over several lines; the others keep their width.
        drops: columns to leave out, in this order, where the console is too narrow; a line says which.
        indent: spaces before each line.
    """
    cells = [list(row) for row in rows]
    widths = {name: max(map(len, (name, *(row[index] for row in cells)))) for index, name in enumerate(columns)}
    if folds:
        widths[folds] = min(widths[folds], _FOLDED)
    dropped: list[str] = []
    while indent + sum(width + _GAP for width in widths.values()) - _GAP > console.width and len(dropped) < len(drops):
        dropped.append(drops[len(dropped)])
        del widths[dropped[-1]]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    flush_right = set(right)
    for name in widths:
        justify: JustifyMethod = "right" if name in flush_right else "left"
        table.add_column(name, justify=justify, no_wrap=bool(folds) and name != folds, overflow="fold")
    kept = [index for index, name in enumerate(columns) if name in widths]
    for row in cells:
        table.add_row(*(row[index] for index in kept))
    console.print(Padding(table, (0, 0, 0, indent)))
    if dropped:
        console.print(Padding(f"in a wider terminal or --json: {', '.join(dropped)}", (0, 0, 0, indent)), style="dim")


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
