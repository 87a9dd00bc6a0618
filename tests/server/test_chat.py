"""Chat completions through the real client."""

import json
import math
import threading

import openai
import pytest

from argosy.server.protocol.chat import ChatCompletion, ChatCompletionChunk
from argosy.server.protocol.errors import ErrorResponse

USER = [{"role": "user", "content": "hi"}]


def test_answer_at_once(server, script):
    server.engine.script = script(cached=4)
    answer = server.openai().chat.completions.create(model="fake-model", messages=USER)
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "fake-model"
    assert answer.id.startswith("chatcmpl-")
    prompt = "<user>hi\n<assistant>"
    assert bytes(server.last.prompt).decode() == prompt
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len("Hello world")
    assert answer.usage.total_tokens == len(prompt) + len("Hello world")
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


def test_stream_equals_answer_at_once(server, script):
    server.engine.script = script(text="žluť 🔥 ok", stop_reason="!!")
    whole = server.openai().chat.completions.create(model="fake-model", messages=USER, n=2)
    texts, ends, roles = ["", ""], [None, None], [None, None]
    for chunk in server.openai().chat.completions.create(model="fake-model", messages=USER, n=2, stream=True):
        assert chunk.id.startswith("chatcmpl-")
        for choice in chunk.choices:
            roles[choice.index] = roles[choice.index] or choice.delta.role
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = (choice.finish_reason, getattr(choice, "stop_reason", None))
    assert texts == [c.message.content for c in whole.choices] == ["žluť 🔥 ok"] * 2
    assert ends == [("stop", "!!")] * 2
    assert roles == ["assistant", "assistant"]
    assert whole.choices[0].stop_reason == "!!"


def test_shape_of_a_stream(server, events):
    got = events(server.chat(stream=True).text)
    assert got[-1] == "[DONE]"
    chunks = [ChatCompletionChunk.model_validate(event) for event in got[:-1]]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({(c.id, c.created, c.model) for c in chunks}) == 1
    assert all("usage" not in event for event in got[:-1])


def test_headers_of_a_stream(server):
    answer = server.chat(stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    assert "no-cache" in answer.headers["cache-control"]


def test_usage_chunk_counts_all_sequences(server, events):
    got = events(server.chat(stream=True, n=2, stream_options={"include_usage": True}).text)[:-1]
    assert [event["usage"] for event in got[:-1]] == [None] * (len(got) - 1)
    assert got[-1]["choices"] == []
    prompt = len("<user>hi\n<assistant>")
    assert got[-1]["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 2 * len("Hello world"),
        "total_tokens": prompt + 2 * len("Hello world"),
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_running_usage_never_falls_and_ends_with_the_totals(server, events):
    options = {"include_usage": True, "continuous_usage_stats": True}
    got = events(server.chat(stream=True, stream_options=options).text)[:-1]
    counts = [event["usage"]["completion_tokens"] for event in got]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == len("Hello world")


def test_logprobs_stream_and_at_once_agree(server, script, events):
    server.engine.script = script(text="aé", logprob=-0.25)
    body = server.chat(logprobs=True, top_logprobs=2).json()
    ChatCompletion.model_validate(body)
    whole = body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in whole] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert whole[1]["bytes"] == [0xC3]
    assert [top["logprob"] for top in whole[0]["top_logprobs"]] == [-0.25, -1.25]
    streamed = events(server.chat(logprobs=True, top_logprobs=2, stream=True).text)[:-1]
    pieces = [choice["logprobs"]["content"] for event in streamed for choice in event["choices"] if choice["logprobs"]]
    assert [entry for piece in pieces for entry in piece] == whole


def test_logprobs_alone_gives_no_alternatives(server):
    entries = server.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert len(entries) == len("Hello world")
    assert all(entry["top_logprobs"] == [] for entry in entries)


def test_minus_infinity_becomes_a_number(server, script):
    server.engine.script = script(logprob=-math.inf)
    entries = server.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert entries[0]["logprob"] == -9999.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_logprob_that_is_no_number_fails_the_request(server, script, events, value):
    server.engine.script = script(logprob=value)
    answer = server.chat(logprobs=True)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "generation_failed"
    streamed = events(server.chat(logprobs=True, stream=True).text)
    assert streamed[-1]["error"]["code"] == "generation_failed"
    server.engine.script = script()
    assert server.chat(logprobs=True).status_code == 200


def test_prompt_logprobs(server):
    body = server.chat(prompt_logprobs=1).json()
    ChatCompletion.model_validate(body)
    entries = body["prompt_logprobs"]
    assert entries[0] is None
    assert len(entries) == len("<user>hi\n<assistant>")
    assert entries[1] == {str(ord("u")): {"logprob": -0.5, "rank": 1, "decoded_token": "u"}}


def test_messages_reach_the_template(server):
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
        {"role": "assistant", "content": "Sure", "tool_calls": None, "refusal": None},
    ]
    answer = server.http.post(
        "/v1/chat/completions",
        json={"messages": messages, "continue_final_message": True, "chat_template_kwargs": {"deep": 1}},
    )
    assert answer.status_code == 200
    assert bytes(server.last.prompt).decode() == '<system>be brief\n<user:Ann>a\nb\n<assistant>Sure{"deep": 1}'


