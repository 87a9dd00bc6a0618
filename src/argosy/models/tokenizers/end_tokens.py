"""Which tokens end a turn or a text.

A GGUF file often names only one end token, and not always the one its chat template uses, so names are looked at too; the
list follows llama.cpp's end-of-generation tokens (`llama-vocab.cpp`). Its fill-in-the-middle separators are left out:
they end a file inside a completion, and no other runtime stops there.
"""

from __future__ import annotations

from collections.abc import Mapping

from argosy.models.tokenizers.vocabulary import TokenType, Vocabulary

_END_NAMES = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
        "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
        "<｜end▁of▁sentence｜>", "[e~[",
    }
)  # fmt: skip
# Elsewhere an ordinary token: Gemma's vocabulary has the HTML tags <s> and </s>.
_END_NAMES_IF_CONTROL = frozenset({"</s>"})
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def end_token_ids(vocabulary: Vocabulary, metadata: Mapping[str, object]) -> frozenset[int]:
    """Ids the file names under `tokenizer.ggml.{eos,eot,eom}_token_id`, and those whose spelling says it.

    Raises:
        ModelFileError: the file names an id outside the vocabulary.
    """
    named = {}
    for key in _END_KEYS:
        value = metadata.get(f"tokenizer.ggml.{key}")
        token_id = vocabulary.check_id(f"tokenizer.ggml.{key}", value if isinstance(value, int) else None)
        if token_id is not None:
            named[vocabulary.tokens[token_id]] = token_id
    spelled = {
        token: token_id
        for token_id, token in enumerate(vocabulary.tokens)
        if token in _END_NAMES or (token in _END_NAMES_IF_CONTROL and vocabulary.types[token_id] == TokenType.CONTROL)
    }
    # In the harmony format <|end|> only closes one message of a turn; <|return|> and <|call|> close the turn.
    if "<|return|>" in spelled and "<|call|>" in spelled:
        spelled.pop("<|end|>", None)
    return frozenset({**spelled, **named}.values())
