"""What surrounds the endpoints: paths, methods, keys, ids, limits, and raw sockets that misbehave."""

import http.client
import json
import re
import socket
import time

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

import argosy
from argosy.errors import ConfigError
from argosy.server.auth import presented_key
from argosy.server.config import ServerConfig
from argosy.server.protocol.errors import ErrorResponse
from argosy.server.protocol.models import ModelList

GUARDED = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/v1/models/x",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
]
OPEN = ["/health", "/health/live", "/health/ready", "/health/inference", "/metrics", "/version", "/docs", "/openapi.json"]


def read_all(connection):
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    return data


def error_of(answer):
    return ErrorResponse.model_validate(answer.json()).error


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/v1/responses", "/nothing", "/v1/models/", "/v1/chat/completions/", "/"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_paths_that_do_not_exist(server, path, method):
    answer = server.http.request(method, path)
    assert answer.status_code in (404, 405)
    assert error_of(answer).code in ("not_found", "method_not_allowed", "model_not_found")
    assert "location" not in answer.headers


def test_embeddings_through_the_client(server):
    with pytest.raises(openai.NotFoundError) as caught:
        server.openai().embeddings.create(model="fake-model", input="x")
    assert caught.value.type == "not_found_error"


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/completions"), ("POST", "/v1/models"), ("PUT", "/health")])
def test_wrong_method(server, method, path):
    answer = server.http.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"]
    assert error_of(answer).code == "method_not_allowed"


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/version", "/metrics", "/nothing"])
def test_head_has_the_status_and_no_body(server, path):
    with_body, head = server.http.get(path), server.http.head(path)
    assert head.status_code == with_body.status_code
    assert head.content == b""
    assert server.http.get("/version").status_code == 200


def test_models(make_server):
    server = make_server(served_model_names=("one", "org/two"))
    listed = ModelList.model_validate(server.http.get("/v1/models").json())
    assert [card.id for card in listed.data] == ["one", "org/two"]
    assert listed.data[0].max_model_len == 512
    assert "/secret" not in server.http.get("/v1/models").text
    assert server.openai().models.retrieve("org/two").id == "org/two"
    with pytest.raises(openai.NotFoundError):
        server.openai().models.retrieve("fake-model")
    assert server.chat(model="org/two").json()["model"] == "org/two"
    assert server.chat().json()["model"] == "one"
    assert server.chat(model="fake-model").status_code == 404


def test_version(server):
    assert server.http.get("/version").json() == {"version": argosy.__version__}


def test_every_open_and_guarded_path_knows_its_key(make_server):
    server = make_server(api_keys=("sk-one", "sk-two"))
    for path in OPEN:
        assert server.http.get(path).status_code == 200, path
    for path in GUARDED:
        for headers in ({}, {"authorization": "Bearer sk-three"}, {"authorization": "sk-one"}, {"x-api-key": "SK-ONE"}):
            answer = server.http.get(path, headers=headers)
            assert answer.status_code == 401, path
            assert error_of(answer).code == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
        for headers in ({"authorization": "bearer sk-two"}, {"x-api-key": "sk-one"}, {"api-key": "sk-one"}):
            assert server.http.get(path, headers=headers).status_code in (200, 404, 405), path
    with pytest.raises(openai.AuthenticationError):
        server.openai("sk-x").models.list()
    assert server.openai("sk-two").models.list().data


def test_keys_are_not_kept():
    config = ServerConfig(api_keys=["sk-secret"])
    assert "sk-secret" not in repr(config)
    assert not any(b"sk-secret" in digest for digest in config.api_key_digests)
    assert presented_key({"authorization": "Basic abc", "api-key": "k"}) == "k"


@pytest.mark.parametrize(
    "settings",
    [
        {"port": -1}, {"port": 65536}, {"api_keys": [""]}, {"api_keys": "sk"}, {"api_keys": [" k"]},
        {"max_body_bytes": 0}, {"max_prompts": 0}, {"keep_alive_timeout_s": 0}, {"max_concurrent_requests": 0},
        {"body_timeout_s": 0}, {"header_timeout_s": -1}, {"inference_check_timeout_s": 0}, {"ping_interval_s": -1},
        {"drain_timeout_s": -1}, {"inference_check_ttl_s": -1}, {"inference_entropy_band": (0.5, 0.1)},
        {"inference_entropy_band": (0, 2)}, {"log_level": "loud"}, {"log_format": "xml"}, {"served_model_names": (" ",)},
        {"drain_timeout_s": float("nan")},
    ],
)  # fmt: skip
def test_settings_out_of_range(settings):
    with pytest.raises(ConfigError):
        ServerConfig(**settings)


