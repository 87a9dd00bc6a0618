"""Server-sent events out of bytes as they come (WHATWG HTML, section 9.2), as far as OpenAI's streams use them."""

from __future__ import annotations


class EventParser:
    """Holds at most one unfinished event. Comments and fields other than `data` are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that `received` completes; lines of one event are joined by newlines.

        Lines may end with LF, CRLF or CR, and bytes may be cut anywhere.
        """
        text = self._rest + received
        # A CR at the very end may be half of a CRLF: it waits for the next byte.
        held = text.endswith(b"\r")
        lines = (text[:-1] if held else text).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + (b"\r" if held else b"")
        events = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        return events
