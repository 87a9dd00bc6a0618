"""Bad input of every field: the tables are made from the request types, so that none is left out."""

import json
import math
from dataclasses import replace

import openai.types.chat.completion_create_params as chat_types
import openai.types.completion_create_params as completion_types
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from argosy.engine.core import sampling_params
from argosy.errors import InvalidRequest
from argosy.server.body import MAX_CONTAINERS, MAX_MEMBERS, MAX_VALUES, parse_json
from argosy.server.protocol import base
from argosy.server.protocol.chat import ChatCompletionRequest
from argosy.server.protocol.completions import CompletionRequest
from argosy.server.protocol.errors import validate
from argosy.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest

GOOD = {
    "/v1/chat/completions": (ChatCompletionRequest, {"messages": [{"role": "user", "content": "hi"}]}),
    "/v1/completions": (CompletionRequest, {"prompt": "hi"}),
    "/tokenize": (TokenizeRequest, {"prompt": "hi"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [65]}),
}
WRONG_OF_TYPE = {
    "string": [5, True, ["x"], {"a": 1}],
    "integer": ["1", 1.5, True, [1], {}, 1e400, 10**30, -(10**30)],
    "number": ["hot", True, [0.1], {}],
    "boolean": ["true", 0, 1, [], {}],
    "array": ["x" * 3, 5, {"0": 1}, True],
    "object": ["x", 5, [1], True],
    "null": [],
}


def kinds_of(schema, definitions):
    if "$ref" in schema:
        return [definitions[schema["$ref"].rpartition("/")[2]]]
    return [
        k for union in ("anyOf", "oneOf") if union in schema for m in schema[union] for k in kinds_of(m, definitions)
    ] or [schema]


def bad_values(schema, definitions):
    """Values of the wrong type for every alternative, and values past each bound."""
    kinds = kinds_of(schema, definitions)
    if any("enum" in kind and "type" not in kind for kind in kinds):
        return ["no such value", 10**30, {"no": ["such"]}, [[["deep"]]]]
    types = {kind.get("type", "object") for kind in kinds}
    wrong = [v for kind in types for v in WRONG_OF_TYPE[kind]]
    fitting = {"string": str, "boolean": bool, "array": list, "object": dict}
    wrong = [
        v
        for v in wrong
        if not any(type(v) is fitting.get(t) for t in types)
        and not ("integer" in types and type(v) is int and abs(v) < 2**31)
        and not ("number" in types and type(v) in (int, float) and abs(v) < 100)
    ]
    if "null" not in types:
        wrong.append(None)
    for kind in kinds:
        if "maximum" in kind:
            wrong += [kind["maximum"] + 1, kind["maximum"] * 1000 + 1]
        if "minimum" in kind:
            wrong.append(kind["minimum"] - 1)
        if "exclusiveMinimum" in kind:
            wrong.append(kind["exclusiveMinimum"])
        if "maxLength" in kind:
            wrong.append("x" * (kind["maxLength"] + 1))
        if kind.get("minLength"):
            wrong.append("")
        if kind.get("type") == "array" and "items" in kind:
            wrong += [[value] for value in bad_values(kind["items"], definitions) if len(kinds) == 1]
    return wrong


def table():
    for path, (model, good) in GOOD.items():
        schema = model.model_json_schema()
        for name, field in schema["properties"].items():
            for value in bad_values(field, schema.get("$defs", {})):
                yield path, good, name, value


TABLE = list(table())


def test_the_table_has_every_field():
    for path, (model, _) in GOOD.items():
        assert {name for p, _, name, _ in TABLE if p == path} == set(model.model_fields)
    assert len(TABLE) > 400


@pytest.mark.parametrize("path", GOOD)
def test_each_bad_value_is_refused_by_name_and_the_next_request_answered(server, path):
    for case_path, good, name, value in TABLE:
        if case_path != path:
            continue
        content = json.dumps({**good, name: value})
        headers = {"content-type": "application/json"}
        answer = server.http.post(path, content=content, headers=headers)
        assert 400 <= answer.status_code < 500, (name, value, answer.text)
        error = answer.json()["error"]
        if value not in (math.inf, [math.inf]):  # which is not JSON
            assert error["param"] is not None, (name, value, error)
            assert error["param"].startswith(name), (name, value, error)
            assert name in error["message"], (name, value, error)
        assert error["type"] in ("invalid_request_error", "not_found_error")
        assert server.http.post(path, json=good).status_code == 200
    assert all(s.finished for s in server.engine.submissions)


