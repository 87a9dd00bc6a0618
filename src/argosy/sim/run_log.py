"""The log of a run: one JSON object a line, the same bytes for the same seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Protocol

import orjson

from argosy import __version__
from argosy.sim.outcome import RequestOutcome, StepSpan

FORMAT, FORMAT_VERSION = "argosy-run-log", 1


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 of a configuration of plain values, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(config, option=orjson.OPT_SORT_KEYS)).hexdigest()


class RecordLog(Protocol):
    """Takes records as they come."""

    def request(self, outcome: RequestOutcome) -> None:
        """A request has ended."""
        ...

    def steps(self, replica: str, span: StepSpan) -> None:
        """Steps are over."""
        ...


def request_record(outcome: RequestOutcome) -> dict[str, Any]:
    """A request that has ended, as a record; times in seconds, None where it never came so far."""
    request = outcome.request
    return {
        "request_id": request.request_id,
        "replica": outcome.replica,
        "outcome": outcome.outcome,
        "tenant": request.tenant,
        "session_id": request.session_id,
        "arrival_s": request.arrival_s,
        "submitted_s": outcome.submitted_s,
        "first_scheduled_s": outcome.first_scheduled_s,
        "first_token_s": outcome.first_token_s,
        "finished_s": outcome.finished_s,
        "prompt_tokens": request.num_prompt_tokens,
        "output_tokens": outcome.num_output_tokens,
        "cached_tokens": outcome.num_cached_tokens,
        "preemptions": outcome.preemptions,
        "corrupted": outcome.corrupted,
    }


def step_records(replica: str, span: StepSpan) -> Iterator[dict[str, Any]]:
    """A record for each step of `span`."""
    start_s, context = span.start_s, span.context_tokens
    for offset, end_s in enumerate(span.ends_s):
        yield {
            "replica": replica,
            "step": span.first_step + offset,
            "start_s": start_s,
            "end_s": end_s,
            "sequences": span.num_sequences,
            "decoding": span.num_decoding,
            "tokens": span.num_tokens,
            "prefill_tokens": span.num_prefill_tokens,
            "context_tokens": context,
            "generated_tokens": span.num_generated_tokens,
            "running": span.num_running,
            "waiting": span.num_waiting,
            "kv_blocks_held": span.kv_blocks_held,
            "kv_blocks_cached": span.kv_blocks_cached,
            "preemptions": span.num_preemptions,
            "prefix_query_tokens": span.prefix_query_tokens,
            "prefix_hit_tokens": span.prefix_hit_tokens,
        }
        start_s, context = end_s, context + span.num_decoding


class RunLog:
    """Writes records as they come and keeps none. The stream is the caller's, and binary.

    The first line says what it takes to make the log again: format, version of the package, seed and hash of the
    configuration, and the commit if the caller knows one.
    """

    def __init__(self, stream: BinaryIO, *, seed: int, config: Mapping[str, Any], commit: str = "") -> None:
        self._write = stream.write
        self._line(
            {
                "kind": "header",
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "argosy": __version__,
                "commit": commit,
                "seed": seed,
                "config_hash": config_hash(config),
            }
        )

    def request(self, outcome: RequestOutcome) -> None:
        """One line of a request that has ended."""
        self._line({"kind": "request"} | request_record(outcome))

    def steps(self, replica: str, span: StepSpan) -> None:
        """One line for each step of `span`."""
        for record in step_records(replica, span):
            self._line({"kind": "step"} | record)

    def _line(self, record: Mapping[str, Any]) -> None:
        self._write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
