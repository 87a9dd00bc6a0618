"""The answer to `argosy plan compare` in a terminal."""

from __future__ import annotations

from argosy.cli.plan_tables import facts, heading, legend, plan_console, print_table
from argosy.observe.report.figures import count, seconds, usd_range
from argosy.planner.compare import ComparedDevice, Comparison
from argosy.planner.grades import marked


def show_comparison(comparison: Comparison) -> None:
    """Print the devices on standard output, cheapest tokens first."""
    console = plan_console()
    lengths = f"prompts of {comparison.prompt_tokens:,} tokens, answers of {comparison.output_tokens:,}"
    console.print(f"{comparison.model}: {lengths}", style="bold")
    console.print("each device at the fewest that hold the model; cheapest tokens first", style="dim")
    console.print()
    figures = ("N", "PROMPT", "TPOT ALONE", "BATCH", "TPOT FULL", "TOKENS/S", "$/1M OUT")
    rows = [_cells(row) for row in comparison.devices if row.devices is not None]
    columns = ("DEVICE", *figures, "BINDS")
    print_table(console, columns, rows, right=figures, drops=("PROMPT", "BATCH"))
    missing = [(row.device, row.why_not) for row in comparison.devices if row.devices is None]
    if missing:
        heading(console, "Not possible")
        facts(console, missing)
    legend(console)


def _cells(row: ComparedDevice) -> tuple[str, ...]:
    assert row.usd_per_million_tokens is not None
    latency, tokens = row.grades["latency"], row.usd_per_million_tokens
    return (
        *(row.device, str(row.devices)),
        marked(seconds(row.prompt_alone_s), latency),
        marked(seconds(row.tpot_alone_s), latency),
        str(row.sequences),
        marked(seconds(row.tpot_full_s), latency),
        marked(count(row.output_tokens_per_s), latency),
        marked(usd_range(tokens.low, tokens.high), row.grades["price"]),
        row.binds,
    )
