"""The lines of a trace file one by one, and checks that name the line where something is wrong.

A trace is read as it is used: memory does not grow with its length, and a fault is raised when its line is reached.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson

from argosy.errors import TraceFileError
from argosy.sim.workload.trace_request import TraceRequest

# More than any model takes: what is above is another unit, or damage.
MAX_REQUEST_TOKENS: Final = 1 << 24
MAX_TRACE_S: Final = 10 * 366 * 86_400.0
_MAX_LINE_BYTES: Final = 1 << 26
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Line:
    """One line of a trace: its text without the line's end, where it stands, and how to refuse it."""

    __slots__ = ("number", "path", "text")

    def __init__(self, path: Path, number: int, text: str) -> None:
        self.path = path
        self.number = number
        self.text = text

    def wrong(self, what: str) -> NoReturn:
        """Raise `TraceFileError` naming the file and this line."""
        raise TraceFileError(str(self.path), what, self.number)

    def tokens(self, name: str, value: object, minimum: int = 1) -> int:
        """A number of tokens: whole, at least `minimum`, and at most `MAX_REQUEST_TOKENS`."""
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            self.wrong(f"{name} must be a whole number of at least {minimum}, got {shown(value)}")
        if value > MAX_REQUEST_TOKENS:
            self.wrong(f"{name} is {shown(value)}, above the {MAX_REQUEST_TOKENS} tokens that a request may have")
        return value

    def seconds(self, name: str, value: object, per_s: float = 1.0) -> float:
        """A time of at least 0 in units of which a second has `per_s`, in seconds, and at most `MAX_TRACE_S`."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            self.wrong(f"{name} must be a number of at least 0, got {shown(value)}")
        if value / per_s > MAX_TRACE_S:
            self.wrong(f"{name} is {shown(value)}, more than ten years after the start; is it in another unit?")
        return value / per_s

    def json_object(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
        """This line as a JSON object that has all keys of `required`, and no others but those of `optional`."""
        if not self.text.strip():
            self.wrong("is empty")
        try:
            entry = orjson.loads(self.text)
        except orjson.JSONDecodeError as error:
            self.wrong(f"is not JSON: {error.msg}")
        if not isinstance(entry, dict):
            self.wrong("is not a JSON object")
        for key in required:
            if key not in entry:
                self.wrong(f"has no {key}")
        for key in entry:
            if key not in required and key not in optional:
                self.wrong(f"has a key {shown(key)} that this form of trace does not know")
        return entry


def shown(value: object) -> str:
    """`value` as a message shows it: never long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def lines_of(path: Path) -> Generator[Line, None, None]:
    """The lines of a file, numbered from 1; a byte order mark is not part of the first.

    Raises:
        TraceFileError: the file cannot be read, is not UTF-8, or has a line of more than 64 MiB.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while data := file.readline(_MAX_LINE_BYTES + 1):
                number += 1
                if len(data) > _MAX_LINE_BYTES:
                    raise TraceFileError(str(path), f"is longer than {_MAX_LINE_BYTES} bytes", number)
                if number == 1:
                    data = data.removeprefix(_BYTE_ORDER_MARK)
                try:
                    text = data.decode()
                except UnicodeDecodeError:
                    raise TraceFileError(str(path), "is not UTF-8 text", number) from None
                yield Line(path, number, text.rstrip("\r\n"))
    except OSError as error:
        raise TraceFileError(str(path), f"cannot be read: {error.strerror or error}") from error


def checked(line: Line, last_arrival_s: float, arrival_s: float) -> float:
    """`arrival_s`, refused where it is before the arrival of the line above."""
    if arrival_s < last_arrival_s:
        line.wrong("arrives before the line above it; sort the trace by time")
    return arrival_s


def not_empty(path: Path, requests: Iterator[TraceRequest]) -> Iterator[TraceRequest]:
    """`requests` as they are. Raises `TraceFileError` at the end if there were none."""
    request = None
    for request in requests:
        yield request
    if request is None:
        raise TraceFileError(str(path), "holds no request")
