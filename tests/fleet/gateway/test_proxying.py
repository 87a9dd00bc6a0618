"""What goes in and what comes out: bytes, headers, statuses."""

import orjson
import pytest


async def test_answer_is_the_backends_bytes(make_backend, make_gateway, connect, chat):
    body = b'{ "id": "x", "n": 1e3, "b": 0.10, "u": "\\u00e9", "usage":{"prompt_tokens":3,"completion_tokens":4}}\n'
    backend = await make_backend(body=body)
    gateway = await make_gateway(backend.url)
    answer = await (await connect(gateway.url)).ask(chat())
    assert (answer.status, answer.body) == (200, body)
    assert answer.headers["content-length"] == str(len(body))
    (exchange,) = gateway.exchanges
    assert (exchange.usage.input_tokens, exchange.usage.output_tokens, exchange.usage.is_reported) == (3, 4, True)


async def test_stream(make_backend, make_gateway, connect, chat):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    answer = await (await connect(gateway.url)).ask(chat(stream=True))
    assert answer.status == 200
    assert answer.events[-1] == b"[DONE]"
    assert [orjson.loads(e)["choices"][0]["delta"]["content"] for e in answer.events[:-1]] == ["Hel", "lo", "!"]
    (exchange,) = gateway.exchanges
    assert (exchange.usage.input_tokens, exchange.usage.output_tokens, exchange.usage.is_reported) == (7, 3, True)
    assert exchange.finish_reason == "stop"
    assert backend.log[0].document["stream_options"] == {"include_usage": True}