def test_limits_agree_with_the_engines():
    assert sampling_params.MAX_N == base.MAX_N
    assert sampling_params.MAX_LOGPROBS == base.MAX_LOGPROBS
    assert sampling_params.MAX_STOP_STRINGS == base.MAX_STOP_STRINGS
    assert sampling_params.MAX_BAD_WORDS == base.MAX_BAD_WORDS
    assert sampling_params.MIN_REPETITION_PENALTY == base.MIN_REPETITION_PENALTY


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": "x" * (sampling_params.MAX_STOP_CHARS + 1)},
        {"bad_words": ["x" * sampling_params.MAX_BAD_WORDS_CHARS, "y"]},
        {"bad_words": ["x"] * (sampling_params.MAX_BAD_WORDS + 1)},
        {"logit_bias": {"5": 100, "05": 100}},
    ],
)
def test_fields_whose_size_would_cost_the_other_callers_time(server, fields):
    answer = server.chat(**fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(fields))
    assert not server.engine.submissions


def parts_of(schema):
    if isinstance(schema, dict):
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list | tuple) else ():
        yield from parts_of(part)


@pytest.mark.parametrize("model", [model for model, _ in GOOD.values()])
def test_a_list_is_refused_at_its_first_bad_item(model):
    """Reports of millions of bad items would hold up the event loop for minutes."""
    lists = [part for part in parts_of(model.__pydantic_core_schema__) if part.get("type") == "list"]
    assert lists
    assert all(part.get("fail_fast") for part in lists), lists


@pytest.mark.parametrize("prompt", [["a"] + [1] * 99, [1] + ["a"] * 99, [[1], *[["a"]] * 99], [[1] + ["a"] * 99]])
def test_one_error_is_made_of_many_bad_items(prompt):
    with pytest.raises(ValidationError) as refused:
        CompletionRequest.model_validate({"prompt": prompt})
    assert refused.value.error_count() == 1


def test_an_object_of_too_many_members_is_refused():
    members = ",".join(f'"{i}":0' for i in range(MAX_MEMBERS + 1))
    with pytest.raises(InvalidRequest, match="members"):
        parse_json(b'{"logit_bias":{%b}}' % members.encode())
    assert len(parse_json(b"{%b}" % members.rpartition(",")[0].encode())) == MAX_MEMBERS


def test_a_priority_that_nothing_looks_at_is_refused(make_server, fake_engine):
    engine = fake_engine()
    engine.info = replace(engine.info, follows_priority=False)
    server = make_server(engine)
    for answer in (server.chat(priority=1), server.complete(priority=-1)):
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "priority"
    assert server.chat(priority=0).status_code == 200
    assert server.http.get("/health/inference").status_code in (200, 503)


@pytest.mark.parametrize(
    ("params", "model"),
    [
        (chat_types.CompletionCreateParamsNonStreaming, ChatCompletionRequest),
        (chat_types.CompletionCreateParamsStreaming, ChatCompletionRequest),
        (completion_types.CompletionCreateParamsNonStreaming, CompletionRequest),
        (completion_types.CompletionCreateParamsStreaming, CompletionRequest),
    ],
)
def test_every_field_of_openai_is_known(params, model):
    """Supported, accepted when it asks for nothing, or refused by name; none is unknown by accident."""
    fields = params.__required_keys__ | params.__optional_keys__
    assert fields - set(model.model_fields) == set()
    assert len(fields) > 15


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("messages", "x"), ("messages", []), ("messages[0]", 5), ("messages[0].role", "tool"), ("messages[0].role", None),
        ("messages[0].role", "wizard"), ("messages[0].content", None), ("messages[0].content", 5),
        ("messages[0].content", []), ("messages[0].content[0]", "x"), ("messages[0].content[0].type", "image_url"),
        ("messages[0].content[0].type", "input_audio"), ("messages[0].content[0].text", 5),
        ("messages[0].name", ""), ("messages[0].name", 5), ("messages[0].tool_calls", [{}]),
        ("messages[0].tool_call_id", "x"), ("messages[0].function_call", {}), ("messages[0].colour", "red"),
        ("messages[0].content[0].cache_control", {}), ("stop[1]", ""), ("stop[0]", 5), ("stop_token_ids[0]", -1),
        ("stop_token_ids[0]", "x"), ("bad_words[0]", " "), ("logit_bias.65", 101), ("logit_bias.65", "x"),
        ("stream_options.include_usage", None), ("stream_options.include_obfuscation", True),
        ("stream_options.other", 1), ("metadata.key", 5), ("n", 0), ("n", 129), ("temprature", 1),
    ],
)  # fmt: skip
def test_the_path_of_a_nested_field_is_named(server, path, value):
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "stop": ["a", "b"], "stop_token_ids": [1], "bad_words": ["x"], "logit_bias": {"65": 1}, "metadata": {},
        "stream": True, "stream_options": {},
    }  # fmt: skip
    *parents, last = path.replace("[", ".").replace("]", "").split(".")
    target = body
    for part in parents:
        target = target[int(part) if isinstance(target, list) else part]
    target[int(last) if isinstance(target, list) else last] = value
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == path
    assert path in answer.json()["error"]["message"]
    assert not server.engine.submissions


