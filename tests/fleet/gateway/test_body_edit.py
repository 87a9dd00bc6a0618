"""Members change, other bytes do not."""

import json

import orjson
from hypothesis import given
from hypothesis import strategies as st

from argosy.fleet.gateway.body_edit import edit_members, insert_members, is_sole_member, top_level_members

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
names = st.sampled_from(["model", "stream", "a", 'q"uote', "back\\slash", "ключ", "{", "]", ","])
objects = st.dictionaries(names, values, max_size=6)
indents = st.sampled_from([None, 0, 2])


def edited(body, changes, removals=()):
    return edit_members(body, top_level_members(body), changes, removals)


@given(objects, indents, st.booleans())
def test_members_are_found_where_they_lie(document, indent, ascii_only):
    body = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    members = top_level_members(body)
    assert [member.name for member in members] == list(document)
    for member in members:
        assert json.loads(body[member.value_begin : member.value_end]) == document[member.name]


@given(objects, st.dictionaries(names, values, max_size=3), st.sets(names, max_size=3), indents)
def test_an_edit_means_what_it_says(document, changes, removals, indent):
    body = json.dumps(document, indent=indent).encode()
    wanted = {name: value for name, value in document.items() if name not in removals} | changes
    texts = {name: json.dumps(value).encode() for name, value in changes.items()}
    assert json.loads(edited(body, texts, removals)) == wanted


@given(objects)
def test_no_edit_no_change(document):
    body = json.dumps(document).encode()
    assert edited(body, {}) == body


def test_numbers_escapes_order_and_space_stay():
    body = b'{ "t" : 0.10, "n":123456789012345678901234567890, "e": 1E+3,\n"model":"a","u":"\\u00e9\\/" }\r\n'
    assert edited(body, {"model": b'"b"'}) == body.replace(b'"a"', b'"b"')


def test_every_occurrence_of_a_name_changes_also_an_escaped_one():
    body = b'{"model":"x","mod\\u0065l":"y","inner":{"model":"z"},"model":"w"}'
    assert edited(body, {"model": b'"N"'}) == b'{"model":"N","mod\\u0065l":"N","inner":{"model":"z"},"model":"N"}'


def test_every_occurrence_is_removed():
    body = b'{"cache_salt":"a", "model":"m" ,"cache_\\u0073alt":"b"}'
    assert orjson.loads(edited(body, {}, {"cache_salt"})) == {"model": "m"}
    assert b"salt" not in edited(body, {}, {"cache_salt"})


def test_a_string_that_looks_like_structure():
    body = rb'{"a":"\",\"model\":\"evil\"}","model":"m","b":["]",{"}":"{"}]}'
    assert [member.name for member in top_level_members(body)] == ["a", "model", "b"]
    assert edited(body, {"model": b'"N"'}) == body.replace(b'"model":"m"', b'"model":"N"')


def test_members_are_put_in_front():
    assert insert_members(b' { "a":1}', {"b": b"2", "c": b"[3]"}) == b' {"b":2,"c":[3], "a":1}'


@given(objects, indents, st.booleans())
def test_a_sole_member_is_one(document, indent, ascii_only):
    body = json.dumps({"model": "m", **document}, indent=indent, ensure_ascii=ascii_only).encode()
    if is_sole_member(body, "model"):
        assert [member.name for member in top_level_members(body)].count("model") == 1
    twice = body[:-1] + b',"mod\\u0065l":1}'
    assert not is_sole_member(twice, "model")
    assert not is_sole_member(body[:-1] + b',"model":1}', "model")
