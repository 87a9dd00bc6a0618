"""Mooncake's traces (Qin et al., FAST 2025): one JSON object a line, with the ids of the prompt's blocks of 512 tokens.

Equal ids stand for equal prefixes: a block's id depends on all that stands before it. The last block may be partly filled.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from argosy.sim.workload.trace_lines import Line, checked, lines_of, shown
from argosy.sim.workload.trace_request import Segment, TraceRequest, content_id

MOONCAKE_BLOCK_TOKENS = 512
_REQUIRED = ("timestamp", "input_length", "output_length")


def mooncake_requests(path: Path, name: str, contents: str) -> Iterator[TraceRequest]:
    """The lines of a Mooncake trace, times as they stand there; ids are `name/0`, `name/1`, …

    A line without `hash_ids` has a text of its own.

    Raises:
        TraceFileError: a line that is wrong or earlier than the one above it; the line is named.
    """
    key = content_id(contents)
    last_s = 0.0
    for number, line in enumerate(lines_of(path)):
        entry = line.json_object(_REQUIRED, ("hash_ids",))
        last_s = checked(line, last_s, line.seconds("timestamp", entry["timestamp"], 1e3))
        prompt = line.tokens("input_length", entry["input_length"])
        output = line.tokens("output_length", entry["output_length"])
        if "hash_ids" in entry:
            segments = _blocks(line, key, entry["hash_ids"], prompt)
        else:
            segments = (Segment(content_id(contents, "own", number), prompt),)
        yield TraceRequest(f"{name}/{number}", last_s, segments, output)


def _blocks(line: Line, key: int, hash_ids: object, prompt_tokens: int) -> tuple[Segment, ...]:
    if not isinstance(hash_ids, list):
        line.wrong(f"hash_ids must be a list of whole numbers, got {shown(hash_ids)}")
    for block in hash_ids:
        if isinstance(block, bool) or not isinstance(block, int) or not 0 <= block < 1 << 64:
            line.wrong(f"hash_ids must be whole numbers from 0 to 2^64 - 1, got {shown(block)}")
    wanted = -(-prompt_tokens // MOONCAKE_BLOCK_TOKENS)
    if len(hash_ids) != wanted:
        line.wrong(
            f"hash_ids has {len(hash_ids)} ids, but an input_length of {prompt_tokens} is {wanted} blocks of "
            f"{MOONCAKE_BLOCK_TOKENS} tokens"
        )
    full = [Segment(key ^ block, MOONCAKE_BLOCK_TOKENS) for block in hash_ids[:-1]]
    tail = prompt_tokens - MOONCAKE_BLOCK_TOKENS * (wanted - 1)
    return (*full, Segment(key ^ hash_ids[-1], tail))
