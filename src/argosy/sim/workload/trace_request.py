"""One request of a trace, and the protocol of everything that yields such requests.

A trace knows lengths and which texts are alike, not the texts. A `Segment` therefore names its content by an id, and token
i of a content is the i-th output of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014)
seeded with that id: prompts that begin with the same segments begin with the same tokens, wherever they are made.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from argosy.errors import ConfigError

_MASK = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = (np.uint64(shift) for shift in (27, 30, 31, 32))


@dataclass(frozen=True, slots=True)
class Segment:
    """`num_tokens` tokens of the content `content_id` (64-bit unsigned), from its token `start` on."""

    content_id: int
    num_tokens: int
    start: int = 0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a segment without tokens, or an id of more than 64 bits."""
        if self.num_tokens < 1 or self.start < 0 or not 0 <= self.content_id <= _MASK:
            raise ConfigError(
                f"a segment has at least 1 token, a start of at least 0 and an id of 64 bits, got {self.num_tokens} tokens "
                f"from {self.start} of content {self.content_id}"
            )


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: when it arrives, what its prompt shares with others, and how long its answer is.

    Attributes:
        request_id: unique within its source.
        arrival_s: seconds since the start of the trace.
        segments: the prompt, in order.
        output_tokens: tokens that are generated for it.
        session_id: the conversation it belongs to, or "".
        tenant: whose request it is, or "".
        priority: lower runs first under the "priority" policy.
        timeout_s: seconds after arrival at which the client gives up, or None.
        output_segments: what the answer says, or () for a text of its own.
    """

    request_id: str
    arrival_s: float
    segments: tuple[Segment, ...]
    output_tokens: int
    session_id: str = ""
    tenant: str = ""
    priority: int = 0
    timeout_s: float | None = None
    output_segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that no request can have."""
        if not 0.0 <= self.arrival_s < math.inf:
            raise ConfigError(f"request {self.request_id}: arrival_s must be finite and not negative, got {self.arrival_s}")
        if not self.segments:
            raise ConfigError(f"request {self.request_id}: a prompt has at least one segment")
        if self.output_tokens < 1:
            raise ConfigError(f"request {self.request_id}: output_tokens must be at least 1, got {self.output_tokens}")
        if self.timeout_s is not None and not 0.0 < self.timeout_s < math.inf:
            raise ConfigError(f"request {self.request_id}: timeout_s must be finite and above 0, got {self.timeout_s}")
        if self.output_segments and sum(part.num_tokens for part in self.output_segments) != self.output_tokens:
            raise ConfigError(f"request {self.request_id}: output_segments must hold {self.output_tokens} tokens in all")

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return sum([segment.num_tokens for segment in self.segments])

    @property
    def answer(self) -> tuple[Segment, ...]:
        """The answer's content, `output_tokens` in all: what a later turn of the session repeats in its prompt."""
        return self.output_segments or (Segment(content_id("answer", self.request_id), self.output_tokens),)

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Tokens that end the answer before it has `output_tokens`; none, unless it is one that a model gave."""
        return frozenset()

    def arriving_at(self, arrival_s: float) -> TraceRequest:
        """The same request at another time, in seconds."""
        return TraceRequest(
            self.request_id,
            arrival_s,
            self.segments,
            self.output_tokens,
            self.session_id,
            self.tenant,
            self.priority,
            self.timeout_s,
            self.output_segments,
        )

    def token_ids(self, vocab_size: int) -> tuple[int, ...]:
        """The prompt's tokens, each at least 0 and below `vocab_size`."""
        return segment_tokens(self.segments, vocab_size)

    def answer_token_ids(self, vocab_size: int) -> tuple[int, ...]:
        """The answer's tokens, each at least 0 and below `vocab_size`."""
        return segment_tokens(self.answer, vocab_size)


class Source(Protocol):
    """Requests offered to a system. A source is used once: by one run, from beginning to end.

    An open loop only iterates; its arrivals know nothing of the system. A closed loop also reacts: it iterates over the
    requests that start it, and the rest come from `on_finish`.
    """

    def __iter__(self) -> Iterator[TraceRequest]:
        """The arrivals that do not depend on the system, in order of `arrival_s`; lazily, and possibly without end."""
        ...

    def on_finish(self, request: TraceRequest, now_s: float) -> Iterable[TraceRequest]:
        """The requests that the end of `request` at `now_s` brings about; each arrives at `now_s` or later.

        Called once for every request of this source, whether it was answered, failed or timed out. A source knows a
        request by its id: what wraps the source may have changed the rest.
        """
        ...


class OpenLoop:
    """Requests in order of arrival as a `Source` that does not react. Owns the iterable it is given."""

    def __init__(self, requests: Iterable[TraceRequest]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[TraceRequest]:
        """The requests themselves."""
        return iter(self._requests)

    def on_finish(self, request: TraceRequest, now_s: float) -> Iterable[TraceRequest]:  # noqa: ARG002
        """Nothing: an open loop does not react."""
        return ()


def content_id(*parts: str | int) -> int:
    """A 64-bit content id made of names and numbers; the same parts give the same id on any machine."""
    text = "\x1f".join([str(part) for part in parts])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def segment_tokens(segments: Sequence[Segment], vocab_size: int) -> tuple[int, ...]:
    """The tokens of `segments` in order, each at least 0 and below `vocab_size`.

    Token i of content c is the upper half of SplitMix64's i-th output under the seed mix(c), scaled to the vocabulary by a
    multiplication (Lemire, "Fast random integer generation in an interval", 2019).

    Raises:
        ConfigError: a vocabulary of less than 1 or more than 2^32 tokens.
    """
    if not 1 <= vocab_size <= 1 << 32:
        raise ConfigError(f"vocab_size must be between 1 and 2^32, got {vocab_size}")
    state = np.empty(sum([segment.num_tokens for segment in segments]), np.uint64)
    begin = 0
    for segment in segments:
        part = state[begin : begin + segment.num_tokens]
        part[:] = np.arange(segment.start + 1, segment.start + 1 + segment.num_tokens, dtype=np.uint64)
        part *= _GOLDEN
        part += np.uint64(_mix_one(segment.content_id))
        begin += segment.num_tokens
    tokens = ((_mix(state) >> _S32) * np.uint64(vocab_size)) >> _S32
    return tuple(tokens.tolist())


def _mix(state: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """SplitMix64's output function; wraps modulo 2^64."""
    mixed = (state ^ (state >> _S30)) * _MIX_1
    mixed = (mixed ^ (mixed >> _S27)) * _MIX_2
    return mixed ^ (mixed >> _S31)


def _mix_one(state: int) -> int:
    """`_mix` of a single number, for which numpy would take ten times as long."""
    mixed = (state ^ (state >> 30)) * int(_MIX_1) & _MASK
    mixed = (mixed ^ (mixed >> 27)) * int(_MIX_2) & _MASK
    return mixed ^ (mixed >> 31)
