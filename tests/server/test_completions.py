"""Text completions through the real client."""

from dataclasses import replace

import pytest

from argosy.server.protocol.completions import Completion


def test_answer_at_once(server):
    answer = server.openai().completions.create(model="fake-model", prompt="abc")
    assert answer.choices[0].text == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("cmpl-")
    assert bytes(server.last.prompt) == b"abc"
    assert answer.usage.prompt_tokens == 3


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [(97, 98)]),
        (["a", "bc"], [(97,), (98, 99)]),
        ([5, 6], [(5, 6)]),
        ([[5], [6, 7]], [(5,), (6, 7)]),
    ],
)
def test_every_form_of_a_prompt(server, prompt, expected):
    choices = server.complete(prompt).json()["choices"]
    assert [s.prompt for s in server.engine.submissions] == expected
    assert [c["index"] for c in choices] == list(range(len(expected)))


def test_several_prompts_and_n_stream_and_at_once_agree(server, events):
    whole = server.complete(["a", "b"], n=2, echo=True).json()
    assert [c["text"] for c in whole["choices"]] == ["aHello world"] * 2 + ["bHello world"] * 2
    assert whole["usage"]["completion_tokens"] == 4 * len("Hello world")
    assert whole["usage"]["prompt_tokens"] == 2
    got = events(server.complete(["a", "b"], n=2, echo=True, stream=True, stream_options={"include_usage": True}).text)
    texts = [""] * 4
    for event in got[:-1]:
        Completion.model_validate(event)
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [c["text"] for c in whole["choices"]]
    assert got[-2]["usage"] == whole["usage"]
    assert got[-1] == "[DONE]"


def test_default_of_sixteen_tokens_and_null_for_the_rest_of_the_context(server):
    for fields, expected in (({}, 16), ({"max_tokens": None}, None), ({"max_tokens": 1}, 1)):
        assert server.complete(**fields).status_code == 200
        assert server.last.params.max_tokens == expected


def test_no_new_tokens_need_echo(server):
    refused = server.complete(max_tokens=0)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "max_tokens"
    answer = server.complete("abc", max_tokens=0, echo=True, logprobs=1).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert answer["usage"]["completion_tokens"] == 0


def test_empty_prompts(server, byte_tokenizer):
    for prompt, where in (("", "prompt"), ([""], "prompt[0]"), (["a", ""], "prompt[1]")):
        answer = server.complete(prompt)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == where
    server.engine.tokenizer = byte_tokenizer(adds_bos=True)
    assert server.complete("").status_code == 200
    assert server.last.prompt == (256,)
    assert server.complete("", add_special_tokens=False).status_code == 400


@pytest.mark.parametrize("prompt", [[-1], [300], [[5], [300]], ["a", 3], [[]], [], [True], [1.5], None, {}, [None]])
def test_prompts_that_are_none(server, prompt):
    answer = server.complete(prompt)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("prompt")
    assert not server.engine.running
    assert server.complete().status_code == 200


def test_too_many_prompts(make_server):
    server = make_server(max_prompts=2)
    assert server.complete(["a", "b"]).status_code == 200
    assert server.complete(["a", "b", "c"]).status_code == 400


def test_more_prompts_than_may_ever_wait_are_not_told_to_try_again(make_server, fake_engine):
    engine = fake_engine()
    engine.info = replace(engine.info, max_waiting=2)
    server = make_server(engine)
    assert server.complete(["a", "b"]).status_code == 200
    answer = server.complete(["a", "b", "c"])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [("x" * 512, "prompt"), ([300], "prompt"), (["a", "x" * 512], "prompt[1]"), ([[5], [6], [5, 300]], "prompt[2]")],
)
def test_of_several_prompts_the_one_the_engine_refuses_is_named(server, prompt, param):
    error = server.complete(prompt).json()["error"]
    assert error["param"] == param
    assert param in error["message"]
    assert error["code"] == ("context_length_exceeded" if "x" in str(prompt) else None)
    assert not server.engine.running


def test_a_refusal_of_one_prompt_takes_back_the_others(server):
    server.engine.queue_limit = 2
    assert server.complete(["a", "b", "c"]).status_code == 429
    assert [s.aborted for s in server.engine.submissions] == [True, True]
    assert not server.engine.running


def test_logprobs_and_offsets(server, script):
    server.engine.script = script(text="aé!")
    body = server.complete("ž", echo=True, logprobs=2).json()
    Completion.model_validate(body)
    logprobs = body["choices"][0]["logprobs"]
    assert body["choices"][0]["text"] == "žaé!"
    assert logprobs["text_offset"] == [0, 0, 1, 2, 2, 3]
    assert logprobs["tokens"] == ["bytes:\\xc5", "bytes:\\xbe", "a", "bytes:\\xc3", "bytes:\\xa9", "!"]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][2] == {"a": -0.5, "b": -1.5}


def test_logprobs_zero_gives_the_chosen_token_alone(server):
    logprobs = server.complete(logprobs=0).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"][0] == {"H": -0.5}


@pytest.mark.parametrize("n", [1, 2])
def test_echo_with_logprobs_streams_what_it_answers_at_once(server, events, n):
    whole = server.complete("ab", echo=True, logprobs=1, n=n).json()["choices"]
    got = events(server.complete("ab", echo=True, logprobs=1, n=n, stream=True).text)[:-1]
    for index in range(n):
        pieces = [c for event in got for c in event["choices"] if c["index"] == index]
        assert "".join(p["text"] for p in pieces) == whole[index]["text"]
        for name, values in whole[index]["logprobs"].items():
            assert [v for p in pieces if p["logprobs"] for v in p["logprobs"][name]] == values


def test_prompt_logprobs_per_choice(server):
    body = server.complete("abc", prompt_logprobs=0, n=2).json()
    Completion.model_validate(body)
    for choice in body["choices"]:
        assert choice["prompt_logprobs"][0] is None
        assert [list(entry) for entry in choice["prompt_logprobs"][1:]] == [["98"], ["99"]]


def test_special_tokens_of_an_echoed_prompt_take_no_room(server):
    body = server.complete([256, 97], echo=True, logprobs=0).json()["choices"][0]
    assert body["text"].startswith("aHello")
    assert body["logprobs"]["tokens"][:2] == ["<s>", "a"]
    assert body["logprobs"]["text_offset"][:3] == [0, 0, 1]


def test_suffix_and_best_of(server):
    assert server.complete(suffix="").status_code == 200
    assert server.complete(best_of=2, n=2).status_code == 200
    for fields in ({"suffix": "x"}, {"best_of": 2}):
        answer = server.complete(**fields)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == next(iter(fields))


def test_a_failure_of_one_prompt_stops_the_others(server, script):
    server.engine.script = script(fail_at=1, delay_s=0.01)
    assert server.complete(["a", "b", "c"]).status_code == 500
    assert not server.engine.running
