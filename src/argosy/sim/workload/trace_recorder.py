"""Records what a live server serves as a trace, without keeping a word of it.

Of every text only hashes of blocks are written, each block's hash made with the one before it: equal hashes mean equal
prefixes. They are keyed with a salt that is in no file, so that a guess at a text cannot be checked against them; with
another salt for each file, two files have no hash in common. Session and tenant names are hashed alike.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from argosy.cost.checks import at_least_one
from argosy.errors import ConfigError
from argosy.sim.workload.recorded_trace import header_line, request_line
from argosy.sim.workload.trace_request import Segment, TraceRequest

_TOKEN_BYTES = 4
_MIN_SALT_BYTES, _MAX_SALT_BYTES = 16, 64


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request that has ended with at least one token: its id among those under way, and its tokens."""

    request_id: str
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    session: str = ""
    tenant: str = ""
    priority: int = 0
    timeout_s: float | None = None


class TraceRecorder:
    """Turns what happens into lines of a recorded trace, which the caller writes; does no I/O.

    A request's line needs its answer, and lines stand in order of arrival: a line is held back until all that arrived
    before it have ended. Not safe for use by several threads at once.

    Args:
        block_tokens: tokens of a block; equal to the KV block size, a replay finds the same prefix hits.
        salt: 16 to 64 random bytes, never used for another file and never stored.
        start_s: the caller's clock at the start of the trace.

    Raises:
        ConfigError: a block size below 1, or a salt that is too short or too long.
    """

    def __init__(self, *, block_tokens: int, salt: bytes, start_s: float) -> None:
        at_least_one(block_tokens=block_tokens)
        if not _MIN_SALT_BYTES <= len(salt) <= _MAX_SALT_BYTES:
            raise ConfigError(f"a salt has {_MIN_SALT_BYTES} to {_MAX_SALT_BYTES} bytes, got {len(salt)}")
        self._block_tokens, self._salt, self._start_s = block_tokens, salt, start_s
        self._last_s = start_s
        self._count = 0
        # Requests under way: (number by arrival, arrival).
        self._under_way: dict[str, tuple[int, float]] = {}
        # Numbers in order of arrival; those in `_ended` leave once they are first. Lines wait as a heap by number.
        self._open: deque[int] = deque()
        self._ended: set[int] = set()
        self._held: list[tuple[int, str]] = []

    @property
    def header(self) -> str:
        """The first line of the file, with its line end."""
        return header_line()

    def arrived(self, request_id: str, now_s: float) -> None:
        """A request has arrived, at `now_s` on the caller's clock, which never runs backwards.

        Raises:
            ValueError: the clock ran backwards, or a request of that id is under way.
        """
        if now_s < self._last_s:
            raise ValueError(f"arrivals are recorded in order, got {now_s} s after {self._last_s} s")
        if request_id in self._under_way:
            raise ValueError(f"request {request_id} is under way already")
        self._last_s = now_s
        self._under_way[request_id] = (self._count, now_s - self._start_s)
        self._open.append(self._count)
        self._count += 1

    def finished(self, served: ServedRequest) -> list[str]:
        """A request has ended with an answer, complete or cut off; returns the lines that can be written, in order.

        Raises:
            KeyError: it never arrived.
        """
        number, arrival_s = self._under_way.pop(served.request_id)
        prompt, output = self._segments(served.prompt_token_ids, served.output_token_ids)
        request = TraceRequest(
            request_id=str(number),
            arrival_s=arrival_s,
            segments=prompt,
            output_tokens=len(served.output_token_ids),
            session_id=self._pseudonym("session", served.session),
            tenant=self._pseudonym("tenant", served.tenant),
            priority=served.priority,
            timeout_s=served.timeout_s,
            output_segments=output,
        )
        heapq.heappush(self._held, (number, request_line(request)))
        return self._released(number)

    def dropped(self, request_id: str) -> list[str]:
        """A request has ended without a token and leaves no line; returns the lines that can be written, in order.

        Raises:
            KeyError: it never arrived.
        """
        number, _ = self._under_way.pop(request_id)
        return self._released(number)

    def close(self) -> list[str]:
        """The lines still held back, in order; requests under way leave none."""
        lines = [line for _, line in sorted(self._held)]
        self._held.clear()
        return lines

    def _released(self, ended: int) -> list[str]:
        self._ended.add(ended)
        while self._open and self._open[0] in self._ended:
            self._ended.remove(self._open.popleft())
        lines = []
        while self._held and (not self._open or self._held[0][0] < self._open[0]):
            lines.append(heapq.heappop(self._held)[1])
        return lines

    def _segments(self, prompt: Sequence[int], output: Sequence[int]) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
        """The blocks of prompt and answer together. The block in which the prompt ends is in both, cut where it ends:

        prompt     |  block 0  |  block 1  |  blo|
        answer                                   |ck 2  |  bl|
        segments   (h0, 0, B)  (h1, 0, B)  (h2, 0, k) (h2, k, B - k) (h3, 0, …)
        """
        data = np.asarray((*prompt, *output), np.dtype("<u4")).tobytes()
        block_bytes = _TOKEN_BYTES * self._block_tokens
        names: list[int] = []
        parent = b""
        for begin in range(0, len(data), block_bytes):
            parent = self._digest(b"block", parent + data[begin : begin + block_bytes])
            names.append(int.from_bytes(parent, "little"))
        end_of_prompt, end = len(prompt), len(prompt) + len(output)
        return self._pieces(names, 0, end_of_prompt), self._pieces(names, end_of_prompt, end)

    def _pieces(self, names: list[int], begin: int, end: int) -> tuple[Segment, ...]:
        """The tokens from `begin` to `end` as pieces of the blocks `names`."""
        size = self._block_tokens
        pieces = []
        while begin < end:
            block, start = divmod(begin, size)
            count = min(size - start, end - begin)
            pieces.append(Segment(names[block], count, start))
            begin += count
        return tuple(pieces)

    def _pseudonym(self, kind: str, name: str) -> str:
        return self._digest(kind.encode(), name.encode()).hex() if name else ""

    def _digest(self, kind: bytes, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=8, key=self._salt, person=kind).digest()
