"""Text out of tokens, a few at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from argosy.models.loaded import Tokenizer


class Detokenizer:
    """The text of one sequence, released as soon as its bytes are certain.

    A token's bytes may end inside a character. Such a rest (at most 3 bytes) is held until the next bytes complete it or
    prove it invalid, so that the released pieces joined equal the whole byte string decoded as UTF-8 with replacement,
    however it was split. Each byte is decoded once.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._silent_ids: frozenset[int] = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def append(self, token_ids: Iterable[int]) -> str:
        """Take the next tokens and return the text they make certain; "" if there is none yet."""
        silent_ids, token_bytes = self._silent_ids, self._token_bytes
        return self._decoder.decode(b"".join(token_bytes(i) for i in token_ids if i not in silent_ids))

    def flush(self) -> str:
        """End the text: what is held becomes U+FFFD. Nothing may be appended afterwards."""
        return self._decoder.decode(b"", final=True)
