"""Answers from an engine in this process."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from argosy.cli.chat.answers import AnswerPiece, ChatSettings
from argosy.engine.async_engine import AsyncEngine
from argosy.engine.core.sampling_params import SamplingParams
from argosy.errors import GenerationFailed


class LocalAnswers:
    """An `AnswerSource` over an engine, which it owns."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @property
    def model_name(self) -> str:
        """The model's name as it was given."""
        return self._engine.info.model_name

    async def answer(
        self, messages: Sequence[Mapping[str, str]], settings: ChatSettings
    ) -> AsyncGenerator[AnswerPiece, None]:
        """As `AnswerSource.answer`. Raises `ContextLengthExceeded` when the conversation has outgrown the model."""
        tokenizer = self._engine.tokenizer
        prompt = tokenizer.apply_chat_template(messages)
        token_ids = tuple(tokenizer.encode(prompt, add_special_tokens=False))
        stream = self._engine.submit(f"chat-{uuid.uuid4().hex}", token_ids, self._params(settings))
        try:
            async for delta in stream:
                if delta.finish_reason == "error":
                    raise GenerationFailed(delta.error)
                yield AnswerPiece(
                    delta.text,
                    delta.finish_reason,
                    delta.num_prompt_tokens,
                    delta.num_cached_tokens,
                    delta.num_output_tokens,
                )
        finally:
            stream.abort()

    def _params(self, settings: ChatSettings) -> SamplingParams:
        defaults: dict[str, Any] = dict(self._engine.info.default_sampling)
        return SamplingParams(**(defaults | settings.given()))

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.shutdown()
