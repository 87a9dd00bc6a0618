"""`POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from argosy.server.protocol.base import MAX_LOGPROBS, MAX_N, ListOf, OneOf, Only, ResponseModel
from argosy.server.protocol.logprobs import CompletionLogprobs, PromptLogprobs
from argosy.server.protocol.sampling import SamplingFields, TokenId
from argosy.server.protocol.usage import Usage

DEFAULT_MAX_TOKENS = 16

Prompt = Annotated[
    Any,
    OneOf(
        "a string, a list of strings, a list of token ids, or a list of lists of token ids",
        string=str,
        list_of_strings=Annotated[ListOf[str], Field(min_length=1)],
        list_of_ints=Annotated[ListOf[TokenId], Field(min_length=1)],
        list_of_lists=Annotated[ListOf[Annotated[ListOf[TokenId], Field(min_length=1)]], Field(min_length=1)],
    ),
]


class CompletionRequest(SamplingFields):
    """Body of a text completion. `max_tokens` left out is 16; None is the rest of the context."""

    prompt: Prompt
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = Field(None, description="Put the prompt in front of the output.")
    add_special_tokens: bool = Field(True, description="Whether text prompts get the tokenizer's BOS.")
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = Field(None, description="Only the value of n is served.")
    suffix: Annotated[Any, Only(None, "")] = None

    @model_validator(mode="after")
    def _check_best_of(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise PydanticCustomError("served", "must equal n: answers are not ranked", {"param": "best_of"})
        return self

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, one or several."""
        value: Any = self.prompt
        return [value] if isinstance(value, str) or isinstance(value[0], int) else value

    @property
    def token_limit(self) -> int | None:
        """Most tokens to generate; None is the rest of the context."""
        return self.max_tokens if "max_tokens" in self.model_fields_set else DEFAULT_MAX_TOKENS


class CompletionChoice(ResponseModel):
    """Answer `index % n` to prompt `index // n`, or in a stream its news."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(ResponseModel):
    """Body of an answer, and the data of one event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
