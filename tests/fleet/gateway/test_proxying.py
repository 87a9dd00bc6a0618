"""What goes in and what comes out: bytes, headers, statuses, usage."""

from uuid import UUID

import orjson
import pytest

from argosy.fleet.policies.outcomes import Outcome


async def test_answer_is_the_backends_bytes(make_backend, make_gateway, connect, chat):
    body = b'{ "id": "x", "n": 1e3, "b": 0.10, "u": "\\u00e9", "usage":{"prompt_tokens":3,"completion_tokens":4}}\n'
    backend = await make_backend(body=body)
    gateway = await make_gateway(backend.url)
    answer = await (await connect(gateway.url)).ask(chat())
    assert (answer.status, answer.body) == (200, body)
    assert answer.headers["content-length"] == str(len(body))
    (exchange,) = gateway.exchanges
    assert (exchange.usage.input_tokens, exchange.usage.output_tokens, exchange.usage.is_reported) == (3, 4, True)


async def test_stream_and_its_usage(make_backend, make_gateway, connect, chat):
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


async def test_usage_chunk_is_passed_on_to_who_asked(make_backend, make_gateway, connect, chat):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    answer = await (await connect(gateway.url)).ask(chat(stream=True, stream_options={"include_usage": True}))
    assert orjson.loads(answer.events[-2])["choices"] == []


async def test_a_backend_that_ignores_the_option_is_counted(make_backend, make_gateway, connect, chat):
    backend = await make_backend(usage=None)
    gateway = await make_gateway(backend.url)
    await (await connect(gateway.url)).ask(chat(stream=True))
    (exchange,) = gateway.exchanges
    assert (exchange.usage.output_tokens, exchange.usage.is_reported) == (3, False)
    assert exchange.usage.input_tokens == exchange.prompt_tokens > 0


@pytest.mark.parametrize("one_byte", [False, True])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("asks", [False, True])
async def test_stream_through_the_gateway_equals_the_direct_one(
    make_backend, make_gateway, connect, chat, one_byte, newline, asks
):
    backend = await make_backend(one_byte=one_byte, newline=newline, tokens=("读", "é", '"\\', "\u2028"))
    gateway = await make_gateway(backend.url)
    options = {"stream_options": {"include_usage": True}} if asks else {}
    request = chat(stream=True, **options)
    direct = await (await connect(backend.url)).ask(request)
    through = await (await connect(gateway.url)).ask(request)
    assert (through.status, through.body) == (direct.status, direct.body)
    assert through.headers["content-type"] == direct.headers["content-type"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "m", "messages": [], "extra": {"x": [1.0]}}),
        ("/v1/completions", {"model": "m", "prompt": ""}),
        ("/v1/embeddings", {"model": "m", "input": [[1, 2, 3]]}),
        ("/v1/responses", {"model": "m", "input": "hi", "store": False}),
        ("/v1/messages", {"model": "m", "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
        ("/v1/rerank", {"model": "m", "query": "q", "documents": ["a"]}),
    ],
)
async def test_every_endpoint_passes_bodies_both_ways(make_backend, make_gateway, connect, path, body):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    text = orjson.dumps(body)
    direct = await (await connect(backend.url)).ask(text, path=path)
    through = await (await connect(gateway.url)).ask(text, path=path)
    assert (through.status, through.body) == (200, direct.body)
    assert (backend.log[1].path, backend.log[1].body) == (path, text)


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503, 529])
async def test_an_error_is_kept_once_and_unchanged(make_backend, make_gateway, connect, chat, status):
    body = b'{"error":{"message":"no","type":"x","param":"p","code":7}}'
    backend = await make_backend(status=status, body=body, headers=(("retry-after", "3"),))
    gateway = await make_gateway(backend.url)
    answer = await (await connect(gateway.url)).ask(chat())
    assert (answer.status, answer.body) == (status, body)
    assert answer.headers["retry-after"] == "3"
    assert len(backend.log) == 1


@pytest.mark.parametrize("status", [401, 403])
async def test_the_gateways_own_credentials_are_not_spoken_of(make_backend, make_gateway, connect, chat, status):
    backend = await make_backend(status=status, body=b'{"error":"Incorrect API key: sk-CANARY-upstream"}')
    gateway = await make_gateway(backend.url)
    answer = await (await connect(gateway.url)).ask(chat())
    assert answer.status == 502
    assert b"CANARY" not in answer.body


