"""The engine requests behind one HTTP request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from argosy.engine.admission import CheckedParams
from argosy.engine.client import EngineClient, RequestStream
from argosy.engine.outputs import OutputDelta
from argosy.errors import EngineUnavailable, GenerationFailed, InvalidRequest
from argosy.server.prompts import EncodedPrompt


class Generation:
    """One stream per prompt, submitted all or none; must be aborted or exhausted by its owner.

    Attributes:
        num_prompt_tokens, num_cached_tokens, num_output_tokens: totals over all prompts and sequences so far.
        first_token_s: when the first token came, on the clock given; None before.
    """

    def __init__(
        self,
        engine: EngineClient,
        generation_id: str,
        prompts: Sequence[EncodedPrompt],
        params: CheckedParams,
        *,
        clock: Callable[[], float],
        priority: int = 0,
        cache_salt: str = "",
    ) -> None:
        """Submit `prompts`; what `EngineClient.submit` raises for one of them takes back the others, and names that one."""
        self._streams: list[RequestStream] = []
        self._running: set[int] = set()
        self.num_prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self._cached = [0] * len(prompts)
        self.num_output_tokens = 0
        self.first_token_s: float | None = None
        self._clock = clock
        try:
            for i, prompt in enumerate(prompts):
                request_id = generation_id if len(prompts) == 1 else f"{generation_id}-{i}"
                self._streams.append(
                    engine.submit(request_id, prompt.token_ids, params, priority=priority, cache_salt=cache_salt)
                )
                self._running.add(i)
        except InvalidRequest as error:
            self.abort()
            if error.param != "prompt" or prompt.field == "prompt":
                raise
            raise type(error)(f"{prompt.field}: {error.message}", param=prompt.field) from None
        except BaseException:
            self.abort()
            raise

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache."""
        return sum(self._cached)

    def abort(self) -> None:
        """Stop what still runs. Idempotent."""
        for i in self._running:
            self._streams[i].abort()
        self._running.clear()

    async def deltas(self) -> AsyncIterator[tuple[int, OutputDelta]]:
        """(prompt index, delta) as they come; of one prompt in order.

        Raises:
            GenerationFailed: a sequence failed in the engine.
            EngineUnavailable: the engine died or gave the request up.
        """
        source = self._from_one(0) if len(self._streams) == 1 else self._merged()
        async for prompt_index, delta in source:
            if delta.finish_reason == "error":
                raise GenerationFailed(delta.error or "the generation failed")
            if delta.finish_reason == "abort":
                raise EngineUnavailable("the request was stopped by the server before it was complete")
            self._cached[prompt_index] = max(self._cached[prompt_index], delta.num_cached_tokens)
            self.num_output_tokens += len(delta.token_ids)
            if self.first_token_s is None and delta.token_ids:
                self.first_token_s = self._clock()
            yield prompt_index, delta

    async def _from_one(self, i: int) -> AsyncIterator[tuple[int, OutputDelta]]:
        async for delta in self._streams[i]:
            yield i, delta
        self._running.discard(i)

    async def _merged(self) -> AsyncIterator[tuple[int, OutputDelta]]:
        news: asyncio.Queue[tuple[int, OutputDelta | BaseException | None]] = asyncio.Queue()

        async def pump(i: int) -> None:
            try:
                async for _, delta in self._from_one(i):
                    news.put_nowait((i, delta))
                news.put_nowait((i, None))
            except Exception as error:
                news.put_nowait((i, error))

        pumps = [asyncio.create_task(pump(i)) for i in range(len(self._streams))]
        try:
            left = len(pumps)
            while left:
                i, item = await news.get()
                if item is None:
                    left -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield i, item
        finally:
            for task in pumps:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*pumps, return_exceptions=True)
