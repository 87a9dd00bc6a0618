"""What engines publish of their KV blocks, as vLLM writes it, turned into events of the gateway's own.

A message has three parts: topic, sequence number (8 bytes, big-endian), and in MessagePack `[seconds, [event, ...], rank]`.
An event is a map with `type` (vLLM) or, from older versions and from SGLang, an array that begins with it:

    BlockStored       block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name, extra_keys, ...
    BlockRemoved      block_hashes, medium, group_idx, ...
    AllBlocksCleared

Fields were appended over time and may be missing at the end; those that come after the ones known here are passed over. The
format is that of `vllm/distributed/kv_events.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from argosy.fleet.gateway.kv_events import AllCleared, BlocksRemoved, BlocksStored, KvEvent

END_OF_REPLAY = -1
MAX_SEQUENCE = 2**63 - 1
_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "BlockStored": (
            "block_hashes",
            "parent_block_hash",
            "token_ids",
            "block_size",
            "lora_id",
            "medium",
            "lora_name",
            "extra_keys",
            "group_idx",
            "kv_cache_spec_kind",
            "kv_cache_spec_sliding_window",
            "locality",
        ),
        "BlockRemoved": ("block_hashes", "medium", "group_idx", "locality"),
        "AllBlocksCleared": (),
    }
)
_IN_REACH = frozenset({None, "GPU", "gpu"})  # the engine's own memory, as opposed to where blocks were moved out to
_WHOLE_PREFIX_KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})


class MalformedEvent(ValueError):
    """Something that cannot be understood; what follows it cannot be trusted either."""


def read_sequence(frame: bytes) -> int:
    """The number in the second part of a message, `END_OF_REPLAY` after the last one of a replay.

    Raises:
        MalformedEvent: it is no such number.
    """
    number = int.from_bytes(frame, "big", signed=True) if len(frame) == 8 else None
    if number is None or not END_OF_REPLAY <= number < MAX_SEQUENCE:
        raise MalformedEvent("the sequence number of a KV event message must be 8 bytes, from 0 up")
    return number


class EventReader:
    """Decodes the messages of one backend.

    Engines with several kinds of attention publish every block once per kind ("group"). One that keeps whole prefixes is
    read, the first of them; sliding windows and states say nothing about how much of a prefix is there. So are blocks that
    were moved out of the engine's memory, and those of images, whose tokens do not tell what is in them.
    """

    def __init__(self) -> None:
        self._group: int | None = None

    def read(self, payload: bytes) -> list[KvEvent]:
        """The events of a message's third part.

        Raises:
            MalformedEvent: it is not MessagePack, or an event is unknown, lacks a field or has a wrong one.
        """
        try:
            batch = msgspec.msgpack.decode(payload)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError, TypeError) as error:
            raise MalformedEvent(f"a KV event message is not MessagePack: {error}") from None
        if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
            raise MalformedEvent("a KV event message must be an array of a time and an array of events")
        events = [self.decode(event) for event in batch[1]]
        return [event for event in events if event is not None]

    def decode(self, event: object) -> KvEvent | None:
        """One event; None for one that says nothing about the prefixes of texts.

        Raises:
            MalformedEvent: the type is unknown, or a field is missing or wrong.
        """
        kind, fields = _named(event)
        try:
            if kind == "AllBlocksCleared":
                return AllCleared()
            if not self._matters(fields):
                return None
            return _removed(fields) if kind == "BlockRemoved" else _stored(fields)
        except MalformedEvent:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise MalformedEvent(f"a KV event lacks or garbles a field: {error}") from None

    def _matters(self, fields: Mapping[str, Any]) -> bool:
        if fields.get("medium") not in _IN_REACH or fields.get("locality") == "REMOTE":
            return False
        group = fields.get("group_idx")
        if group is None:
            return True
        if self._group is None and "token_ids" in fields and fields.get("kv_cache_spec_kind") in _WHOLE_PREFIX_KINDS:
            self._group = int(group)
        return bool(group == self._group)


def split_events(events: Sequence[KvEvent], max_blocks: int) -> Iterator[list[KvEvent]]:
    """The events in order, in portions of at most `max_blocks` blocks each."""
    portion: list[KvEvent] = []
    room = max_blocks
    for event in events:
        for piece in _pieces(event, max_blocks):
            size = 1 if isinstance(piece, AllCleared) else len(piece.block_ids)
            if portion and size > room:
                yield portion
                portion, room = [], max_blocks
            portion.append(piece)
            room -= size
    if portion:
        yield portion


def _pieces(event: KvEvent, max_blocks: int) -> Iterator[KvEvent]:
    if isinstance(event, AllCleared) or len(event.block_ids) <= max_blocks:
        yield event
        return
    ids = event.block_ids
    for first in range(0, len(ids), max_blocks):
        part = ids[first : first + max_blocks]
        if isinstance(event, BlocksRemoved):
            yield BlocksRemoved(part)
            continue
        size = len(event.token_ids) // len(ids)
        tokens = event.token_ids[first * size : (first + len(part)) * size]
        parent = ids[first - 1] if first else event.parent_block_id
        yield BlocksStored(part, parent, tokens, event.cache_salt, event.adapter_id)


def _named(event: object) -> tuple[str, Mapping[str, Any]]:
    """The type of an event and its fields by name, whichever of the two forms it has."""
    if isinstance(event, Mapping):
        kind: object = event.get("type")
        fields: Mapping[str, Any] = event
    elif isinstance(event, list) and event:
        kind = event[0]
        names = _FIELDS.get(kind, ()) if isinstance(kind, str) else ()
        fields = dict(zip(names, event[1:], strict=False))
    else:
        raise MalformedEvent("a KV event must be a map or an array that begins with its type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise MalformedEvent(f"the type {str(kind)[:80]!r} of a KV event is unknown")
    return kind, fields


def _removed(fields: Mapping[str, Any]) -> BlocksRemoved:
    return BlocksRemoved(_block_ids(fields))


def _stored(fields: Mapping[str, Any]) -> BlocksStored | None:
    blocks = _block_ids(fields)
    tokens = fields["token_ids"]
    if not isinstance(tokens, list) or any(type(token) is not int for token in tokens):
        raise MalformedEvent("token_ids of a KV event must be an array of integers")
    block_tokens = fields["block_size"]
    if type(block_tokens) is not int or block_tokens < 1 or len(tokens) != len(blocks) * block_tokens:
        raise MalformedEvent(f"a KV event has {len(blocks)} blocks and {len(tokens)} tokens, which do not fit each other")
    parent = fields.get("parent_block_hash")
    adapter = fields.get("lora_name") or fields.get("lora_id")
    salt, num_texts = _read_keys(fields.get("extra_keys"), adapter, len(blocks), is_first=parent is None)
    if not num_texts:
        return None
    return BlocksStored(
        blocks[:num_texts],
        None if parent is None else _block_id(parent),
        tuple(tokens[: num_texts * block_tokens]),
        cache_salt=salt,
        adapter_id="" if adapter is None else str(adapter),
    )


def _read_keys(extra_keys: object, adapter: object, num_blocks: int, *, is_first: bool) -> tuple[str, int]:
    """The cache salt, and how many of the blocks, from the first, hold nothing but text.

    A block's keys are, in this order and where there are any: the adapter's name, pairs for images, the salt (of a prompt's
    first block only), digests of embeddings given as a prompt.
    """
    if extra_keys is None:
        return "", num_blocks
    if not isinstance(extra_keys, list) or len(extra_keys) != num_blocks:
        raise MalformedEvent("extra_keys of a KV event must be an array with an entry per block")
    salt = ""
    for place, keys in enumerate(extra_keys):
        rest = list(keys or ())
        if adapter is not None and rest and rest[0] == adapter:
            del rest[0]
        if is_first and place == 0 and rest and isinstance(rest[0], str):
            salt = rest.pop(0)
        if rest:
            return salt, place
    return salt, num_blocks


def _block_ids(fields: Mapping[str, Any]) -> tuple[int, ...]:
    hashes = fields["block_hashes"]
    if not isinstance(hashes, list):
        raise MalformedEvent("block_hashes of a KV event must be an array")
    return tuple(_block_id(each) for each in hashes)


def _block_id(value: object) -> int:
    """vLLM names blocks by integers or, with a cryptographic hash, by bytes."""
    if isinstance(value, bytes):
        return int.from_bytes(value[:8], "big")
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedEvent("the hash of a block must be an integer or bytes")
    return value