async def test_headers_to_the_backend(make_backend, make_gateway, connect, chat):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    sent = {
        "x-request-id": "my-id",
        "traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
        "tracestate": "a=b",
        "x-custom": "kept",
        "x-hop": "dropped",
        "connection": "keep-alive, x-hop",
        "accept-encoding": "gzip",
        "cookie": "CANARY",
        "x-gateway-destination-endpoint": "10.0.0.1:80",
        "x-prefiller-host-port": "10.0.0.1:80",
    }
    answer = await (await connect(gateway.url)).ask(chat(), headers=sent)
    got = backend.log[0].headers
    assert got["authorization"] == "Bearer sk-CANARY-upstream"
    assert got["host"] == f"127.0.0.1:{backend.port}"
    for name in ("x-request-id", "traceparent", "tracestate", "x-custom"):
        assert got[name] == sent[name]
    for name in ("x-hop", "cookie", "accept-encoding", "x-gateway-destination-endpoint", "x-prefiller-host-port"):
        assert name not in got
    assert answer.headers["x-request-id"] == "my-id"


async def test_headers_to_the_client(make_backend, make_gateway, connect, chat):
    headers = (
        ("x-kept", "1"),
        ("x-hop", "2"),
        ("connection", "x-hop, keep-alive"),
        ("set-cookie", "a=b"),
        ("x-request-id", "theirs"),
        ("x-ratelimit-limit-requests", "7"),
        ("cache-control", "public"),
    )
    backend = await make_backend(headers=headers)
    gateway = await make_gateway(backend.url)
    gateway.set_limits(rpm=10)
    answer = await (await connect(gateway.url)).ask(chat())
    assert answer.headers["x-kept"] == "1"
    assert UUID(answer.headers["x-request-id"]).version == 4
    assert answer.headers["cache-control"] == "private, no-store"
    assert answer.headers["x-ratelimit-limit-requests"] == "10"
    assert answer.headers["x-ratelimit-remaining-requests"] == "9"
    assert not {"x-hop", "set-cookie"} & set(answer.headers)


@pytest.mark.parametrize("header", ["x-api-key", "api-key", "authorization"])
async def test_every_way_to_send_a_key(make_backend, make_gateway, connect, chat, header):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    client = await connect(gateway.url)
    prefix = "bearer " if header == "authorization" else ""
    answer = await client.ask(chat(), key=None, headers={header: f"{prefix}sk-CANARY-0123456789"})
    assert answer.status == 200
    refused = await client.ask(chat(), key=None, headers={header: f"{prefix}sk-CANARY-other"})
    assert refused.status == 401
    assert refused.document["error"]["code"] == "invalid_api_key"
    assert b"CANARY" not in refused.body


async def test_body_is_changed_where_it_must_be_only(make_backend, make_gateway, connect):
    backend = await make_backend()
    gateway = await make_gateway(backend.url, backend_model="org/real", takes_cache_salt=True)
    body = b'{"temperature": 0.10,"model" :"m","cache_salt":"of-another-tenant","messages":[],"z":1e2}'
    answer = await (await connect(gateway.url)).ask(body)
    assert answer.status == 200
    assert backend.log[0].body == (
        b'{"temperature": 0.10,"model" :"org/real","cache_salt":"salt-of-org1","messages":[],"z":1e2}'
    )


async def test_a_salt_is_taken_out_where_none_is_put_in(make_backend, make_gateway, connect):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    await (await connect(gateway.url)).ask(b'{"model":"m","cache_salt":"x","messages":[]}')
    assert backend.log[0].body == b'{"model":"m","messages":[]}'


async def test_a_second_model_in_the_body_names_no_other_model(make_backend, make_gateway, connect):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    await (await connect(gateway.url)).ask(b'{"model":"secret-model","messages":[],"model":"m"}')
    assert backend.log[0].body == b'{"model":"m","messages":[],"model":"m"}'


