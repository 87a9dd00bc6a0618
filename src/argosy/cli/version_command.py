"""`argosy version`."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Annotated

import typer

from argosy import __version__
from argosy.cli.terminal import print_json

COMPANIONS = ("torch", "numpy", "tokenizers", "gguf", "safetensors", "huggingface-hub", "fastapi", "uvicorn")


def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script instead.")] = False) -> None:
    """Print the versions of argosy and what it stands on."""
    found = {"argosy": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for name in COMPANIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    if as_json:
        print_json(found)
        return
    width = max(map(len, found))
    for name, value in found.items():
        typer.echo(f"{name:<{width}}  {value}")
