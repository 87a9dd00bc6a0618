"""What all commands share when they write to the terminal."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: window title, clipboard
    r"|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def complain(message: str) -> None:
    """Print an error as one line on stderr."""
    line = " ".join(message.split())
    print(f"argosy: error: {printable(line)}", file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Print a warning as one line on stderr."""
    print(f"argosy: warning: {printable(message)}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print a value for a script to read."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def printable(text: str) -> str:
    """Text without what could steer a terminal (escape sequences, controls, overrides of direction); keeps \\n and \\t.

    What a model says is not to be trusted with the user's terminal.
    """
    return CONTROL.sub("", text)