async def test_options_of_a_stream_keep_what_is_in_them(make_backend, make_gateway, connect):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    await (await connect(gateway.url)).ask(b'{"model":"m","messages":[],"stream":true,"stream_options":{"x": 1.50 }}')
    assert b'"stream_options":{"x": 1.50 ,"include_usage":true}' in backend.log[0].body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"messages":[]}', "model"),
        (b'{"model":7}', "model"),
        (b'{"model":"m","stream":"yes"}', "stream"),
        (b'{"model":"m","max_tokens":-1}', "max_tokens"),
        (b'{"model":"m","max_tokens":true}', "max_tokens"),
        (b'{"model":"m","kv_transfer_params":{"remote_host":"10.0.0.1"}}', "kv_transfer_params"),
        (b'{"model":"m","bootstrap_host":"169.254.169.254"}', "bootstrap_host"),
        (b'{"model":"m","bootstrap_room":1}', "bootstrap_room"),
        (b'{"model":"m","n":0}', "n"),
        (b'{"model":"m","n":1025}', "n"),
        (b'{"model":"m","n":true}', "n"),
        (b'{"model":"m","n":"100"}', "n"),
        (b'{"model":"m","n":100.0}', "n"),
        (b'{"model":"m","best_of":"100"}', "best_of"),
        (b'{"model":"m","x":[' + b"[]," * 200_000 + b"1]}", None),
        (b'{"model":"m","x":[' + b"{}," * 200_000 + b"1]}", None),
        (b'{"model":"m","x":[' + b'"",' * 500_001 + b"1]}", None),
        (b'{"model":"m","messages":' + b"[" * 900 + b"]" * 900 + b"}", None),
    ],
)
async def test_bodies_that_are_refused(make_backend, make_gateway, connect, body, param):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    client = await connect(gateway.url)
    answer = await client.ask(body)
    assert answer.status == 400
    assert answer.document["error"]["param"] == param
    assert not backend.log
    assert (await client.ask(b'{"model":"m","messages":[]}')).status == 200


async def test_long_texts_and_long_prompts_of_tokens_pass(make_backend, make_gateway, connect):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    client = await connect(gateway.url)
    assert (await client.ask({"model": "m", "prompt": [1] * 600_000})).status == 200
    assert (await client.ask({"model": "m", "prompt": "x" * 2_000_000, "n": None, "best_of": 2})).status == 200


async def test_unknown_model_and_key_in_url(make_backend, make_gateway, connect, chat):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    client = await connect(gateway.url)
    assert (await client.ask(chat(model="other"))).status == 404
    answer = await client.ask(chat(), path="/v1/chat/completions?api_key=sk-CANARY-x")
    assert answer.status == 400
    assert b"CANARY" not in answer.body
    assert (await client.ask(chat(), headers={"x-request-id": "a b"})).status == 400
    assert (await client.ask(chat(), key="sk-unknown")).status == 401
    outcomes = [exchange.outcome for exchange in gateway.exchanges]
    assert outcomes == [
        Outcome.REJECTED_UNKNOWN_MODEL,
        Outcome.REJECTED_INVALID,
        Outcome.REJECTED_INVALID,
        Outcome.REJECTED_UNAUTHENTICATED,
    ]


async def test_an_answer_too_large_to_hold_is_passed_on(make_backend, make_gateway, connect, chat):
    from argosy.fleet.gateway.pipeline import PipelineSettings
    from argosy.fleet.policies.retries import RetryPolicy

    body = orjson.dumps({"data": "x" * 600_000, "usage": {"prompt_tokens": 9, "total_tokens": 9}})
    backend = await make_backend(body=body)
    settings = PipelineSettings(retries=RetryPolicy(max_retries=0), max_held_body_bytes=100_000)
    gateway = await make_gateway(backend.url, settings=settings)
    answer = await (await connect(gateway.url)).ask(chat())
    assert answer.body == body
    assert gateway.exchanges[0].usage.input_tokens == 9


@pytest.mark.parametrize("how", [{"chunked": True}, {"ends_without_length": True}])
async def test_bodies_of_every_framing(make_backend, make_gateway, connect, chat, how):
    backend = await make_backend(**how)
    gateway = await make_gateway(backend.url)
    client = await connect(gateway.url)
    for _ in range(2):
        answer = await client.ask(chat())
        assert answer.status == 200
        assert answer.document["choices"][0]["message"]["content"] == "Hello!"
