"""What loading a checkpoint gives, and what the rest of the package may ask of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from argosy.models.config import ModelConfig

if TYPE_CHECKING:
    from argosy.models.architectures.decoder import Decoder
    from argosy.models.stored_weights import StoredWeights


class Tokenizer(Protocol):
    """Text to ids and back. Immutable after loading; safe to use from several threads.

    Attributes:
        vocab_size: ids are below it; may be smaller than the width of the logits (padding rows).
        special_token_ids: ids that give no text when special tokens are skipped.
        eos_token_ids: as the tokenizer's own files name them; the loader unites them with the configurations'.
    """

    @property
    def vocab_size(self) -> int: ...  # noqa: D102, documented above

    @property
    def bos_token_id(self) -> int | None: ...  # noqa: D102

    @property
    def eos_token_ids(self) -> frozenset[int]: ...  # noqa: D102

    @property
    def special_token_ids(self) -> frozenset[int]: ...  # noqa: D102

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; BOS/EOS are added once if the model wants them and `add_special_tokens`. Special tokens spelled
        out in the text are recognised."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`, exactly `b"".join(map(token_bytes, ids))` decoded as UTF-8 with replacement."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text (special tokens: their spelling). b"" for an id above the vocabulary."""
        ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Render the model's own template in a sandbox; encode the result with add_special_tokens=False.

        Raises:
            InvalidRequest: the model has no template, or the template refuses the messages.
        """
        ...

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can work."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A checkpoint ready to run.

    Attributes:
        name: as the user gave it.
        path: the GGUF file or the folder.
        weights_bytes: size of the weights as stored.
        decoder: the torch module, weights loaded, in eval mode, on its device; or None.
        stored: in place of a decoder, the weights as the files store them; or None.
        max_positions: longest sequence prepared for.
        eos_token_ids: union of tokenizer, config and generation config.
        default_sampling: what the checkpoint's generation config suggests, under `SamplingParams` names.
    """

    name: str
    path: Path
    config: ModelConfig
    tokenizer: Tokenizer
    decoder: Decoder | None
    weights_bytes: int
    eos_token_ids: frozenset[int]
    default_sampling: Mapping[str, float | int]
    max_positions: int
    stored: StoredWeights | None = None