@pytest.mark.parametrize("key", ["x", "-1", "1.5", "", "٣", "1" * 11])
def test_logit_bias_keys_are_token_ids(server, key):
    answer = server.chat(logit_bias={key: 1})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "logit_bias"


@pytest.mark.parametrize("fields", [{"logit_bias": {"191222": -100}}, {"stop_token_ids": [260], "min_tokens": 1}])
def test_ids_beyond_the_logits(server, fields):
    answer = server.chat(**fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(fields))


def test_a_typo_gets_a_suggestion(server):
    assert "did you mean 'temperature'" in server.chat(temprature=1).json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"   ", b"nonsense", b"[]", b'"text"', b"null", b"5", b'{"messages": [}', b'{"a": NaN}', b'{"a": Infinity}',
        b'{"a": -Infinity}', b'{"a": "\xff\xfe"}', b'{"a": "\\ud800"}', b"\xef\xbb\xbf{}", b'{"n": 1, "n": 2}',
        b'{"messages": [{"role": "user", "role": "system", "content": "x"}]}', b"[" * 100_000, b'{"a":' * 50_000,
        b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}", b'{"seed": ' + b"9" * 5000 + b"}", b'{"a": 1e999}', b"{'a': 1}",
        b'{"a": 01}', b"\x00", b'{"messages": []',
    ],
)  # fmt: skip
def test_bodies_that_are_no_request(server, body):
    for path in GOOD:
        answer = server.http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert server.chat().status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"}, {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json", "content-encoding": "gzip"}, {"content-type": ""},
    ],
)  # fmt: skip
def test_other_media_types(server, headers):
    answer = server.http.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/x+json"]
)
def test_media_types_of_json(server, kind):
    assert server.http.post("/v1/completions", content=b'{"prompt": "x"}', headers={"content-type": kind}).status_code == 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


def refusal_of(model, document):
    try:
        validate(model, document)
    except InvalidRequest as error:
        return error
    return None


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    fields=st.dictionaries(st.sampled_from(sorted(ChatCompletionRequest.model_fields)) | st.text(max_size=5), json_values),
)
def test_any_document_is_valid_or_refused(fields):
    """Nothing but `InvalidRequest` comes out, whatever goes in; its message is one line."""
    for model, good in GOOD.values():
        refusal = refusal_of(model, {**good, **fields})
        assert refusal is None or (refusal.param is not None and len(refusal.message) < 400)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_refused(data):
    try:
        document = parse_json(data)
    except InvalidRequest:
        return
    assert document == json.loads(data)


def test_a_body_of_too_many_values_is_refused_before_it_is_parsed():
    with pytest.raises(InvalidRequest, match=f"more than {MAX_VALUES} values"):
        parse_json(b'{"prompt":[%b1]}' % (b"1," * MAX_VALUES))
    with pytest.raises(InvalidRequest, match=f"more than {MAX_CONTAINERS} arrays and objects"):
        parse_json(b'{"prompt":[%b[1]]}' % (b"[1]," * MAX_CONTAINERS))
    assert len(parse_json(b"[%b1]" % (b"1," * (MAX_VALUES - 1)))) == MAX_VALUES
    assert len(parse_json(b"[%b1]" % (b"{}," * (MAX_CONTAINERS - 1)))) == MAX_CONTAINERS


@settings(max_examples=30, deadline=None)
@given(st.text(alphabet='[{,}]"\\\n a', max_size=200))
def test_brackets_and_commas_in_text_are_no_values(text):
    filler = "[{," * MAX_CONTAINERS
    document = {"prompt": filler + text, text: [text, text]}
    assert parse_json(json.dumps(document).encode()) == document
