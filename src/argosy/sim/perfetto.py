"""A run in the Trace Event Format that Perfetto and chrome://tracing open.

A process for each replica: its steps one after the other, its requests as nested slices (in all, queued, prefill, decode),
and counters of what runs, waits and is held in KV. Steps in a row that differ in nothing but lengths are one slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO

import orjson

from argosy.sim.outcome import RequestOutcome, StepSpan

_STEPS_THREAD = 1
_NOBODY = "not routed"


class PerfettoTrace:
    """Writes events as they come and keeps none. The stream is the caller's, and binary.

    Attributes:
        truncated_at_s: simulated time from which on events are left out, since there were `max_events`; None if none are.
    """

    def __init__(self, stream: BinaryIO, *, max_events: int = 200_000) -> None:
        self.truncated_at_s: float | None = None
        self._write = stream.write
        self._left = max_events
        self._processes: dict[str, int] = {}
        self._num_requests = 0
        self._is_first = True
        self._write(b'{"displayTimeUnit":"ms","traceEvents":[')

    def steps(self, replica: str, span: StepSpan) -> None:
        """Steps are over."""
        end_s = span.ends_s[-1]
        if not self._has_room(2, span.start_s):
            return
        process, count = self._process(replica), len(span.ends_s)
        decoding, prefill = span.num_decoding, span.num_prefill_tokens
        name = f"prefill {prefill}, decode {decoding}" if prefill else f"decode {decoding}"
        arguments = {
            "first step": span.first_step,
            "steps": count,
            "tokens per step": span.num_tokens,
            "prefill tokens": prefill,
            "sequences": span.num_sequences,
            "context tokens": span.context_tokens,
            "preemptions": span.num_preemptions,
        }
        where = {"pid": process, "tid": _STEPS_THREAD, "ts": _us(span.start_s)}
        shown = name if count == 1 else f"{name} x {count}"
        self._event({"ph": "X", "name": shown, "dur": _us(end_s - span.start_s), "args": arguments} | where)
        load = {"running": span.num_running, "waiting": span.num_waiting, "KV blocks": span.kv_blocks_held}
        self._event({"ph": "C", "name": "load", "pid": process, "ts": _us(end_s), "args": load})

    def request(self, outcome: RequestOutcome) -> None:
        """A request has ended."""
        request = outcome.request
        if not self._has_room(8, outcome.finished_s):
            return
        self._num_requests += 1
        process = self._process(outcome.replica or _NOBODY)
        arguments = {
            "outcome": outcome.outcome,
            "prompt tokens": request.num_prompt_tokens,
            "cached tokens": outcome.num_cached_tokens,
            "output tokens": outcome.num_output_tokens,
            "preemptions": outcome.preemptions,
            "tenant": request.tenant,
            "session": request.session_id,
        }
        self._slice(process, request.request_id, request.arrival_s, outcome.finished_s, arguments)
        marks = (
            ("queued", request.arrival_s),
            ("prefill", outcome.first_scheduled_s),
            ("decode", outcome.first_token_s),
        )
        begun = [(name, at_s) for name, at_s in marks if at_s is not None]
        ends_s = [*(at_s for _, at_s in begun[1:]), outcome.finished_s]
        for (name, at_s), end_s in zip(begun, ends_s, strict=True):
            self._slice(process, name, at_s, end_s, {})

    def close(self) -> None:
        """End the document; nothing may follow."""
        about = {"time": "simulated"}
        if self.truncated_at_s is not None:
            about["left out"] = f"everything from {self.truncated_at_s:.3f} s on, to keep the file small"
        self._write(b'\n],"otherData":' + orjson.dumps(about) + b"}\n")

    def _has_room(self, num_events: int, at_s: float) -> bool:
        if self.truncated_at_s is None and self._left < num_events:
            self.truncated_at_s = at_s
        return self.truncated_at_s is None

    def _process(self, name: str) -> int:
        known = self._processes.get(name)
        if known is None:
            known = self._processes[name] = len(self._processes) + 1
            self._event({"ph": "M", "name": "process_name", "pid": known, "args": {"name": name}})
            self._event({"ph": "M", "name": "thread_name", "pid": known, "tid": _STEPS_THREAD, "args": {"name": "steps"}})
        return known

    def _slice(self, process: int, name: str, begin_s: float, end_s: float, arguments: Mapping[str, Any]) -> None:
        where = {"cat": "request", "id": self._num_requests, "pid": process, "tid": 0, "name": name}
        self._event({"ph": "b", "ts": _us(begin_s), "args": arguments} | where)
        self._event({"ph": "e", "ts": _us(end_s)} | where)

    def _event(self, event: Mapping[str, Any]) -> None:
        self._left -= 1
        self._write((b"\n" if self._is_first else b",\n") + orjson.dumps(event))
        self._is_first = False


def _us(seconds: float) -> float:
    """Microseconds to the nanosecond."""
    return round(seconds * 1e6, 3)
