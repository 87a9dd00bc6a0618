"""From messages or prompts to token ids. What is here takes as long as the texts are; see `side_work`."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.errors import ContextLengthExceeded, InvalidRequest
from argosy.models.loaded import Tokenizer
from argosy.server.protocol.chat import ChatCompletionRequest
from argosy.server.protocol.completions import CompletionRequest
from argosy.server.protocol.tokenize import TokenizeRequest

CHARACTERS_PER_MESSAGE = 64
"""Text that takes about as long to encode as a template takes for the frame of a message."""

MAX_TEXT_CHARACTERS = 1 << 20
MAX_CHARACTERS_PER_TOKEN = 32


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


def check_text_length(num_characters: int, field: str, max_model_len: int) -> None:
    """Raise `ContextLengthExceeded` for a text that is not worth encoding, which takes 200 times its size in memory.

    The limit is `MAX_TEXT_CHARACTERS`, or for a very long context `MAX_CHARACTERS_PER_TOKEN` times its tokens.
    """
    limit = max(MAX_TEXT_CHARACTERS, MAX_CHARACTERS_PER_TOKEN * max_model_len)
    if num_characters > limit:
        raise ContextLengthExceeded(
            f"{field}: {num_characters} characters of text are more than the {limit} that this server encodes at once, and "
            f"the context holds {max_model_len} tokens: shorten it",
            param=field,
        )


def encode_chat(
    request: ChatCompletionRequest | TokenizeRequest, tokenizer: Tokenizer, *, max_model_len: int
) -> EncodedPrompt:
    """Render the messages with the model's template and encode them; the template writes BOS itself.

    Raises:
        InvalidRequest: the model has no template, or the template refuses the messages.
        ContextLengthExceeded: see `check_text_length`.
    """
    if request.add_generation_prompt and request.continue_final_message:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message exclude each other", param="continue_final_message"
        )
    generation_prompt = request.add_generation_prompt
    if generation_prompt is None:
        generation_prompt = not request.continue_final_message
    messages = [
        {"role": "system" if m.role == "developer" else m.role, "content": m.text, **({"name": m.name} if m.name else {})}
        for m in request.messages or ()
    ]
    check_text_length(sum(len(m["content"]) for m in messages), "messages", max_model_len)
    try:
        text = tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=generation_prompt,
            continue_final_message=request.continue_final_message,
            variables=request.chat_template_kwargs,
        )
        check_text_length(len(text), "messages", max_model_len)
        prompt = EncodedPrompt(tuple(tokenizer.encode(text, add_special_tokens=False)), text, "messages")
    except InvalidRequest as error:
        error.param = error.param or "messages"
        raise
    if not prompt.token_ids:
        raise InvalidRequest("messages: the model's template makes an empty prompt of them", param="messages")
    return prompt


def encode_prompts(
    request: CompletionRequest, tokenizer: Tokenizer, *, max_prompts: int, max_model_len: int
) -> list[EncodedPrompt]:
    """The prompts of a text completion.

    Raises:
        InvalidRequest: too many prompts, or one without a token.
        ContextLengthExceeded: see `check_text_length`.
    """
    prompts = request.prompts
    if len(prompts) > max_prompts:
        raise InvalidRequest(f"prompt has {len(prompts)} prompts, this server takes {max_prompts}", param="prompt")

    def encode(prompt: str | list[int], field: str) -> EncodedPrompt:
        if isinstance(prompt, str):
            check_text_length(len(prompt), field, max_model_len)
            ids = tokenizer.encode(prompt, add_special_tokens=request.add_special_tokens)
            if not ids:
                raise InvalidRequest(f"{field} is empty: this model needs at least one token to start from", param=field)
            return EncodedPrompt(tuple(ids), prompt, field)
        text = tokenizer.decode(prompt, skip_special_tokens=request.skip_special_tokens) if request.echo else ""
        return EncodedPrompt(tuple(prompt), text, field)

    fields = [f"prompt[{i}]" for i in range(len(prompts))] if prompts is request.prompt else ["prompt"]
    return list(map(encode, prompts, fields))
