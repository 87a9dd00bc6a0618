"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from argosy.server.protocol.base import MAX_LOGPROBS, ListOf, OneOf, Only, RequestModel, ResponseModel
from argosy.server.protocol.logprobs import ChatLogprobs, PromptLogprobs
from argosy.server.protocol.sampling import CallerId, SamplingFields, TokenCount
from argosy.server.protocol.usage import Usage

NO_TOOLS = "leave it out: this server does not call tools"
TEMPLATE_NAMES = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


class TextPart(RequestModel):
    """A piece of a message's text; parts of other types are refused."""

    type: Literal["text"]
    text: str


Content = Annotated[
    Any, OneOf("a string or a list of text parts", string=str, list=Annotated[ListOf[TextPart], Field(min_length=1)])
]


class ChatMessage(RequestModel):
    """One message. `developer` is rendered as `system`, which it replaced in OpenAI's API; parts are joined by newlines."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    refusal: Annotated[Any, Only(None)] = None
    audio: Annotated[Any, Only(None)] = None
    annotations: Annotated[Any, Only(None, [])] = None
    function_call: Annotated[Any, Only(None, advice=NO_TOOLS)] = None
    tool_calls: Annotated[Any, Only(None, [], advice=NO_TOOLS)] = None
    tool_call_id: Annotated[Any, Only(None, advice=NO_TOOLS)] = None

    @property
    def text(self) -> str:
        """The content as one string."""
        content: Any = self.content
        return content if isinstance(content, str) else "\n".join(part.text for part in content)


class ChatCompletionRequest(SamplingFields):
    """Body of a chat completion."""

    messages: Annotated[ListOf[ChatMessage], Field(min_length=1)]
    max_completion_tokens: TokenCount | None = Field(None, description="OpenAI's newer name of max_tokens.")
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(None, description="Needs logprobs: true.")
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables of the chat template.")
    metadata: (
        Annotated[
            dict[
                Annotated[str, Field(min_length=1, max_length=64)],
                Annotated[str, Field(max_length=512)],
            ],
            Field(max_length=16),
        ]
        | None
    ) = Field(None, description="Written to the log.")
    safety_identifier: CallerId | None = Field(None, description="Written to the log.")

    audio: Annotated[Any, Only(None)] = None
    function_call: Annotated[Any, Only(None, "none", "auto", advice=NO_TOOLS)] = None
    functions: Annotated[Any, Only(None, [], advice=NO_TOOLS)] = None
    modalities: Annotated[Any, Only(None, ["text"])] = None
    moderation: Annotated[Any, Only(None)] = None
    parallel_tool_calls: Annotated[Any, Only(None, True, False, advice=NO_TOOLS)] = None
    prediction: Annotated[Any, Only(None)] = None
    prompt_cache_key: Annotated[Any, Only(None)] = None
    prompt_cache_options: Annotated[Any, Only(None)] = None
    prompt_cache_retention: Annotated[Any, Only(None, "in_memory")] = None
    reasoning_effort: Annotated[Any, Only(None, "none")] = None
    response_format: Annotated[Any, Only(None, {"type": "text"}, advice='only {"type": "text"} is served')] = None
    service_tier: Annotated[Any, Only(None, "auto", "default")] = None
    store: Annotated[Any, Only(None, False)] = None
    tool_choice: Annotated[Any, Only(None, "none", "auto", advice=NO_TOOLS)] = None
    tools: Annotated[Any, Only(None, [], advice=NO_TOOLS)] = None
    verbosity: Annotated[Any, Only(None, "medium")] = None
    web_search_options: Annotated[Any, Only(None)] = None

    @model_validator(mode="after")
    def _check_template_variables(self) -> ChatCompletionRequest:
        for name in self.chat_template_kwargs or ():
            if name in TEMPLATE_NAMES:
                raise PydanticCustomError("served", "must not set {name}", {"param": "chat_template_kwargs", "name": name})
        return self


class AssistantMessage(ResponseModel):
    """The answer."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(ResponseModel):
    """One of the n answers; `stop_reason` is the stop string or id that ended it, or the limit it met."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None


class ChatCompletion(ResponseModel):
    """Body of an answer that is not streamed."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None


class ChatDelta(ResponseModel):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(ResponseModel):
    """The news of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None = None


class ChatCompletionChunk(ResponseModel):
    """The data of one event of a stream; `usage` is present only if `stream_options` asks for it."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
