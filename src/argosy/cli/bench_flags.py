"""Flags that the commands of `argosy bench` share, and how they write files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from argosy.errors import ConfigError


def option(panel: str, text: str, *names: str, default: str | bool = True, **more: Any) -> Any:
    """An option in a section of the help; `default` says in words what None means."""
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=default, **more)


AsJson = Annotated[bool, option("Output", "Print JSON for a script instead.", "--json")]
OutputFile = Annotated[
    Path | None,
    option("Output", "Write JSON here too, every request and round in it.", "--output", metavar="FILE", default=False),
]
HtmlFile = Annotated[Path | None, option("Output", "Write a page with plots here.", "--html", metavar="FILE", default=False)]
Seed = Annotated[int, option("Load", "Other seeds give other prompts and arrivals.", "--seed")]


def parse_sizes(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas: "1,8,16"; "" is none.

    Raises:
        ConfigError: a part is no whole number of at least 1.
    """
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(part.isascii() and part.isdigit() and int(part) >= 1 for part in parts):
        raise ConfigError(f"{text!r} must be whole numbers of at least 1 separated by commas, such as 1,8,16")
    return tuple(map(int, parts))


def check_writable(path: Path | None, flag: str) -> None:
    """Raise `ConfigError` before anything is measured if the file cannot be written afterwards."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        reason = "it is a folder" if path.is_dir() else "its folder does not exist"
        raise ConfigError(f"{flag}: cannot write {path}: {reason}")


def write_json(path: Path, value: Any) -> None:
    """Write `value`; an `OSError` is the caller's to show."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
