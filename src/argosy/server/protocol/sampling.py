"""Request fields that steer sampling, shared by chat and text completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from argosy.server.protocol.base import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_PENALTY,
    MAX_STOP_STRINGS,
    MIN_REPETITION_PENALTY,
    ListOf,
    OneOf,
    Only,
    RequestModel,
)

NonEmptyText = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenCount = Annotated[int, Field(ge=0, le=2**31 - 1)]
CallerId = Annotated[str, Field(max_length=512)]


def _token_id_keys(biases: dict[str, float]) -> dict[str, float]:
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise PydanticCustomError("served", "maps token ids written as decimal strings to biases")
    return biases


def _not_blank(word: str) -> str:
    if not word.strip():
        raise PydanticCustomError("served", "must not be blank")
    return word


Stop = Annotated[
    Any,
    OneOf(
        f"a string or a list of at most {MAX_STOP_STRINGS} strings",
        string=NonEmptyText,
        list=Annotated[ListOf[NonEmptyText], Field(max_length=MAX_STOP_STRINGS)],
    ),
]
LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-MAX_LOGIT_BIAS, le=MAX_LOGIT_BIAS)]], AfterValidator(_token_id_keys)
]


class StreamOptions(RequestModel):
    """`include_usage`: a last chunk with the totals. `continuous_usage_stats`: totals so far in every chunk (vLLM)."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Annotated[Any, Only(None, False)] = None


class SamplingFields(RequestModel):
    """OpenAI's sampling fields and vLLM's additions.

    None of an optional field means what leaving it out means: the default of the checkpoint's generation config, else of
    the API.
    """

    model: str | None = Field(None, description="A served model; None is the first one.")
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = Field(None, description="0 is greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = Field(None, description="0 and -1: all tokens.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY)] | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=100)] | None = None
    logit_bias: LogitBias | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    max_tokens: TokenCount | None = Field(None, description="A ceiling; the context may end the output earlier.")
    min_tokens: TokenCount = 0
    ignore_eos: bool = False
    stop: Stop | None = None
    stop_token_ids: ListOf[TokenId] | None = None
    include_stop_str_in_output: bool = False
    bad_words: Annotated[ListOf[Annotated[str, AfterValidator(_not_blank)]], Field(max_length=MAX_BAD_WORDS)] | None = None
    skip_special_tokens: bool = True
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = Field(0, description="Lower runs first.")
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        None, description="Separates tenants in the prefix cache; set by a trusted gateway."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: CallerId | None = Field(None, description="Written to the log.")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        value: Any = self.stop
        return () if value is None else (value,) if isinstance(value, str) else tuple(value)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of totals."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wants_running_usage(self) -> bool:
        """Whether every chunk of a stream carries the totals so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats
