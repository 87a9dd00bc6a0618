"""SentencePiece's BPE (Llama 2, Mistral, Gemma) on the `tokenizers` library.

SentencePiece stores no merges. It repeatedly joins the two neighbours whose concatenation is the token with the highest
score, leftmost first (Kudo & Richardson 2018, `bpe_model.cc`). `tokenizers` ranks *pairs*, so every way to cut a token
into two tokens becomes a pair, ranked by the score of what it makes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Replace

from argosy.errors import ModelFileError
from argosy.models.tokenizers.vocabulary import SPACE_MARK, TokenType, Vocabulary, sentencepiece_bytes, spellings


def token_table(vocabulary: Vocabulary) -> list[bytes]:
    """Per id the bytes it adds to a text."""
    return [sentencepiece_bytes(*entry) for entry in zip(vocabulary.tokens, vocabulary.types, strict=True)]


def merges_from_scores(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Pairs in the order SentencePiece would join them.

    Only normal tokens take part: control and byte tokens are never matched in text, user-defined ones are matched before
    merging and stay frozen. The cuts of one token have one score; SentencePiece decides between them by position, which a
    ranking of pairs cannot express. The cut with the longest left part comes first: where two neighbours compete for the
    part they share, that is the leftmost. (Vocabularies made by training are not known to depend on this order.)
    """
    scores = {vocabulary.tokens[i]: vocabulary.scores[i] for i in vocabulary.ids_of(TokenType.NORMAL)}
    by_score = sorted(scores, key=scores.__getitem__, reverse=True)  # stable: equal scores stay in order of id
    return [
        (token[:cut], token[cut:])
        for token in by_score
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in scores and token[cut:] in scores
    ]


def build_score_bpe(vocabulary: Vocabulary, unknown_id: int) -> Tokenizer:
    """A `tokenizers` object with exactly the ids of `vocabulary`; characters outside it fall back to bytes if it has them.

    Raises:
        ModelFileError: there are no scores.
    """
    if not vocabulary.scores:
        raise ModelFileError("the SentencePiece tokenizer has no scores (tokenizer.ggml.scores); convert the model again")
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    has_bytes = next(vocabulary.ids_of(TokenType.BYTE), None) is not None
    backend = Tokenizer(
        BPE(
            vocab=ids,
            merges=merges_from_scores(vocabulary),
            unk_token=vocabulary.tokens[unknown_id],
            fuse_unk=True,
            byte_fallback=has_bytes,
        )
    )
    backend.normalizer = Replace(" ", SPACE_MARK)
    # SentencePiece looks for user-defined tokens after spaces became marks, for control tokens not at all; the latter are
    # found in the raw text, as chat templates need.
    added = vocabulary.ids_of(TokenType.USER_DEFINED)
    control = vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN)
    backend.add_tokens([AddedToken(token, normalized=True) for token in spellings(vocabulary.tokens, added)])
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in spellings(vocabulary.tokens, control)]
    )
    return backend


def space_prefixer(vocabulary: Vocabulary) -> Callable[[str], str]:
    """What `add_space_prefix` does to a text: a space before it, and before each piece that follows a control token.

    The second half is how llama.cpp and the original Llama 2 chat code treat text between control tokens: each piece is
    encoded as if it stood alone.
    """
    control = sorted(spellings(vocabulary.tokens, vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN)), key=len)
    if not control:
        return lambda text: " " + text if text else text
    pattern = re.compile(f"({'|'.join(re.escape(token) for token in reversed(control))})")

    def prefix(text: str) -> str:
        pieces = pattern.split(text)  # text, control, text, control, …, text
        return "".join(" " + piece if piece and n % 2 == 0 else piece for n, piece in enumerate(pieces))

    return prefix
