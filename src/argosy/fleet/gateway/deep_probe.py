"""The deep probe: a backend generates one token, and its distribution is looked at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import orjson

from argosy.fleet.gateway.backend_kinds import KindProfile
from argosy.fleet.gateway.probe_client import Answer, ProbeClient
from argosy.fleet.policies.deep_check import judge_logprobs
from argosy.fleet.policies.health_state import ProbeResult

PROBE_TEXT = "The"
NUM_LOGPROBS = 5
_MAX_BYTES = 64 * 1024
# The endpoint is not there, or does not take such a request (an embedding model): nothing is learnt from it.
_NOT_OFFERED = frozenset({400, 404, 405, 415, 422, 501})


async def deep_probe(client: ProbeClient, profile: KindProfile, model: str, timeout_s: float) -> tuple[ProbeResult, str]:
    """What a generated token says of the backend, and why in one line.

    Raises:
        ProbeFailed: no whole answer within `timeout_s`.
    """
    if profile.inference_path is not None:
        answer = await client.fetch(profile.inference_path, timeout_s=timeout_s, max_bytes=_MAX_BYTES)
        return _by_status(answer) or (ProbeResult.OK, "")
    body = {"model": model, "prompt": PROBE_TEXT, "max_tokens": 1, "temperature": 0, "logprobs": NUM_LOGPROBS}
    request = orjson.dumps(body)
    answer = await client.fetch("/v1/completions", timeout_s=timeout_s, body=request, max_bytes=_MAX_BYTES)
    return _by_status(answer) or judge_completion(answer.body)


def _by_status(answer: Answer) -> tuple[ProbeResult, str] | None:
    if answer.status == 200:
        return None
    if answer.status == 429 or answer.status in _NOT_OFFERED:
        return ProbeResult.BUSY, f"status {answer.status}"
    return ProbeResult.FAILED, f"status {answer.status}"


def judge_completion(body: bytes) -> tuple[ProbeResult, str]:
    """Judge the answer of `/v1/completions`. A server that gives no logprobs must have given a token."""
    try:
        choice = orjson.loads(body)["choices"][0]
        logprobs = choice.get("logprobs")
        text = choice.get("text")
    except orjson.JSONDecodeError:
        # NaN and Infinity are no JSON, but what some servers print for them.
        return ProbeResult.FAILED, "the answer is not JSON"
    except (KeyError, IndexError, TypeError, AttributeError):
        return ProbeResult.FAILED, "the answer is no completion"
    try:
        tops = list(_top_logprobs(logprobs))
    except (KeyError, TypeError, ValueError, AttributeError):
        return ProbeResult.FAILED, "the log probabilities cannot be read"
    for top in tops:
        wrong = judge_logprobs(top)
        if wrong is not None:
            return ProbeResult.FAILED, wrong
    if not tops and not (isinstance(text, str) and text):
        return ProbeResult.FAILED, "no token was generated"
    return ProbeResult.OK, ""


def _top_logprobs(logprobs: Any) -> Iterator[list[float]]:
    """Of each token: those of the likeliest ones, in the form of completions or in that of chats, which llama.cpp sends."""
    if not logprobs:
        return
    if logprobs.get("content"):
        for token in logprobs["content"]:
            yield [_number(top["logprob"]) for top in token.get("top_logprobs") or [token]]
        return
    tops = logprobs.get("top_logprobs") or []
    for place, value in enumerate(logprobs.get("token_logprobs") or []):
        top = tops[place] if place < len(tops) else None
        yield [_number(each) for each in top.values()] if top else [_number(value)]


def _number(value: Any) -> float:
    """JSON has no NaN; servers that must write one write null."""
    return math.nan if value is None else float(value)
