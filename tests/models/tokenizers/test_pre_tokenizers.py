import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.errors import UnsupportedModel
from argosy.models.tokenizers.byte_level import byte_of_character
from argosy.models.tokenizers.pre_tokenizers import RULES, pre_tokenizer_rule

CHARACTERS = "aAbzZéÉeñßǅ一日のカ한ไर्สิمن٣Ⅷ½²019 '  \t\n\r\u00a0\u3000.,!?-_$+<=>^`|~()/。—“😊👍🏽\u0301\u200d"


def words(rule, text):
    pieces = [piece for piece, _ in rule.build().pre_tokenize_str(text)]
    return [bytes(byte_of_character()[c] for c in piece).decode() for piece in pieces]


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_rule_keeps_the_text_and_agrees_with_an_independent_regex_engine(name, isolated):
    rule = RULES[name]
    patterns = [regex.compile(pattern) for pattern in rule.patterns]

    @given(st.text(alphabet=CHARACTERS, max_size=40))
    @settings(max_examples=150, deadline=None)
    def check(text):
        expected = [text] if text else []
        for pattern in patterns:
            expected = [piece for word in expected for piece in isolated(pattern, word)]
        assert words(rule, text) == expected
        assert "".join(expected) == text

    check()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "I'm 1234 ok!!  x", ["I", "'m", " 1234", " ok", "!!", " ", " x"]),
        ("gpt-2", "I'M", ["I", "'", "M"]),
        ("smollm", "a 1234 ½", ["a", " ", "1", "2", "3", "4", " ", "½"]),
        ("starcoder", "x12", ["x", "1", "2"]),
        ("llama-bpe", "I'M 12345\n\n x", ["I", "'M", " ", "123", "45", "\n\n", " x"]),
        ("llama-bpe", "(foo)...\n", ["(foo", ")...\n"]),
        ("qwen2", "I'LL 123", ["I", "'LL", " ", "1", "2", "3"]),
        ("qwen2", "क्षि", ["क", "्ष", "ि"]),
        ("qwen35", "क्षि", ["क्षि"]),
        ("tekken", "HelloWorld HELLOWorld x/\n12", ["Hello", "World", " HELLOWorld", " x", "/\n", "1", "2"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
        ("falcon", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
        ("default", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
        ("default", "a`b", ["a", "`", "b"]),
        ("deepseek-llm", "ab 中文 12\n", ["ab", " ", "中文", " ", "1", "2", "\n"]),
        ("deepseek-coder", "foo(12)", ["foo", "(", "1", "2", ")"]),
        ("deepseek-v3", "foo 1234 中文x", ["foo", " ", "123", "4", " ", "中文", "x"]),
        ("command-r", "a12", ["a", "1", "2"]),
    ],
)
def test_words_of_each_family(name, text, expected):
    assert words(RULES[name], text) == expected


def test_models_trained_on_composed_text_normalise_it():
    composing = {name for name, rule in RULES.items() if rule.normalizer() is not None}
    assert {"qwen2", "qwen35", "olmo", "mpt", "command-r"} <= composing
    assert composing.isdisjoint({"gpt-2", "llama-bpe", "smollm", "tekken", "deepseek-llm"})
    assert RULES["qwen2"].normalizer().normalize_str("e\u0301") == "é"


def test_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedModel, match=r"'my-bpe'.*llama-bpe.*smollm"):
        pre_tokenizer_rule("my-bpe")


def test_missing_name_is_refused():
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.ggml\.pre"):
        pre_tokenizer_rule(None)