def test_no_generation_prompt(server):
    assert server.chat(add_generation_prompt=False).status_code == 200
    assert bytes(server.last.prompt).decode() == "<user>hi\n"


def test_what_the_template_refuses_is_the_callers_fault(server):
    error = server.chat("REFUSE")
    assert error.status_code == 400
    assert error.json()["error"]["param"] == "messages"


def test_max_tokens_is_a_ceiling_under_either_name(server):
    for fields in ({"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 3, "max_completion_tokens": 3}):
        choice = server.chat(**fields).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Hel", "length")
    assert server.chat().status_code == 200
    assert server.last.params.max_tokens is None


def test_sampling_fields_reach_the_engine(server):
    fields = {
        "n": 2, "temperature": 0.3, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.2,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"65": -3}, "seed": 11, "max_tokens": 9,
        "min_tokens": 2, "ignore_eos": True, "stop": ["x", "y"], "stop_token_ids": [3],
        "include_stop_str_in_output": True, "bad_words": ["no"], "logprobs": True, "top_logprobs": 4,
        "prompt_logprobs": 1, "skip_special_tokens": False,
    }  # fmt: skip
    answer = server.chat(**fields, priority=-4, cache_salt="tenant")
    assert answer.status_code == 200, answer.text
    params = server.last.params
    del fields["top_logprobs"]
    expected = {**fields, "logit_bias": ((65, -3.0),), "logprobs": 4, "stop": ("x", "y")}
    expected |= {"stop_token_ids": (3,), "bad_words": ("no",)}
    assert {name: getattr(params, name) for name in expected} == expected
    assert server.last.priority == -4
    assert server.last.cache_salt == "tenant"


def test_one_stop_string_need_not_be_a_list(server):
    server.chat(stop="END")
    assert server.last.params.stop == ("END",)


def test_the_checkpoints_sampling_applies_where_the_request_is_silent(make_server, with_default_sampling):
    server = make_server(with_default_sampling(temperature=0.6, top_k=20))
    server.chat(top_k=5, temperature=None)
    assert (server.last.params.temperature, server.last.params.top_k) == (0.6, 5)
    assert server.last.params.top_p == 1.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", []), ("tool_choice", "none"), ("tool_choice", "auto"), ("response_format", {"type": "text"}),
        ("store", False), ("parallel_tool_calls", True), ("service_tier", "auto"), ("modalities", ["text"]),
        ("functions", None), ("audio", None), ("metadata", {"run": "7"}), ("user", "ann"), ("top_p", None),
        ("stop", None), ("stream", None), ("max_tokens", None), ("safety_identifier", "s"),
    ],
)  # fmt: skip
def test_values_that_ask_for_nothing_are_accepted(server, name, value):
    assert server.chat(**{name: value}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
)
def test_fields_that_contradict_each_other(server, fields, param):
    answer = server.chat(**fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert server.engine.submissions == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_of_one_request_spares_the_next(server, script, events, stream):
    server.engine.script = script(fail_at=3)
    answer = server.chat(stream=stream)
    error = events(answer.text)[-1] if stream else answer.json()
    assert answer.status_code == (200 if stream else 500)
    assert error["error"] == {
        "message": "logits are not finite", "type": "api_error", "param": None, "code": "generation_failed",
    }  # fmt: skip
    server.engine.script = script()
    assert server.chat().status_code == 200


def test_the_client_sees_an_error_inside_a_stream(server, script):
    server.engine.script = script(fail_at=3)
    texts = []
    chunks = server.openai().chat.completions.create(model="fake-model", messages=USER, stream=True)
    with pytest.raises(openai.APIError, match="not finite"):
        texts.extend(chunk.choices[0].delta.content for chunk in chunks)
    assert "".join(texts) == "Hel"


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_ours_shows_no_internals(server, script, events, stream):
    server.engine.script = script(raise_at=2)
    answer = server.chat(stream=stream)
    body = events(answer.text)[-1] if stream else answer.json()
    ErrorResponse.model_validate(body)
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] in body["error"]["message"]
    assert server.engine.running == set()


