"""The beginning of a prompt as a chain of hashes, for routing to who has computed it already."""

from __future__ import annotations

from argosy.fleet.gateway.body_edit import top_level_members
from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.policies.routing.request import chain_root, text_block_hashes

BLOCK_TOKENS = 64
_BLOCK_BYTES = 4 * BLOCK_TOKENS
_MAX_BYTES = 512 * _BLOCK_BYTES
_FIELDS = frozenset({"messages", "prompt", "input", "system", "instructions", "tools"})


def prompt_prefix(exchange: Exchange) -> tuple[tuple[int, ...], int]:
    """Hashes of the prompt's blocks, and the tokens that one block counts as.

    They are hashes of the request's bytes, in the order in which engines render them: tools and system before messages.
    Different tenants share no hash. A prompt beyond 512 blocks is compared up to there.
    """
    body = exchange.body
    parts = {each.name: body[each.value_begin : each.value_end] for each in top_level_members(body) if each.name in _FIELDS}
    order = ("tools", "system", "instructions", "messages", "prompt", "input")
    text = b"\0".join(parts[name] for name in order if name in parts)[:_MAX_BYTES]
    root = chain_root(f"{exchange.caller.tenant}:{exchange.caller.cache_salt}")
    return text_block_hashes(text, _BLOCK_BYTES, root), BLOCK_TOKENS
