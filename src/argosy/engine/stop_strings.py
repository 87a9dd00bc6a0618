"""Stop strings found in streamed text, with no more of it held back than a match may need.

The match that is complete first ends the text; of several complete at one character the longest counts, so that no part of
any of them is shown. Both depend on the text alone, not on how it was cut into tokens.

The automaton is that of Aho & Corasick, "Efficient String Matching" (1975). Its state is the longest suffix of the text that
begins some stop string, which is exactly the text that must be held:

    stop string "hers"    text       u  s  h  e   r    d     h  e   r    s
                          held       -  -  h  he  her  -     h  he  her  match
                          released   u  s  -  -   -    herd  -  -   -    -
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

_ROOT = 0


class StopAutomaton:
    """All stop strings of a request as one automaton; immutable, shared by the sequences of the request.

    Building takes time and space linear in the total length of `stops`, which must not be empty strings.

    Attributes:
        depth: per state, the length of the text it stands for.
        spelling: per state, a stop string that begins with that text.
        match: per state, the longest stop string that ends there, or None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._children: list[dict[str, int]] = [{}]
        self._fallback: list[int] = [_ROOT]
        self.depth: list[int] = [0]
        self.spelling: list[str] = [""]
        self.match: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._link()

    def next_state(self, state: int, char: str) -> int:
        """The state after `char`. Amortised constant time over a text."""
        while (child := self._children[state].get(char)) is None:
            if state == _ROOT:
                return _ROOT
            state = self._fallback[state]
        return child

    def _insert(self, stop: str) -> None:
        state = _ROOT
        for length, char in enumerate(stop, start=1):
            child = self._children[state].get(char)
            if child is None:
                child = len(self._children)
                self._children[state][char] = child
                self._children.append({})
                self._fallback.append(_ROOT)
                self.depth.append(length)
                self.spelling.append(stop)
                self.match.append(None)
            state = child
        self.match[state] = stop

    def _link(self) -> None:
        """Set each state's fallback, its longest proper suffix that is a state, in order of depth."""
        queue = deque(self._children[_ROOT].values())
        while queue:
            state = queue.popleft()
            for char, child in self._children[state].items():
                self._fallback[child] = self.next_state(self._fallback[state], char)
                queue.append(child)
            if self.match[state] is None:
                self.match[state] = self.match[self._fallback[state]]


class StopScan(NamedTuple):
    """Text released, and the stop string that ended the text, or None."""

    text: str
    matched: str | None


class StopMatcher:
    """Looks for stop strings in the text of one sequence.

    Mutated by `feed` and `release` only. What is held is not stored: the automaton's state spells it.
    """

    def __init__(self, automaton: StopAutomaton, *, include_stop: bool) -> None:
        self._automaton = automaton
        self._include_stop = include_stop
        self._state = _ROOT

    def feed(self, text: str) -> StopScan:
        """Take the next text and return what is certain to be output.

        On a match that is everything before the stop string, or up to its end with `include_stop`; what follows it is
        dropped, and nothing may be fed afterwards. Without a match the longest suffix that a stop string begins with is
        held back, unless `include_stop`, when no match could take it away.
        """
        automaton, before, state = self._automaton, self._state, self._state
        for consumed, char in enumerate(text, start=1):
            state = automaton.next_state(state, char)
            matched = automaton.match[state]
            if matched is not None:
                self._state = _ROOT
                if self._include_stop:
                    return StopScan(text[:consumed], matched)
                return StopScan(self._head(before, text, automaton.depth[before] + consumed - len(matched)), matched)
        self._state = state
        if self._include_stop:
            return StopScan(text, None)
        return StopScan(self._head(before, text, automaton.depth[before] + len(text) - automaton.depth[state]), None)

    def release(self) -> str:
        """End the text without a match and return what is held."""
        held = "" if self._include_stop else self._automaton.spelling[self._state][: self._automaton.depth[self._state]]
        self._state = _ROOT
        return held

    def _head(self, before: int, text: str, length: int) -> str:
        """The first `length` characters of the text held in state `before` followed by `text`."""
        held_length = self._automaton.depth[before]
        if length <= held_length:
            return self._automaton.spelling[before][:length]
        return self._automaton.spelling[before][:held_length] + text[: length - held_length]
