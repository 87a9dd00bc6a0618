"""What routing may know of a request: names, sizes, and its prompt as a chain of block hashes, never its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """One request, as far as it matters for where it goes.

    Attributes:
        request_id: unique among the requests alive.
        model: name of the model asked for, or "" if the replicas all serve one.
        prompt_tokens: length of the prompt, counted or estimated; 0 for a prompt without text.
        expected_output_tokens: an estimate, such as a quantile of earlier answers.
        prefix_blocks: hash of each leading block of the prompt, chained, as `token_block_hashes` makes them.
        prefix_block_tokens: tokens per block of `prefix_blocks`, counted or estimated.
        sent_blocks, sent_block_tokens: the same prompt as it was written, for who has no tokens of it.
        affinity_key: keeps requests with the same key together: a conversation, a session or a user; "" for none.
        tenant, region: where the request comes from; "" if unknown.
        allowed_regions: the only regions that may serve it; empty for any.
        required_labels: labels that a replica must carry to serve it.
        adapter_id: content id of the LoRA adapter, or "".
        tried: ids of the replicas that failed it before.
    """

    request_id: str
    model: str = ""
    prompt_tokens: int = 0
    expected_output_tokens: int = 0
    prefix_blocks: tuple[int, ...] = ()
    prefix_block_tokens: int = 0
    sent_blocks: tuple[int, ...] = ()
    sent_block_tokens: int = 0
    affinity_key: str = ""
    tenant: str = ""
    region: str = ""
    allowed_regions: frozenset[str] = frozenset()
    required_labels: frozenset[tuple[str, str]] = frozenset()
    adapter_id: str = ""
    tried: frozenset[str] = frozenset()


def stable_hash(text: str) -> int:
    """A 64-bit hash that is the same in every process, unlike `hash(str)`."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def chain_root(cache_salt: str, adapter_id: str = "") -> int:
    """Where a chain of block hashes begins: prefixes of different tenants or adapters share no hash.

    The length in front keeps ("a", "bc") and ("ab", "c") apart.
    """
    return stable_hash(f"{len(cache_salt)}:{cache_salt}{adapter_id}")


def chain_block(parent: int, token_ids: tuple[int, ...]) -> int:
    """The hash of a block that follows the block (or root) with hash `parent`. Equal in every 64-bit process."""
    return hash((parent, token_ids))


def token_block_hashes(token_ids: Sequence[int], block_tokens: int, root: int) -> tuple[int, ...]:
    """One hash per whole block of `block_tokens` tokens, each covering everything from the start of the prompt.

    The hashes only say where a prefix probably lies: a collision sends a request to a replica that must compute the prompt
    after all. What is reused is decided by the engine, which compares tokens.
    """
    hashes: list[int] = []
    parent = root
    edges = range(0, len(token_ids) + 1, block_tokens)
    for begin, end in pairwise(edges):
        parent = chain_block(parent, tuple(token_ids[begin:end]))
        hashes.append(parent)
    return tuple(hashes)


def text_block_hashes(text: bytes, block_bytes: int, root: int) -> tuple[int, ...]:
    """As `token_block_hashes`, over the bytes of a prompt, for a router that has no tokenizer."""
    hashes: list[int] = []
    parent = root
    for begin, end in pairwise(range(0, len(text) + 1, block_bytes)):
        digest = blake2b(text[begin:end], digest_size=8, key=(parent & (2**64 - 1)).to_bytes(8, "big")).digest()
        parent = int.from_bytes(digest, "big")
        hashes.append(parent)
    return tuple(hashes)