def test_the_engine_dies_under_way(server, script):
    server.engine.script = script(die_at=2)
    assert server.chat().status_code == 503
    assert server.http.get("/health/live").status_code == 503
    assert server.chat().status_code == 503


def test_a_request_given_up_by_the_engine_is_not_an_answer(server, script, events):
    server.engine.script = script(abort_at=2)
    assert server.chat().status_code == 503
    assert events(server.chat(stream=True).text)[-1]["error"]["code"] == "service_unavailable"


def test_full_queue(server):
    server.engine.queue_limit = 0
    answer = server.chat()
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "3"
    assert answer.headers["retry-after-ms"] == "3000"
    with pytest.raises(openai.RateLimitError):
        server.openai().chat.completions.create(model="fake-model", messages=USER)


def test_prompts_at_the_limit_of_the_context(server):
    overhead = len("<user>\n<assistant>")
    assert server.chat("x" * (511 - overhead)).status_code == 200
    for length in (512, 513):
        answer = server.chat("x" * (length - overhead))
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


def test_unknown_model(server):
    with pytest.raises(openai.NotFoundError) as caught:
        server.openai().chat.completions.create(model="fake-mode", messages=USER)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "did you mean 'fake-model'" in caught.value.message


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 20_000}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": ""}] * 1000}),
        ("/v1/completions", {"prompt": "x" * 20_000}),
        ("/v1/completions", {"prompt": ["x" * 1000] * 20}),
        ("/v1/completions", {"prompt": [65] * 20_000, "echo": True}),
        ("/tokenize", {"prompt": "x" * 20_000}),
        ("/detokenize", {"tokens": [65] * 20_000}),
    ],
)
def test_what_is_long_is_worked_on_beside_the_event_loop(server, byte_tokenizer, path, body):
    threads = set()

    class Tokenizer(byte_tokenizer):
        def encode(self, *arguments, **options):
            threads.add(threading.get_ident())
            return super().encode(*arguments, **options)

        def decode(self, *arguments, **options):
            threads.add(threading.get_ident())
            return super().decode(*arguments, **options)

    server.engine.tokenizer = Tokenizer()
    assert server.chat("short").status_code == 200
    (event_loop,) = threads
    threads.clear()
    server.http.post(path, json=body)
    assert threads
    assert event_loop not in threads


def test_answers_are_valid_json_of_the_documented_type(server):
    ChatCompletion.model_validate(json.loads(server.chat(n=2, logprobs=True).content))