def test_request_ids_are_echoed_or_made(server):
    assert server.http.get("/health", headers={"x-request-id": "abc-1.2:3"}).headers["x-request-id"] == "abc-1.2:3"
    made = {server.chat().headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    for bad in ("a b", "x" * 129, 'a"b', "a;b"):
        answer = server.http.get("/health", headers={"x-request-id": bad})
        assert answer.status_code == 400
        assert error_of(answer).param == "x-request-id"
        assert answer.headers["x-request-id"] != bad


def test_answers_behind_a_key_are_not_cached(server):
    answer = server.chat()
    assert answer.headers["cache-control"] == "private, no-store"
    assert answer.headers["vary"] == "Authorization"


def test_documentation_is_complete_and_needs_no_other_host(server):
    document = server.http.get("/openapi.json").json()
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ChatCompletionRequest")
    assert {"200", "400", "401", "404", "413", "429", "500", "503"} <= set(chat["responses"])
    schemas = document["components"]["schemas"]
    assert set(schemas["ErrorDetail"]["properties"]) == {"message", "type", "param", "code"}

    def references(node):
        if isinstance(node, dict):
            yield from ([node["$ref"]] if "$ref" in node else [])
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    assert {ref.rpartition("/")[2] for ref in references(document)} <= set(schemas)
    page = server.http.get("/docs").text
    assert "temperature" in page
    assert "400 A field is missing, unknown, not supported or out of range; <code>param</code> names it." in page
    assert "/v1/completions" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page


def test_documentation_can_be_left_out(make_server):
    server = make_server(docs=False)
    assert server.http.get("/docs").status_code == 404
    assert server.http.get("/openapi.json").status_code == 404


def test_metrics_count_requests_by_route_and_status(make_server):
    server = make_server()
    server.chat()
    server.http.get("/v1/models/some/unknown/name")
    for path in ("/x", "/y"):
        server.http.get(path)
    families = {f.name: f for f in text_string_to_metric_families(server.http.get("/metrics").text)}
    counts = {
        (s.labels["method"], s.labels["route"], s.labels["status"]): s.value
        for s in families["argosy_http_requests"].samples
        if s.name.endswith("_total")
    }
    assert counts["POST", "/v1/chat/completions", "200"] == 1
    assert counts["GET", "/v1/models/{model:path}", "404"] == 1
    assert counts["GET", "unmatched", "404"] == 2
    assert families["argosy_http_requests_in_flight"].samples[0].value == 1  # this one
    info = families["vllm:cache_config_info"].samples[0]
    assert (info.labels["block_size"], info.labels["num_gpu_blocks"], info.value) == ("16", "64", 1)


def test_openmetrics_on_request(server):
    answer = server.http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_a_body_at_and_above_the_limit(make_server):
    server = make_server(max_body_bytes=1000)
    body = json.dumps({"prompt": "hi", "user": ""})
    fitting = json.dumps({"prompt": "hi", "user": "u" * (500 - len(body))}) + " " * 500
    json_type = {"content-type": "application/json"}
    assert len(fitting) == 1000
    assert server.http.post("/v1/completions", content=fitting, headers=json_type).status_code == 200
    for content in (fitting + " ", iter([fitting.encode(), b" "])):  # with Content-Length, and chunked
        answer = server.http.post("/v1/completions", content=content, headers=json_type)
        assert answer.status_code == 413
        assert error_of(answer).code == "payload_too_large"
        assert answer.headers["connection"] == "close"
    assert server.complete().status_code == 200


def test_a_large_body_is_refused_before_it_is_sent(make_server):
    server = make_server(max_body_bytes=1000)
    with server.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(("length", "status"), [("0" * 5000 + "15", 200), ("9" * 19, 413), ("0" * 5000 + "1" * 15, 413)])
def test_a_length_of_any_number_of_digits(server, length, status):
    with server.connect() as connection:
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
        connection.sendall(b'{"prompt":"hi"}')
        assert connection.recv(65536).startswith(f"HTTP/1.1 {status}".encode())


def test_a_client_that_sends_everything_first_still_sees_the_refusal(make_server):
    server = make_server(max_body_bytes=1000)
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    client.request("POST", "/v1/completions", body=b"x" * 5_000_000, headers={"Content-Type": "application/json"})
    assert client.getresponse().status == 413


def test_an_endless_chunked_body_is_cut_off(make_server):
    server = make_server(max_body_bytes=100_000)
    chunk = b"2000\r\n" + b"x" * 0x2000 + b"\r\n"
    with server.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            connection.sendall(chunk)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")
        assert is_cut_off(connection, chunk)
    assert server.complete().status_code == 200


def is_cut_off(connection, chunk):
    """Whether the server closes while we go on sending."""
    try:
        while True:
            connection.sendall(chunk)
    except ConnectionError:
        return True


def test_a_body_that_does_not_come(make_server):
    server = make_server(body_timeout_s=0.2)
    with server.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert connection.recv(65536).startswith(b"HTTP/1.1 408")
    assert server.complete().status_code == 200


@pytest.mark.parametrize("start", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\nX-A"])
def test_a_head_that_does_not_come(make_server, start):
    server = make_server(header_timeout_s=0.2)
    with server.connect() as connection:
        connection.sendall(start)
        assert read_all(connection) == b""
    assert server.complete().status_code == 200


def test_a_slow_answer_outlives_the_timeouts_of_the_request(make_server, script):
    server = make_server(header_timeout_s=0.1, body_timeout_s=0.1)
    server.engine.script = script(text="abcd", delay_s=0.1)
    assert server.complete().json()["choices"][0]["text"] == "abcd"


def test_an_oversized_head(server):
    with server.connect() as connection:
        try:
            connection.sendall(b"GET /health HTTP/1.1\r\nX-A: " + b"a" * 200_000 + b"\r\n\r\n")
            assert read_all(connection).startswith(b"HTTP/1.1 400")
        except ConnectionError:
            pass  # closed while we were still sending
    assert server.complete().status_code == 200


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"GET\r\n\r\n", b"\x00" * 100])
def test_bytes_that_are_not_http(server, garbage):
    with server.connect() as connection:
        connection.sendall(garbage)
        assert b"200 OK" not in read_all(connection)
    assert server.complete().status_code == 200


