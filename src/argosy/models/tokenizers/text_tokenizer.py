"""The tokenizer the rest of the package uses, whatever file it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tokenizers

from argosy.errors import InvalidRequest
from argosy.models.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """Implements `argosy.models.loaded.Tokenizer` over a `tokenizers.Tokenizer`; nothing changes after loading.

    Attributes:
        backend: cuts text into ids, special tokens recognised, none added.
        table: per id the bytes it adds to a text; its length is the size of the vocabulary.
        prefix_ids, suffix_ids: added around a text with `add_special_tokens` (BOS, EOS).
        prepare: rewrites a text before `backend` sees it (SentencePiece's space prefix).
        chat_template, tool_template: the latter is used instead when a request has tools, where a model has both.
        template_tokens: spellings of special tokens under the names templates use (`bos_token` …).
    """

    backend: tokenizers.Tokenizer
    table: Sequence[bytes]
    special_token_ids: frozenset[int]
    eos_token_ids: frozenset[int]
    bos_token_id: int | None = None
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    prepare: Callable[[str], str] | None = None
    chat_template: ChatTemplate | None = None
    tool_template: ChatTemplate | None = None
    template_tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""
        return len(self.table)

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can work."""
        return self.chat_template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`. A BOS or EOS the text already spells out at its edge is not added again.

        Other threads run meanwhile.

        Raises:
            InvalidRequest: `text` holds a lone surrogate and so has no UTF-8 form.
        """
        if self.prepare is not None:
            text = self.prepare(text)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the text holds the lone surrogate {error.object[error.start]!r} at character {error.start}; "
                "send valid Unicode"
            ) from error
        # Of the library's methods those for batches alone let go of the interpreter's lock.
        (encoding,) = self.backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        if not add_special_tokens:
            return ids
        prefix, suffix = list(self.prefix_ids), list(self.suffix_ids)
        if prefix and ids[: len(prefix)] == prefix:
            prefix = []
        if suffix and ids[len(ids) - len(suffix) :] == suffix:
            suffix = []
        return prefix + ids + suffix

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`: their bytes joined, decoded as UTF-8 with U+FFFD for what is not."""
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        joined = b"".join(self.token_bytes(token_id) for token_id in ids if token_id not in skipped)
        return joined.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text (special tokens: their spelling). b"" for an id outside the vocabulary."""
        return self.table[token_id] if 0 <= token_id < len(self.table) else b""

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
        template = self.tool_template if tools and self.tool_template is not None else self.chat_template
        if template is None:
            raise InvalidRequest(
                "this model has no chat template; use the completions API, or start with --chat-template FILE",
                param="messages",
            )
        return template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            special_tokens=self.template_tokens,
            variables=variables,
        )
