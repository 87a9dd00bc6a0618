"""Generated requests: arrivals that each bring one request or begin a conversation.

Every quantity has a random stream of its own, so that changing one distribution, or adding one, leaves the draws of all
others as they were. A conversation is drawn whole when it begins: what it says does not depend on when answers end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Protocol

from argosy.errors import ConfigError
from argosy.sim.random_streams import RandomStreams
from argosy.sim.workload.distributions import Distribution, weighted_index
from argosy.sim.workload.requests import SINGLE_TURN, RequestShape, SystemPrompts
from argosy.sim.workload.trace_files import trace_requests
from argosy.sim.workload.trace_lines import MAX_REQUEST_TOKENS
from argosy.sim.workload.trace_request import Segment, TraceRequest, content_id


@dataclass(frozen=True, slots=True)
class _Turn:
    think_s: float
    user_tokens: int
    output_tokens: int


@dataclass(slots=True)
class _Session:
    """A conversation with turns still to come: what was said so far, and the turns from `next_turn` on."""

    session_id: str
    segments: tuple[Segment, ...]
    turns: tuple[_Turn, ...]
    next_turn: int


class _LengthPairs(Protocol):
    def draw(self) -> tuple[int, int]:
        """Tokens of the user's text and of the answer."""
        ...


class GeneratedSource:
    """A `Source` of requests named `name/0`, `name/1`, …; turns of conversation c are `name/c.0`, `name/c.1`, …

    Memory holds the conversations that are under way, not those that are over.

    Raises:
        ConfigError: a trace file that lengths are drawn from is wrong.
    """

    def __init__(
        self, name: str, times: Iterator[float], shape: RequestShape, streams: RandomStreams, folder: Path = Path()
    ) -> None:
        self._name = name
        self._times = times
        self._lengths = _length_pairs(name, shape, streams, folder)
        self._system = None if shape.system_prompts is None else _SystemDraws(name, shape.system_prompts, streams, folder)
        conversation = shape.conversation or SINGLE_TURN
        self._is_conversation = shape.conversation is not None
        self._num_turns = conversation.turns.resolved(folder)
        self._think_s = conversation.think_s.resolved(folder)
        self._max_prompt_tokens = conversation.max_prompt_tokens
        self._turns_rng = streams.python(f"workload/{name}/turns")
        self._think_rng = streams.python(f"workload/{name}/think")
        self._sessions: dict[str, _Session] = {}

    def __iter__(self) -> Iterator[TraceRequest]:
        """Single requests, or the first turns of conversations."""
        for number, arrival_s in enumerate(self._times):
            session_id = f"{self._name}/{number}"
            system = () if self._system is None else (self._system.draw(),)
            session = _Session(session_id, system, self._plan(sum(part.num_tokens for part in system)), 0)
            yield self._next_turn(session, arrival_s)

    def on_finish(self, request: TraceRequest, now_s: float) -> Iterable[TraceRequest]:
        """The next turn of the conversation, if there is one, after the user has thought."""
        session = self._sessions.pop(request.request_id, None)
        if session is None:
            return ()
        return (self._next_turn(session, now_s + session.turns[session.next_turn].think_s),)

    def _plan(self, prompt_tokens: int) -> tuple[_Turn, ...]:
        """All turns of a conversation that begins with a system prompt of `prompt_tokens`."""
        turns: list[_Turn] = []
        for number in range(self._num_turns.draw_whole(self._turns_rng)):
            user_tokens, output_tokens = self._lengths.draw()
            prompt_tokens += user_tokens
            if number and self._max_prompt_tokens is not None and prompt_tokens > self._max_prompt_tokens:
                break
            think_s = self._think_s.draw(self._think_rng) if number else 0.0
            turns.append(_Turn(think_s, user_tokens, output_tokens))
            prompt_tokens += output_tokens
        return tuple(turns)

    def _next_turn(self, session: _Session, arrival_s: float) -> TraceRequest:
        number = session.next_turn
        turn = session.turns[number]
        request_id = f"{session.session_id}.{number}" if self._is_conversation else session.session_id
        request = TraceRequest(
            request_id=request_id,
            arrival_s=arrival_s,
            segments=(*session.segments, Segment(content_id("user", request_id), turn.user_tokens)),
            output_tokens=turn.output_tokens,
            session_id=session.session_id if self._is_conversation else "",
        )
        if number + 1 < len(session.turns):
            session.segments = (*request.segments, *request.answer)
            session.next_turn = number + 1
            self._sessions[request_id] = session
        return request


class _Independent:
    """Lengths of both texts from a distribution and a stream each."""

    def __init__(self, user: Distribution, output: Distribution, user_rng: Random, output_rng: Random) -> None:
        self._user, self._output = user, output
        self._user_rng, self._output_rng = user_rng, output_rng

    def draw(self) -> tuple[int, int]:
        return _sane(self._user.draw_whole(self._user_rng)), _sane(self._output.draw_whole(self._output_rng))


class _Paired:
    """Lengths of both texts from one request of a trace."""

    def __init__(self, pairs: list[tuple[int, int]], rng: Random) -> None:
        self._pairs, self._rng = pairs, rng

    def draw(self) -> tuple[int, int]:
        return self._pairs[self._rng.randrange(len(self._pairs))]


class _SystemDraws:
    """The system prompts of a source, drawn with Zipf's shares."""

    def __init__(self, name: str, prompts: SystemPrompts, streams: RandomStreams, folder: Path) -> None:
        lengths, rng = prompts.tokens.resolved(folder), streams.python(f"workload/{name}/system_lengths")
        self._segments = [
            Segment(content_id("system", name, number), _sane(lengths.draw_whole(rng))) for number in range(prompts.count)
        ]
        self._bounds = tuple(accumulate((number + 1) ** -prompts.zipf for number in range(prompts.count)))
        self._rng = streams.python(f"workload/{name}/system")

    def draw(self) -> Segment:
        """The system prompt of one conversation."""
        return self._segments[weighted_index(self._bounds, self._rng)]


def _length_pairs(name: str, shape: RequestShape, streams: RandomStreams, folder: Path) -> _LengthPairs:
    if shape.user_tokens is not None and shape.output_tokens is not None:
        user, output = shape.user_tokens.resolved(folder), shape.output_tokens.resolved(folder)
        user_rng, output_rng = (streams.python(f"workload/{name}/{kind}_tokens") for kind in ("user", "output"))
        return _Independent(user, output, user_rng, output_rng)
    assert shape.lengths_from is not None
    pairs = [(request.num_prompt_tokens, request.output_tokens) for request in trace_requests(folder / shape.lengths_from)]
    return _Paired(pairs, streams.python(f"workload/{name}/lengths"))


def _sane(tokens: int) -> int:
    if tokens > MAX_REQUEST_TOKENS:
        raise ConfigError(
            f"a length of {tokens} tokens was drawn, above the {MAX_REQUEST_TOKENS} that a request may have; give the "
            "distribution a max"
        )
    return tokens
