"""Offline generation: prompts in, finished outputs back."""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from argosy.engine.args import EngineArgs
from argosy.engine.build import EngineParts, build_parts
from argosy.engine.client import EngineInfo
from argosy.engine.core.request import Request
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.outputs import OutputDelta
from argosy.engine.pending_delta import PendingDelta
from argosy.engine.progress_bar import ProgressBar
from argosy.engine.request_output import CompletionOutput, RequestOutput
from argosy.errors import ArgosyError, EngineUnavailable, InvalidRequest
from argosy.models.cache import Progress
from argosy.models.loaded import Tokenizer
from argosy.observe.stats import StatsSink

OFFLINE_STEP_TOKENS = 2048

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class LLM:
    """A model in this process. For one thread at a time; a context manager that frees the model on leaving.

    Args:
        model: as `EngineArgs.model`.
        progress: called while the model is fetched.
        sink: receives the engine's numbers.
        engine_args: the other settings of `EngineArgs`. Where they say nothing, prompts may fill whole steps of
            `OFFLINE_STEP_TOKENS`, since nobody waits for a next token.

    Raises:
        ConfigError: a setting is unknown or out of range.
        ArgosyError: the model cannot be found, fetched or run.
    """

    def __init__(
        self, model: str, *, progress: Progress | None = None, sink: StatsSink | None = None, **engine_args: Any
    ) -> None:
        args = EngineArgs.from_mapping({"model": model, **_offline_defaults(engine_args), **engine_args})
        self._take_parts(build_parts(args, progress=progress, sink=sink))

    @classmethod
    def from_parts(cls, parts: EngineParts) -> Self:
        """Around parts that were built elsewhere; they belong to the instance from here on."""
        llm = cls.__new__(cls)
        llm._take_parts(parts)
        return llm

    def _take_parts(self, parts: EngineParts) -> None:
        self._parts = parts
        self._request_ids = itertools.count()
        self._is_closed = False

    @property
    def info(self) -> EngineInfo:
        """The fixed facts of the engine."""
        return self._parts.info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._parts.admission.tokenizer

    def default_sampling_params(self) -> SamplingParams:
        """What the checkpoint suggests."""
        return SamplingParams(**self.info.default_sampling)  # type: ignore[arg-type]

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        show_progress: bool = False,
    ) -> list[RequestOutput]:
        """Generate for each prompt; the outputs come in the order of the prompts.

        Args:
            prompts: one text or one list of token ids, or several of either.
            params: for all prompts, or one for each; None is what the checkpoint suggests.
            show_progress: draw a progress bar on stderr.

        Raises:
            InvalidRequest, ContextLengthExceeded: a prompt or its parameters cannot be served; nothing was generated.
            EngineUnavailable: the engine was lost under way or is closed.
        """
        several = [prompts] if _is_one_prompt(prompts) else prompts
        texts = [p if isinstance(p, str) else None for p in several]
        ids = [self._ids_of(i, p) for i, p in enumerate(several)]
        return self._generate(texts, ids, params, show_progress)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        show_progress: bool = False,
    ) -> list[RequestOutput]:
        """As `generate`, for one list of messages or several, rendered by the model's chat template.

        Raises:
            InvalidRequest: also if the model has no template, or it refuses the messages.
        """
        is_one = len(conversations) > 0 and isinstance(conversations[0], Mapping)
        several: Sequence[Any] = [conversations] if is_one else conversations
        texts = [
            self.tokenizer.apply_chat_template(
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=chat_template_kwargs,
            )
            for messages in several
        ]
        # The template writes BOS itself where the model wants it.
        ids = [tuple(self.tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        return self._generate(texts, ids, params, show_progress)

    def close(self) -> None:
        """Free the model. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._parts.step_loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _ids_of(self, position: int, prompt: Any) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self.tokenizer.encode(prompt))
        try:
            return tuple(map(operator.index, prompt))
        except TypeError as error:
            raise InvalidRequest(
                f"prompt {position} (counted from 0) is neither a text nor a list of token ids", param="prompt"
            ) from error

    def _generate(
        self,
        texts: Sequence[str | None],
        ids: Sequence[tuple[int, ...]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        show_progress: bool,
    ) -> list[RequestOutput]:
        if self._is_closed:
            raise EngineUnavailable("this LLM is closed")
        requests = [
            self._admit(i, *pair) for i, pair in enumerate(zip(ids, self._params_for(len(ids), params), strict=True))
        ]
        with ProgressBar(len(requests), shown=show_progress) as bar:
            outputs = self._run(requests, bar)
        return [_request_output(r, text, outputs[r.request_id]) for r, text in zip(requests, texts, strict=True)]

    def _params_for(self, count: int, params: SamplingParams | Sequence[SamplingParams] | None) -> Sequence[SamplingParams]:
        if params is None:
            params = self.default_sampling_params()
        if isinstance(params, SamplingParams):
            return [params] * count
        if len(params) != count:
            raise InvalidRequest(f"params has {len(params)} entries for {count} prompts", param="params")
        return params

    def _admit(self, position: int, prompt_token_ids: tuple[int, ...], params: SamplingParams) -> Request:
        request_id = f"{next(self._request_ids)}"
        try:
            return self._parts.admission.admit(request_id, prompt_token_ids, params, arrival_s=self._parts.clock.now_s())
        except ArgosyError as error:
            error.add_note(f"in prompt {position} (counted from 0)")
            raise

    def _run(self, requests: Sequence[Request], bar: ProgressBar) -> dict[str, dict[int, PendingDelta]]:
        """Run requests to their ends, feeding as many as may wait. Whatever happens, none of them stays behind."""
        loop = self._parts.step_loop
        outputs: dict[str, dict[int, PendingDelta]] = {r.request_id: {} for r in requests}
        queue = deque(requests)
        try:
            while queue or loop.has_work:
                while queue and loop.scheduler.num_waiting_requests < self._parts.info.max_waiting:
                    _collect(loop.add(queue.popleft()), outputs)
                _collect(loop.step(), outputs)
                if not loop.is_alive:
                    raise EngineUnavailable(loop.loss)
                bar.advance_to(len(requests) - len(queue) - loop.live_requests)
        finally:
            for request in requests:
                loop.abort(request.request_id)
        return outputs


def _is_one_prompt(prompts: Any) -> bool:
    return isinstance(prompts, str) or (len(prompts) > 0 and not isinstance(prompts[0], str | Sequence))


def _collect(deltas: Iterable[OutputDelta], outputs: dict[str, dict[int, PendingDelta]]) -> None:
    for delta in deltas:
        by_index = outputs[delta.request_id]
        if delta.index in by_index:
            by_index[delta.index].add(delta)
        else:
            by_index[delta.index] = PendingDelta(delta)


def _request_output(request: Request, prompt: str | None, pending: Mapping[int, PendingDelta]) -> RequestOutput:
    joined = [pending[index].join() for index in sorted(pending)]
    return RequestOutput(
        request_id=request.request_id,
        prompt=prompt,
        prompt_token_ids=request.prompt_token_ids,
        prompt_logprobs=joined[0].prompt_logprobs,
        completions=tuple(
            CompletionOutput(d.index, d.text, d.token_ids, d.logprobs, str(d.finish_reason), d.stop_reason, d.error)
            for d in joined
        ),
        num_cached_tokens=joined[0].num_cached_tokens,
    )


def _offline_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """A prompt chunked beside decoding keeps the batch small for longer; here that only costs throughput."""
    if "max_num_batched_tokens" in given or str(given.get("device", "cpu")) != "cpu":
        return {"prefill_share": 1.0}
    num_seqs = given.get("max_num_seqs")
    at_least = num_seqs if isinstance(num_seqs, int) else 1
    return {"prefill_share": 1.0, "max_num_batched_tokens": max(OFFLINE_STEP_TOKENS, at_least)}
