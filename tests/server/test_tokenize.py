"""Tokenisation endpoints."""

import pytest


def test_there_and_back(server):
    answer = server.http.post("/tokenize", json={"prompt": "aé", "return_token_strs": True}).json()
    assert answer == {
        "count": 3, "max_model_len": 512, "tokens": [97, 195, 169], "token_strs": ["a", "bytes:\\xc3", "bytes:\\xa9"],
    }  # fmt: skip
    assert server.http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "aé"}
    assert server.http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


def test_messages_give_the_ids_a_chat_would_have(server):
    messages = [{"role": "user", "content": "hi"}]
    server.chat("hi")
    assert tuple(server.http.post("/tokenize", json={"messages": messages}).json()["tokens"]) == server.last.prompt


def test_special_tokens(server, byte_tokenizer):
    server.engine.tokenizer = byte_tokenizer(adds_bos=True)
    assert server.http.post("/tokenize", json={"prompt": "a"}).json()["tokens"] == [256, 97]
    assert server.http.post("/tokenize", json={"prompt": "a", "add_special_tokens": False}).json()["tokens"] == [97]
    assert server.http.post("/detokenize", json={"tokens": [256, 97]}).json() == {"prompt": "<s>a"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True}, "add_special_tokens"),
        ("/detokenize", {"tokens": [1, 260]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1], "model": "other"}, "model"),
    ],
)
def test_refusals(server, path, body, param):
    answer = server.http.post(path, json=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param
