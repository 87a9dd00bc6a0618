"""The `traceparent` header that joins the traces of several services (W3C Trace Context, level 2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceParent:
    """Who called, in hexadecimal: the trace, and the caller's span in it.

    Attributes:
        is_sampled: whether the caller records its part.
    """

    trace_id: str
    span_id: str
    is_sampled: bool


def parse_traceparent(value: str) -> TraceParent | None:
    """What the header says; None if it is none, which the specification wants treated as if it were absent."""
    match = _FORM.fullmatch(value.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & 1))