def test_expect_continue(server):
    body = b'{"prompt": "hi"}'
    with server.connect() as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert b"200 OK" in connection.recv(65536)


def test_pipelined_requests_are_answered_in_order(server):
    with server.connect() as connection:
        request = b"GET /%b HTTP/1.1\r\nHost: x\r\n%b\r\n"
        paths = [b"version", b"health", b"nothing", b"v1/models", b"version", b"health", b"version"]
        connection.sendall(b"".join(request % (p, b"") for p in paths) + request % (b"version", b"Connection: close\r\n"))
        answer = read_all(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"200", b"404"] + [b"200"] * 5


def test_too_many_at_once(make_server, script, wait_until):
    server = make_server(max_concurrent_requests=1)
    server.engine.script = script(hang_at=1)
    with server.send_post("/v1/completions", {"prompt": "x"}):
        wait_until(lambda: server.engine.running)
        answer = server.complete()
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        assert server.http.get("/health").status_code == 200
    wait_until(lambda: not server.engine.running)
    server.engine.script = script()
    wait_until(lambda: server.complete().status_code == 200)


def test_silence_in_a_stream_is_filled(make_server, script):
    server = make_server(ping_interval_s=0.05)
    server.engine.script = script(text="ab", delay_s=0.3)
    text = server.chat(stream=True).text
    assert text.count(": keep-alive\n\n") >= 4
    assert text.endswith("data: [DONE]\n\n")
    server.engine.script = script()
    answer = server.openai().chat.completions.create(
        model="fake-model", messages=[{"role": "user", "content": "x"}], stream=True
    )
    assert "".join(c.choices[0].delta.content or "" for c in answer) == "Hello world"


def test_a_slow_reader_does_not_hold_the_engine(make_server, script, wait_until):
    server = make_server()
    server.engine.script = script(text="x" * 60_000)
    connection = server.send_post("/v1/completions", {"prompt": "x", "max_tokens": None, "stream": True})
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with connection:
        connection.recv(100)
        assert server.complete(max_tokens=2).status_code == 200
        time.sleep(0.1)
        assert server.complete(max_tokens=2).status_code == 200
    wait_until(lambda: not server.engine.running)


def test_a_port_in_use(make_server):
    from argosy.server.run import bind

    server = make_server()
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{server.port}: .*in use"):
        bind(ServerConfig(port=server.port))
    with pytest.raises(ConfigError, match=re.escape("cannot listen on 192.0.2.1")):
        bind(ServerConfig(host="192.0.2.1"))
