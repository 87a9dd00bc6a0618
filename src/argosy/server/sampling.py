"""From the wire's sampling fields to the engine's `SamplingParams`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from argosy.engine.client import EngineInfo
from argosy.engine.core.sampling_params import SamplingParams
from argosy.errors import InvalidRequest
from argosy.server.protocol.chat import ChatCompletionRequest
from argosy.server.protocol.completions import CompletionRequest
from argosy.server.protocol.sampling import SamplingFields

_FROM_CHECKPOINT = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_OWN_DEFAULT = ("n", "presence_penalty", "frequency_penalty")
CHARACTERS_PER_BAD_WORD = 128
"""Text that takes about as long to encode as a short word by itself, with and without a space."""
_DEFAULTS = {f.name: f.default for f in fields(SamplingParams)}


def chat_params(request: ChatCompletionRequest, defaults: Mapping[str, float | int]) -> SamplingParams:
    """Parameters of a chat request; `defaults` are the checkpoint's for what the request leaves open.

    Raises:
        InvalidRequest: fields that contradict each other.
    """
    _check_stream_fields(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    limit, name = request.max_completion_tokens, "max_completion_tokens"
    if limit is None:
        limit, name = request.max_tokens, "max_tokens"
    elif request.max_tokens not in (None, limit):
        raise InvalidRequest("max_tokens and max_completion_tokens differ; give one of them", param="max_tokens")
    if limit == 0:
        raise InvalidRequest(f"{name} must be at least 1", param=name)
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return _params(request, defaults, max_tokens=limit, logprobs=logprobs, prompt_logprobs=request.prompt_logprobs)


def completion_params(request: CompletionRequest, defaults: Mapping[str, float | int]) -> SamplingParams:
    """Parameters of a text completion. With `echo`, `logprobs` also asks for those of the prompt.

    Raises:
        InvalidRequest: fields that contradict each other.
    """
    _check_stream_fields(request)
    if request.token_limit == 0 and not request.echo:
        raise InvalidRequest("max_tokens must be at least 1 unless echo is true", param="max_tokens")
    prompt_logprobs = request.prompt_logprobs
    if request.echo and request.logprobs is not None:
        prompt_logprobs = max(request.logprobs, prompt_logprobs or 0)
    return _params(
        request, defaults, max_tokens=request.token_limit, logprobs=request.logprobs, prompt_logprobs=prompt_logprobs
    )


def params_size(request: SamplingFields) -> int:
    """How long it takes to check the fields that `chat_params` and `completion_params` give, as `SideWork` counts."""
    return CHARACTERS_PER_BAD_WORD * len(request.bad_words or ())


def priority_of(request: SamplingFields, info: EngineInfo) -> int:
    """The request's priority.

    Raises:
        InvalidRequest: it has one, and the engine's policies do not look at it.
    """
    if request.priority and not info.follows_priority:
        raise InvalidRequest(
            "priority has no effect here: leave it out, or serve with --scheduling-policy priority", param="priority"
        )
    return request.priority


def _check_stream_fields(request: SamplingFields) -> None:
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")
    if request.wants_running_usage and not request.wants_usage:
        name = "stream_options.continuous_usage_stats"
        raise InvalidRequest(f"{name} needs stream_options.include_usage", param=name)
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs is not available in a stream", param="prompt_logprobs")


def _params(
    request: SamplingFields,
    defaults: Mapping[str, float | int],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    chosen: dict[str, Any] = {}
    for name in _FROM_CHECKPOINT + _OWN_DEFAULT:
        value = getattr(request, name)
        if value is None:
            value = defaults.get(name, _DEFAULTS[name]) if name in _FROM_CHECKPOINT else _DEFAULTS[name]
        chosen[name] = value
    return SamplingParams(
        **chosen,
        logit_bias=tuple((int(token), bias) for token, bias in (request.logit_bias or {}).items()),
        seed=request.seed,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        ignore_eos=request.ignore_eos,
        stop=request.stop_strings,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        include_stop_str_in_output=request.include_stop_str_in_output,
        bad_words=tuple(request.bad_words or ()),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=request.skip_special_tokens,
    )
