"""The tokens of a prompt, as the model's backends will see them: for matching it with what their KV events name.

The gateway renders the template and encodes the text itself, on one thread beside the event loop: a call of the backend's
`/tokenize` would cost as much there and a round trip more, and would have to choose a backend before there is one to choose.
A prompt that takes too long, or that cannot be encoded here, is routed without tokens.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from argosy.errors import ArgosyError
from argosy.fleet.gateway.config_kv import TokenizerSettings
from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.policies.routing.request import chain_root, token_block_hashes
from argosy.observe.logs import log_event

if TYPE_CHECKING:
    from argosy.models.loaded import Tokenizer

_LOGGER = logging.getLogger("argosy.gateway.tokenizer")
# Where a text is cut, the tokens before the cut may be others than without it.
_UNSURE_CHARACTERS = 256
_TEMPLATE_CHANGES = ("chat_template", "documents", "response_role", "mm_processor_kwargs", "truncate_prompt_tokens")


class NotText(Exception):
    """The prompt is not one text, or not rendered by the model's own template."""


class PromptTokens:
    """Finds the tokens of the prompts of one model. `prepare` and `close` belong to the event loop of the data path.

    Attributes:
        num_without: prompts routed without tokens, by reason: "loading" or "failed" (the tokenizer), "busy" (too many wait),
            "timeout", "unsupported" (no text, or no endpoint with one), "refused" (by the template).
    """

    def __init__(self, settings: TokenizerSettings, *, load: Callable[[str], Tokenizer] | None = None) -> None:
        """Begins to load the tokenizer, on the thread that will use it."""
        self.num_without: dict[str, int] = {}
        self._settings = settings
        self._tokenizer: Tokenizer | None = None
        self._has_failed = False
        self._num_pending = 0
        self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="argosy-tokenizer")
        self._executor.submit(self._load, load or load_tokenizer)

    def prepare(self, exchange: Exchange, pool: str, block_tokens: int) -> Awaitable[None] | None:
        """Put the hashes of the prompt's blocks into `exchange.token_blocks[pool]`, () if they cannot be had.

        None if that is done; else to be awaited, for no longer than the settings say.
        """
        exchange.token_blocks[pool] = ()
        if self._tokenizer is None:
            reason = "failed" if self._has_failed else "loading"
        elif exchange.endpoint.kind not in ("chat", "completion"):
            reason = "unsupported"
        elif self._num_pending >= self._settings.max_pending:
            reason = "busy"
        else:
            return self._prepare(exchange, pool, block_tokens)
        self._without(reason)
        return None

    def close(self) -> None:
        """End the thread once it has done what it does. Idempotent."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _without(self, reason: str) -> None:
        self.num_without[reason] = self.num_without.get(reason, 0) + 1

    async def _prepare(self, exchange: Exchange, pool: str, block_tokens: int) -> None:
        root = chain_root(exchange.caller.cache_salt)
        work = self._executor.submit(self._hashes, exchange.endpoint.kind, exchange.document, block_tokens, root)
        self._num_pending += 1
        loop = asyncio.get_running_loop()
        work.add_done_callback(lambda _: _call_soon(loop, self._on_done))
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                exchange.token_blocks[pool] = await asyncio.wrap_future(work)
        except TimeoutError:
            self._without("timeout")
        except NotText:
            self._without("unsupported")
        except Exception as error:
            # A hint for routing fails no request; what is wrong with the prompt, its backend says.
            self._without("refused")
            if not isinstance(error, ArgosyError):
                log_event(_LOGGER, logging.WARNING, "a prompt could not be tokenized", reason=type(error).__name__)

    def _on_done(self) -> None:
        self._num_pending -= 1

    # ---- on the tokenizer's thread ----

    def _load(self, load: Callable[[str], Tokenizer]) -> None:
        name = self._settings.model
        try:
            self._tokenizer = load(name)
        except (ArgosyError, OSError, ImportError) as error:
            log_event(
                _LOGGER, logging.ERROR, "no tokenizer: prompts are matched approximately", model=name, reason=str(error)
            )
            self._has_failed = True
            return
        log_event(_LOGGER, logging.INFO, "tokenizer loaded", model=name)

    def _hashes(self, kind: str, document: Mapping[str, Any], block_tokens: int, root: int) -> tuple[int, ...]:
        assert self._tokenizer is not None
        tokens = prompt_tokens(self._tokenizer, kind, document, self._settings.max_characters)
        return token_block_hashes(tokens, block_tokens, root)


def prompt_tokens(tokenizer: Tokenizer, kind: str, document: Mapping[str, Any], max_characters: int) -> Sequence[int]:
    """The leading tokens of a request's prompt; of a text longer than `max_characters`, those that are sure.

    Raises:
        NotText: the prompt is not one text or one list of tokens, or the request changes how it is rendered.
        InvalidRequest: the template refuses the messages.
    """
    if any(document.get(name) is not None for name in _TEMPLATE_CHANGES):
        raise NotText
    is_chat = kind == "chat"
    if not is_chat:
        prompt = document.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
            return prompt
        if not isinstance(prompt, str):
            raise NotText
        text = prompt
    else:
        text = _render(tokenizer, document)
    special = document.get("add_special_tokens", not is_chat)
    if not isinstance(special, bool):
        raise NotText
    if len(text) <= max_characters:
        return tokenizer.encode(text, add_special_tokens=special)
    ids = tokenizer.encode(text[:max_characters], add_special_tokens=special)
    unsure = text[max(0, max_characters - _UNSURE_CHARACTERS) : max_characters]
    num_unsure = len(tokenizer.encode(unsure, add_special_tokens=False))
    return ids[: max(0, len(ids) - num_unsure)]


def _render(tokenizer: Tokenizer, document: Mapping[str, Any]) -> str:
    messages = document.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, Mapping) for each in messages):
        raise NotText
    continues = document.get("continue_final_message") is True
    begins = document.get("add_generation_prompt")
    variables = document.get("chat_template_kwargs")
    tools = document.get("tools")
    if document.get("tool_choice") == "none":
        tools = None
    return tokenizer.apply_chat_template(
        [_plain(message) for message in messages],
        tools=tools or None,
        add_generation_prompt=not continues if begins is None else begins is True,
        continue_final_message=continues,
        variables=variables if isinstance(variables, Mapping) else None,
    )


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message as engines give it to the template: "developer" is the later name of "system", nulls are left out."""
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
            raise NotText
        content = "\n".join(str(part.get("text", "")) for part in content)
    role = message.get("role")
    plain = {name: value for name, value in message.items() if value is not None}
    return {**plain, "role": "system" if role == "developer" else role, "content": content}


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a model of the catalogue, fetched if need be, or at a path. Blocks.

    Raises:
        ArgosyError: whatever finding, fetching and reading it raises.
    """
    from argosy.models.gguf_file import GgufFile
    from argosy.models.resolve import resolve
    from argosy.models.tokenizers import tokenizer_from_folder, tokenizer_from_gguf

    folder = Path(model).expanduser()
    # A folder of tokenizer files alone will do, which `resolve` would not take for a model.
    if (folder / "tokenizer.json").is_file():
        return tokenizer_from_folder(folder)
    found = resolve(model)
    return tokenizer_from_gguf(GgufFile(found.path).metadata) if found.kind == "gguf" else tokenizer_from_folder(found.path)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)
