"""From the engine's deltas to pieces of the choices of a text completion; puts echoed prompts in front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from argosy.engine.core.plan import TokenLogprob
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.outputs import OutputDelta
from argosy.models.loaded import Tokenizer
from argosy.server.logprobs import CompletionLogprobsBuilder, logprobs_size, prompt_logprobs
from argosy.server.prompts import EncodedPrompt
from argosy.server.protocol.completions import CompletionRequest

LOGPROB_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


class Piece(NamedTuple):
    """What is added to a choice."""

    choice: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class PieceMaker:
    """Keeps what the choices of one request need between deltas. Choice `p * n + i` is sequence i of prompt p.

    An echo with log probabilities cannot begin before the engine has scored the prompt; it says so on the first delta of
    sequence 0, and deltas of other sequences that come earlier are held back.
    """

    def __init__(
        self,
        request: CompletionRequest,
        params: SamplingParams,
        prompts: Sequence[EncodedPrompt],
        tokenizer: Tokenizer,
    ) -> None:
        self._request = request
        self._params = params
        self._prompts = prompts
        self._tokenizer = tokenizer
        self.num_choices = len(prompts) * params.n
        self._scored: dict[int, Sequence[TokenLogprob | None]] = {}
        self._held: dict[int, list[OutputDelta]] = {}
        self._echoed: set[int] = set()
        self._echoed_logprobs: dict[int, dict[str, Any]] = {}
        self.size = 0
        self._builders = [
            CompletionLogprobsBuilder(tokenizer, request.logprobs or 0, skip_special_tokens=request.skip_special_tokens)
            for _ in range(self.num_choices)
        ]

    def size_of(self, prompt_index: int, delta: OutputDelta) -> int:
        """How much work `pieces` will be, as `SideWork` counts; `size` adds it up."""
        request, num_prompt = (
            self._request,
            0 if delta.prompt_logprobs is None else len(self._prompts[prompt_index].token_ids),
        )
        size = logprobs_size(len(delta.token_ids), request.logprobs)
        if num_prompt:
            echoed = request.logprobs if request.echo else None
            size += logprobs_size(num_prompt, echoed) + self._params.n * logprobs_size(num_prompt, request.prompt_logprobs)
        self.size += size
        return size

    def pieces(self, prompt_index: int, delta: OutputDelta) -> Iterator[Piece]:
        """What can be added on account of `delta`, in order."""
        if delta.prompt_logprobs is not None:
            self._scored[prompt_index] = delta.prompt_logprobs
        if self._must_hold(prompt_index):
            self._held.setdefault(prompt_index, []).append(delta)
            return
        for ready in (*self._held.pop(prompt_index, ()), delta):
            index = prompt_index * self._params.n + ready.index
            if self._request.echo and index not in self._echoed:
                self._echoed.add(index)
                yield self._echo(prompt_index, index)
            logprobs = None
            if self._request.logprobs is not None and ready.token_ids:
                logprobs = self._builders[index].add(ready.token_ids, ready.logprobs or ())
            yield Piece(index, ready.text, logprobs, ready.finish_reason, ready.stop_reason)

    def empty_choice(self, index: int) -> dict[str, Any]:
        """A choice to collect pieces in; its text is a list."""
        lists: dict[str, list[Any]] = {name: [] for name in LOGPROB_LISTS}
        logprobs = None if self._request.logprobs is None else lists
        return {"index": index, "text": [], "logprobs": logprobs, "finish_reason": None, "stop_reason": None}

    def complete(self, choice: dict[str, Any]) -> dict[str, Any]:
        """A collected choice as it is sent: its text joined, with the field `prompt_logprobs` if the request wants it."""
        complete = {**choice, "text": "".join(choice["text"])}
        scored = self._scored.get(choice["index"] // self._params.n)
        if self._request.prompt_logprobs is not None and scored is not None:
            complete["prompt_logprobs"] = prompt_logprobs(scored, self._request.prompt_logprobs, self._tokenizer)
        return complete

    def _must_hold(self, prompt_index: int) -> bool:
        wanted = bool(self._request.echo) and self._request.logprobs is not None
        return wanted and prompt_index not in self._scored

    def _echo(self, prompt_index: int, index: int) -> Piece:
        prompt = self._prompts[prompt_index]
        logprobs = None
        if self._request.logprobs is not None:
            # Equal for all n choices, and long: made once.
            if (logprobs := self._echoed_logprobs.get(prompt_index)) is None:
                logprobs = self._builders[index].add(prompt.token_ids, self._scored[prompt_index])
                self._echoed_logprobs[prompt_index] = logprobs
            self._builders[index].continue_at(len(prompt.text))
        return Piece(index, prompt.text, logprobs)
