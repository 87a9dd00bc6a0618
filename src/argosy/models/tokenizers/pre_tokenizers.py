"""How byte-level BPE tokenizers cut text into words before merging, by the names GGUF files use.

`tokenizer.ggml.pre` names one of llama.cpp's pre-tokenizers (`llama-vocab.cpp`). The rules below are the ones in the
original `tokenizer.json` files of the models behind each name. That matters where llama.cpp only approximates them: its
regular expressions cannot ignore case or tell upper from lower case outside ASCII, and it applies no Unicode
normalisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from argosy.errors import UnsupportedModel

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ONE_DIGIT = r"\p{N}"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT4 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_QWEN35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _TAIL

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_TEKKEN = "|".join((*_CASED_WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _TAIL))
_GPT4O = "|".join(
    (*(f"{word}{_CONTRACTIONS}?" for word in _CASED_WORD), r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _TAIL)
)

_DEEPSEEK_CJK = "[一-龥\u0800-一가-\ud7ff]+"
_DEEPSEEK_LLM_LETTERS = (
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ"
    "\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
_DEEPSEEK_LLM_PUNCTUATION = "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"
_DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _TAIL
)


@dataclass(frozen=True, slots=True)
class PreTokenizerRule:
    """One way to cut text into words.

    Attributes:
        patterns: regular expressions applied in turn, each to every piece the ones before it left; matches and the gaps
            between them become pieces.
        normalize_nfc: the text is brought to Unicode NFC first.
        ignore_merges: a word that is itself a token is taken whole, without merging.
        add_bos: BOS starts a text when the file does not say.
    """

    patterns: tuple[str, ...]
    normalize_nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def build(self) -> PreTokenizer:
        """The rule as a `tokenizers` object that also maps bytes to GPT-2's printable characters."""
        splits = [Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> NFC | None:
        """The normaliser that runs before `build()`'s object, or None."""
        return NFC() if self.normalize_nfc else None


_GPT2_RULE = PreTokenizerRule((_GPT2,))
_GPT2_NFC_RULE = PreTokenizerRule((_GPT2,), normalize_nfc=True)
_DIGITS_GPT2_RULE = PreTokenizerRule((_ONE_DIGIT, _GPT2))
_GPT4_RULE = PreTokenizerRule((_GPT4,))
_LLAMA3_RULE = PreTokenizerRule((_GPT4,), ignore_merges=True, add_bos=True)
_QWEN2_RULE = PreTokenizerRule((_QWEN2,), normalize_nfc=True)
_GPT4O_RULE = PreTokenizerRule((_GPT4O,))

RULES: Mapping[str, PreTokenizerRule] = MappingProxyType(
    {
        # What llama.cpp falls back to; some converters write it by name.
        "default": PreTokenizerRule((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
        "gpt-2": _GPT2_RULE,
        "phi-2": _GPT2_RULE,
        "mpt": _GPT2_NFC_RULE,
        "olmo": _GPT2_NFC_RULE,
        "smollm": _DIGITS_GPT2_RULE,
        "starcoder": _DIGITS_GPT2_RULE,
        "refact": _DIGITS_GPT2_RULE,
        "command-r": PreTokenizerRule((_ONE_DIGIT, _GPT2), normalize_nfc=True),
        "falcon": PreTokenizerRule((r"[\p{P}$+<=>^`|~]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
        "llama3": _LLAMA3_RULE,
        "llama-v3": _LLAMA3_RULE,
        "llama-bpe": _LLAMA3_RULE,
        "falcon3": _LLAMA3_RULE,
        "dbrx": _GPT4_RULE,
        "smaug-bpe": _GPT4_RULE,
        "glm4": _GPT4_RULE,
        "chatglm-bpe": _GPT4_RULE,
        "qwen2": _QWEN2_RULE,
        "deepseek-r1-qwen": _QWEN2_RULE,
        "megrez": _QWEN2_RULE,
        "qwen35": PreTokenizerRule((_QWEN35,), normalize_nfc=True),
        "stablelm2": PreTokenizerRule((_QWEN2,)),
        "tekken": PreTokenizerRule((_TEKKEN,), ignore_merges=True, add_bos=True),
        "gpt-4o": _GPT4O_RULE,
        "llama4": _GPT4O_RULE,
        "deepseek-llm": PreTokenizerRule(
            (r"[\r\n]", _DEEPSEEK_LLM_LETTERS, _DEEPSEEK_LLM_PUNCTUATION, r"\s+$", _DEEPSEEK_CJK, _ONE_DIGIT)
        ),
        "deepseek-coder": PreTokenizerRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, _ONE_DIGIT)),
        "deepseek-v3": PreTokenizerRule((r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK_V3)),
    }
)


def pre_tokenizer_rule(name: str | None) -> PreTokenizerRule:
    """The rule a GGUF file names in `tokenizer.ggml.pre`.

    Raises:
        UnsupportedModel: no name, or one not in the table: a guess would load and then produce wrong tokens quietly.
    """
    if name is None:
        raise UnsupportedModel(
            "the GGUF file does not name its pre-tokenizer (tokenizer.ggml.pre), so its text would be cut wrongly; "
            "convert the model again with a current converter"
        )
    rule = RULES.get(name)
    if rule is None:
        raise UnsupportedModel(f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre); known are {', '.join(sorted(RULES))}")
    return rule
