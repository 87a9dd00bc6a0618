"""What a chat asks for and gets, wherever the model runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Sampling settings; None leaves the choice to the checkpoint."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None

    def given(self) -> dict[str, Any]:
        """Those that were set, under the names of `SamplingParams`."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """A part of an answer. The last piece has a `finish_reason`, and the counts if the source tells them."""

    text: str = ""
    finish_reason: str | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_output_tokens: int | None = None


class AnswerSource(Protocol):
    """A model one can talk to."""

    @property
    def model_name(self) -> str:
        """What it is called in the greeting."""
        ...

    def answer(self, messages: Sequence[Mapping[str, str]], settings: ChatSettings) -> AsyncGenerator[AnswerPiece, None]:
        """Stream the answer to a conversation. Closing the generator early stops the model.

        Raises:
            ArgosyError: the conversation or the settings cannot be served, or the generation failed.
        """
        ...

    async def close(self) -> None:
        """Free what it holds."""
        ...
