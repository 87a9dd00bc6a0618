"""Longer, shorter and cut requests that still share their prefixes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from argosy.sim.workload.trace_request import Segment, TraceRequest


def scaled_lengths(request: TraceRequest, prompt_factor: float, output_factor: float) -> TraceRequest:
    """`request` with its prompt and its answer longer or shorter by a factor each, rounded, at least one token.

    A boundary between segments at position p moves to round(p x factor). Prompts that began with the same segments still do,
    for their boundaries lie at the same positions; only a prompt that would round to no token keeps one, and shares less. An
    answer that has a content keeps it only if both factors are equal: otherwise it could not be as long as what later
    prompts repeat of it.
    """
    prompt = _scaled(request.segments, 0, prompt_factor)
    output_tokens = max(1, round(request.output_tokens * output_factor))
    output: tuple[Segment, ...] = ()
    if request.output_segments and prompt_factor == output_factor:
        output = _scaled(request.output_segments, request.num_prompt_tokens, prompt_factor)
        output_tokens = sum(part.num_tokens for part in output)
    return replace(request, segments=prompt, output_tokens=output_tokens, output_segments=output)


def cut_lengths(request: TraceRequest, max_prompt_tokens: int | None, max_output_tokens: int | None) -> TraceRequest:
    """`request` with at most so many tokens: the first of its prompt and the first of its answer. None does not limit."""
    prompt, output, output_tokens = request.segments, request.output_segments, request.output_tokens
    if max_prompt_tokens is not None and request.num_prompt_tokens > max_prompt_tokens:
        prompt = _head(prompt, max_prompt_tokens)
    if max_output_tokens is not None and output_tokens > max_output_tokens:
        output_tokens, output = max_output_tokens, _head(request.answer, max_output_tokens)
    if prompt is request.segments and output_tokens == request.output_tokens:
        return request
    return replace(request, segments=prompt, output_tokens=output_tokens, output_segments=output)


def _scaled(segments: tuple[Segment, ...], position: int, factor: float) -> tuple[Segment, ...]:
    """`segments`, the first of which begins at token `position` of its sequence.

    A piece of a content that begins at token `start` scales as if the whole content lay there:

        tokens    position - start        position             position + num_tokens
                  |<------- start ------->|<---- num_tokens --->|
        scaled    round(. x factor)       round(. x factor)     round(. x factor)
    """
    scaled = []
    for segment in segments:
        begin, end = round(position * factor), round((position + segment.num_tokens) * factor)
        if end > begin:
            start = begin - round((position - segment.start) * factor)
            scaled.append(Segment(segment.content_id, end - begin, start))
        position += segment.num_tokens
    return tuple(scaled) or (replace(segments[0], num_tokens=1),)


def _head(segments: Iterable[Segment], num_tokens: int) -> tuple[Segment, ...]:
    head: list[Segment] = []
    for segment in segments:
        if num_tokens <= 0:
            break
        head.append(segment if segment.num_tokens <= num_tokens else replace(segment, num_tokens=num_tokens))
        num_tokens -= segment.num_tokens
    return tuple(head)
