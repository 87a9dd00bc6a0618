import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError, TraceFileError
from argosy.settings.yaml_file import parse_yaml, read_yaml


def values(text: str):
    return parse_yaml(text, "x.yaml").values


def test_scalars_follow_the_core_schema():
    text = """
    a: 1e3
    b: 10_000
    c: on
    d: 12:30
    e: ~
    f: true
    g: "7"
    h: -.5
    i: 010
    j: 2026-01-01
    k: .inf
    """
    assert values(text) == {
        "a": 1000.0,
        "b": 10_000,
        "c": "on",
        "d": "12:30",
        "e": None,
        "f": True,
        "g": "7",
        "h": -0.5,
        "i": 10,
        "j": "2026-01-01",
        "k": ".inf",
    }
    assert isinstance(values("a: 1e3")["a"], float)
    assert isinstance(values("a: 10_000")["a"], int)


texts = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=["Cc", "Cs"]))
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_what_json_says_is_read_as_json_means_it(value):
    assert values(json.dumps({"root": value})) == {"root": value}


def test_lines_of_everything():
    file = parse_yaml("a:\n  b:\n    - 1\n    - c: 2\n      d: 3\n", "x.yaml")
    assert file.lines == {"": 1, "a": 1, "a.b": 2, "a.b[0]": 3, "a.b[1]": 4, "a.b[1].c": 4, "a.b[1].d": 5}


@pytest.mark.parametrize(
    ("param", "line"), [("a.b[1].d", 5), ("a.b[1].missing", 4), ("a.b[7].c", 2), ("nothing", 1), (None, 1)]
)
def test_a_fault_is_located_at_the_nearest_thing_around_it(param, line):
    file = parse_yaml("a:\n  b:\n    - 1\n    - c: 2\n      d: 3\n", "x.yaml")
    assert file.located(ConfigError("is wrong", param=param)).message == f"x.yaml:{line}: is wrong"


def test_a_fault_in_another_file_keeps_its_place():
    error = TraceFileError("t.csv", "is wrong", 3)
    assert parse_yaml("a: 1", "x.yaml").located(error) is error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3: the file has the key 'a' twice"),
        ("a:\n  - {b: 1, b: 2}\n", r"x.yaml:2: a\[0\] has the key 'b' twice"),
        ("a: [1, 2\nb: 3\n", "x.yaml:2: is not YAML"),
        ("", "x.yaml: is empty; it says nothing"),
        ("? [1, 2]\n: 3\n", "x.yaml:1: has a key that is not a text"),
        ("a: !!python/object:os.system x\n", "x.yaml:1: has the tag"),
        ("a: 1e999\n", "x.yaml:1: has the number 1e999"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: is not YAML"),
        ("a:\n\tb: 1\n", "x.yaml:2: is not YAML: .*; indent with spaces"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_yaml(text, "x.yaml")


def test_aliases_repeat_but_do_not_explode():
    assert values("a: &one {x: 1}\nb: *one\n") == {"a": {"x": 1}, "b": {"x": 1}}
    bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
    with pytest.raises(ConfigError, match="are aliases nested"):
        values(bomb)
    with pytest.raises(ConfigError, match="are aliases nested"):
        values("a: &a [*a]\n")


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere.yaml cannot be read: No such file"):
        read_yaml(tmp_path / "nowhere.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(ConfigError, match="it is not UTF-8"):
        read_yaml(tmp_path / "latin.yaml")
