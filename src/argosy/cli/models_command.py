"""`argosy models`: which models are known by name, which are here; fetch and remove them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from argosy.cli.terminal import print_json

EPILOG = """\
\b
Examples:
  argosy models --json | jq -r '.[] | select(.cached) | .path'
  argosy models fetch smollm2-135m hf:org/name:file.gguf
  argosy models rm gemma3-270m
"""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a script instead.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Known names, or hf:org/name[:file].", show_default=False)]

app = typer.Typer(rich_markup_mode=None, epilog=EPILOG)


@app.callback(invoke_without_command=True)
def list_known(context: typer.Context, as_json: AsJson = False) -> None:
    """List models and where they are; fetch and remove them."""
    if context.invoked_subcommand is not None:
        return
    from argosy.models.resolve import list_models

    models = list_models()
    if as_json:
        print_json([asdict(model) for model in models])
        return
    from rich.console import Console
    from rich.table import Table

    from argosy.models.cache import format_bytes

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("NAME", "MODEL", "SIZE", "LICENCE", "FETCHED"):
        table.add_column(column, justify="right" if column == "SIZE" else "left", overflow="fold")
    for model in models:
        fetched = "yes" if model.cached else "no"
        table.add_row(model.name, model.description, format_bytes(model.size_bytes), model.licence, fetched)
    console = Console(highlight=False)
    console.print(table)
    for path in (model.path for model in models if model.cached):
        console.print(str(path), soft_wrap=True)


@app.command("fetch")
def fetch(names: Names, as_json: AsJson = False) -> None:
    """Fetch models into the cache ($ARGOSY_HOME, else ~/.cache/argosy); what is there is only checked."""
    from argosy.cli.progress import fetch_progress
    from argosy.models.resolve import resolve

    with fetch_progress() as report:
        found = [resolve(name, progress=report) for name in names]
    if as_json:
        print_json([asdict(model) for model in found])
    else:
        for model in found:
            typer.echo(f"{model.name}: {model.path}")


@app.command("rm")
def remove(names: Names) -> None:
    """Remove fetched models from the cache. Files given by path are never removed."""
    from argosy.models.cache import format_bytes
    from argosy.models.resolve import remove_model

    for name in names:
        freed_bytes = remove_model(name)
        typer.echo(f"{name}: {format_bytes(freed_bytes)} freed" if freed_bytes else f"{name}: was not in the cache")
