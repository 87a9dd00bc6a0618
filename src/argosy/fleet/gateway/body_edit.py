"""Changes single members of a JSON object in its bytes; every other byte stays as the client wrote it.

Parsing and writing anew would change numbers (1e3, 0.10, integers beyond 64 bits), escapes and the order of members, and
would drop all but one of several members with one name. Here a name that comes several times, or written with escapes, is
changed wherever it stands: which one a backend goes by is not ours to guess.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import orjson

_TOKEN = re.compile(rb'"(?>[^"\\]+|\\.)*"|\[[^][{}"]*\]|[][{},:]', re.DOTALL)
_NESTED_TOKEN = re.compile(rb'"(?>[^"\\]+|\\.)*"|[][{}]', re.DOTALL)
_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the top-level object: `name` decoded, and where it lies.

    Attributes:
        begin: of the name's first quote; value_begin, value_end: of the value without the space around it.
    """

    name: str
    begin: int
    value_begin: int
    value_end: int


def top_level_members(body: bytes) -> list[Member]:
    """The members of the object that `body`, a valid JSON text, consists of, in order. O(len(body))."""
    members: list[Member] = []
    depth = 0
    name = ""
    name_begin = value_begin = -1
    at = 0
    # Within a value only its end is looked for: commas by the million would be looked at one by one.
    while (token := (_TOKEN if depth <= 1 else _NESTED_TOKEN).search(body, at)) is not None:
        at = token.end()
        first = body[token.start()]
        if first == 0x22:  # a string: a name if no value is awaited
            if depth == 1 and value_begin < 0 and name_begin < 0:
                name_begin = token.start()
                name = orjson.loads(token[0])
        elif first == 0x3A:
            if depth == 1:
                value_begin = token.end()
        elif first in b"}," and depth == 1:
            if name_begin >= 0:
                members.append(_member(body, name, name_begin, value_begin, token.start()))
            name_begin = value_begin = -1
            depth -= first == 0x7D
        elif first == 0x7B or (first == 0x5B and token.end() - token.start() == 1):
            depth += 1
        elif first in b"]}" and token.end() - token.start() == 1:
            depth -= 1
    return members


def _member(body: bytes, name: str, name_begin: int, begin: int, end: int) -> Member:
    while body[begin] in _SPACE:
        begin += 1
    while body[end - 1] in _SPACE:
        end -= 1
    return Member(name, name_begin, begin, end)


def insert_members(body: bytes, added: Mapping[str, bytes]) -> bytes:
    """`body`, a JSON object that has members but none called so, with those of `added` (JSON text) in front."""
    begin = body.index(b"{") + 1
    members = b"".join([b"%b:%b," % (orjson.dumps(name), value) for name, value in added.items()])
    return body[:begin] + members + body[begin:]


def is_sole_member(body: bytes, name: str) -> bool:
    """Whether a member that `body` has is certain to be there once, without looking at all of it; False if in doubt.

    Inside a string a quote is escaped, so the quoted name can stand nowhere but as a name or a whole value; and only with
    `\\u` can a name be written otherwise.
    """
    return body.count(b'"%b"' % name.encode()) == 1 and b"\\u" not in body


def edit_members(body: bytes, members: list[Member], changes: Mapping[str, bytes], removals: Collection[str] = ()) -> bytes:
    """`body` with the values of `changes` (JSON text) in place of, or beside, its own, and without `removals`.

    Args:
        members: as `top_level_members(body)` gives them.
    """
    kept = [member for member in members if member.name not in removals]
    pieces: list[bytes] = []
    if len(kept) == len(members):
        at = 0
        for member in members:
            if member.name in changes:
                pieces += [body[at : member.value_begin], changes[member.name]]
                at = member.value_end
        tail = body[at:]
    else:
        for member in kept:
            pieces += [b"," if pieces else b"{", body[member.begin : member.value_begin]]
            pieces.append(changes.get(member.name) or body[member.value_begin : member.value_end])
        pieces = pieces or [b"{"]
        tail = b"}"
    present = {member.name for member in kept}
    added = [b"%b:%b" % (orjson.dumps(name), value) for name, value in changes.items() if name not in present]
    if added:
        pieces.append(tail[: tail.rindex(b"}")])
        pieces += [b"," if kept else b"", b",".join(added), b"}"]
    else:
        pieces.append(tail)
    return b"".join(pieces)
