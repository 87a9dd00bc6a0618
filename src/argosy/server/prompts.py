"""From messages or prompts to token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from argosy.errors import InvalidRequest
from argosy.models.loaded import Tokenizer
from argosy.server.protocol.chat import ChatCompletionRequest
from argosy.server.protocol.completions import CompletionRequest
from argosy.server.protocol.tokenize import TokenizeRequest

Result = TypeVar("Result")
INLINE_CHARACTERS = 16_384
CHARACTERS_PER_MESSAGE = 64
"""Text that takes about as long to encode as a template takes for the frame of a message."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt ready to submit.

    Attributes:
        text: what `echo` gives back.
        field: where it stands in the request, e.g. `prompt[1]`; a refusal names it.
    """

    token_ids: tuple[int, ...]
    text: str
    field: str


async def encode_chat(request: ChatCompletionRequest | TokenizeRequest, tokenizer: Tokenizer) -> EncodedPrompt:
    """Render the messages with the model's template and encode them; the template writes BOS itself.

    Raises:
        InvalidRequest: the model has no template, or the template refuses the messages.
    """
    messages = [
        {"role": "system" if m.role == "developer" else m.role, "content": m.text, **({"name": m.name} if m.name else {})}
        for m in request.messages or ()
    ]
    if request.add_generation_prompt and request.continue_final_message:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message exclude each other", param="continue_final_message"
        )
    generation_prompt = request.add_generation_prompt
    if generation_prompt is None:
        generation_prompt = not request.continue_final_message

    def render_and_encode() -> EncodedPrompt:
        text = tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=generation_prompt,
            continue_final_message=request.continue_final_message,
            variables=request.chat_template_kwargs,
        )
        return EncodedPrompt(tuple(tokenizer.encode(text, add_special_tokens=False)), text, "messages")

    try:
        prompt = await _run(render_and_encode, sum(len(m["content"]) + CHARACTERS_PER_MESSAGE for m in messages))
    except InvalidRequest as error:
        error.param = error.param or "messages"
        raise
    if not prompt.token_ids:
        raise InvalidRequest("messages: the model's template makes an empty prompt of them", param="messages")
    return prompt


async def encode_prompts(request: CompletionRequest, tokenizer: Tokenizer, max_prompts: int) -> list[EncodedPrompt]:
    """The prompts of a text completion.

    Raises:
        InvalidRequest: too many prompts, or one without a token.
    """
    prompts = request.prompts
    if len(prompts) > max_prompts:
        raise InvalidRequest(f"prompt has {len(prompts)} prompts, this server takes {max_prompts}", param="prompt")

    def encode(prompt: str | list[int], field: str) -> EncodedPrompt:
        if isinstance(prompt, str):
            ids = tokenizer.encode(prompt, add_special_tokens=request.add_special_tokens)
            return EncodedPrompt(tuple(ids), prompt, field)
        text = tokenizer.decode(prompt, skip_special_tokens=request.skip_special_tokens) if request.echo else ""
        return EncodedPrompt(tuple(prompt), text, field)

    fields = [f"prompt[{i}]" for i in range(len(prompts))] if prompts is request.prompt else ["prompt"]
    encoded = await _run(lambda: list(map(encode, prompts, fields)), sum(map(len, prompts)))
    for prompt in encoded:
        if not prompt.token_ids:
            field = prompt.field
            raise InvalidRequest(f"{field} is empty: this model needs at least one token to start from", param=field)
    return encoded


async def encode_text(text: str, tokenizer: Tokenizer, *, add_special_tokens: bool) -> list[int]:
    """Ids of `text`."""
    return await _run(lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens), len(text))


async def decode_ids(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Text of `ids`, special tokens included."""
    return await _run(lambda: tokenizer.decode(ids, skip_special_tokens=False), len(ids))


async def _run(work: Callable[[], Result], size: int) -> Result:
    """What is large is worked on by a thread, so that the streams of others go on meanwhile."""
    return work() if size <= INLINE_CHARACTERS else await asyncio.to_thread(work)
