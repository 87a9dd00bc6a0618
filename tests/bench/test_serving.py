"""The load generator against a scripted server on a real socket."""

import asyncio
import ssl
import time

import pytest

from argosy.bench.generator import Generator, Prepared
from argosy.bench.http_exchange import ConnectionPool, Origin
from argosy.bench.load import fixed_lengths, poisson, warmup_load
from argosy.bench.serve_run import Client, ServeSettings
from argosy.bench.target import Target, parse_extra_body
from argosy.errors import ConfigError, EngineUnavailable, UnknownModel

CLOSED = ServeSettings(concurrency=2, num_warmup=0)


def drive(scripted, load, settings=CLOSED, **client):
    with Client(scripted.url, **client) as connected:
        return connected.run(connected.prepare(load, 0), [], settings)


def outcome(scripted, answer, **settings) -> tuple[str, str]:
    scripted.answer = answer
    run, _ = drive(scripted, fixed_lengths(1, 4, 3), ServeSettings(concurrency=1, num_warmup=0, **settings))
    (record,) = run.records
    return record.error, record.message


def test_an_answer_is_timed_and_counted(scripted, sse):
    scripted.answer = sse.words_answer(3, gap_s=0.2)
    run, result = drive(scripted, fixed_lengths(1, 6, 3))
    (record,) = run.records
    assert (record.error, record.prompt_tokens, record.output_tokens) == ("", 6, 3)
    assert len(record.arrivals_s) == 3
    assert record.sent_s < record.arrivals_s[0] < record.arrivals_s[-1] < record.done_s
    assert (result.output_tokens, result.prompt_mismatches, result.short_outputs) == (3, 0, 0)


def test_requests_ask_for_streamed_greedy_answers_of_the_planned_length(scripted, sse):
    scripted.answer = sse.words_answer(2)
    drive(scripted, fixed_lengths(1, 6, 2), api_key="sk-7", extra_body={"temperature": 0.5, "cache_salt": "x"})
    (body,) = scripted.bodies
    assert len(body.pop("prompt").split()) == 6
    assert body == {
        "model": "m1",
        "max_tokens": 2,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "cache_salt": "x",
    }
    assert scripted.headers[0]["authorization"] == "Bearer sk-7"


def test_a_chat_asks_with_messages_and_reads_deltas(scripted, sse):
    async def answer(body, writer):
        parts = [{"role": "assistant", "content": ""}, {"content": "a"}, {"reasoning_content": "b"}, {}]
        events = [sse.event({"choices": [{"delta": part}]}) for part in parts]
        await sse.stream(writer, *events, sse.usage(30, 2), sse.DONE)

    scripted.answer = answer
    run, result = drive(scripted, fixed_lengths(1, 6, 2), endpoint="chat", ignore_eos=False)
    assert scripted.bodies[0]["messages"][0]["role"] == "user"
    assert "ignore_eos" not in scripted.bodies[0]
    assert (len(run.records[0].arrivals_s), run.records[0].text) == (2, "ab")
    assert result.prompt_mismatches == 1


def test_without_usage_the_servers_tokenizer_counts_the_answer(scripted, sse):
    scripted.answer = sse.words_answer(5, usage=False)
    _, result = drive(scripted, fixed_lengths(1, 4, 5))
    assert [(e.output_tokens, e.counted_by) for e in result.counted] == [(5, "tokenizer")]
    scripted.tokenize = False
    _, result = drive(scripted, fixed_lengths(1, 4, 5))
    assert [(e.output_tokens, e.counted_by) for e in result.counted] == [(5, "events")]


def test_failures_are_told_apart(scripted, sse):
    async def busy(body, writer):
        await sse.plain(writer, b'{"error": {"message": "too many\\nrequests"}}', "429 Too Many Requests")

    async def mute(body, writer):
        await asyncio.sleep(30)

    async def dies_in_the_stream(body, writer):
        await sse.stream(writer, sse.text("a"), sse.event({"error": {"message": "the engine stopped"}}))

    async def cut(body, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nda")
        await writer.drain()
        writer.close()

    async def unfinished(body, writer):
        await sse.stream(writer, sse.text("a"))

    async def silent(body, writer):
        await sse.stream(writer, sse.usage(4, 0), sse.DONE)

    async def garbage(body, writer):
        await sse.stream(writer, sse.event(b"{not json"), sse.DONE)

    async def no_http(body, writer):
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        await writer.drain()

    assert outcome(scripted, busy) == ("http_429", "too many requests")
    assert outcome(scripted, mute, timeout_s=0.2) == ("timeout", "no complete answer within 0.2 s")
    assert outcome(scripted, dies_in_the_stream) == ("stream_error", "the engine stopped")
    assert outcome(scripted, cut) == ("cut", "the server closed the connection before the answer was complete")
    assert outcome(scripted, unfinished) == ("cut", "the stream ended without [DONE]")
    assert outcome(scripted, silent) == ("no_text", "the stream ended without any text")
    assert outcome(scripted, garbage)[0] == "stream_error"
    assert outcome(scripted, no_http)[0] == "cut"


def test_an_open_loop_does_not_wait_for_answers(scripted, sse):
    """The server answers none before it has all ten."""
    arrived, everyone = 0, asyncio.Event()

    async def answer(body, writer):
        nonlocal arrived
        arrived += 1
        if arrived == 10:
            everyone.set()
        await everyone.wait()
        await sse.words_answer(1)(body, writer)

    scripted.answer = answer
    load = poisson(fixed_lengths(10, 4, 1), 50.0, 1)
    run, _ = drive(scripted, load, ServeSettings(num_warmup=0, timeout_s=20.0))
    assert [r.error for r in run.records] == [""] * 10
    assert [r.due_s for r in run.records] == pytest.approx([run.started_s + p.offset_s for p in load])
    assert all(r.sent_s >= r.due_s for r in run.records)
    assert run.lateness_s == tuple(r.sent_s - r.due_s for r in run.records)


def test_latency_of_an_open_loop_includes_the_time_a_request_was_kept_waiting(scripted, sse):
    """A generator that stalls sends late; the server is quick, and yet the latency seen is long."""
    scripted.answer = sse.words_answer(1)
    load = list(poisson(fixed_lengths(5, 4, 1), 100.0, 0))

    async def stalled():
        pool = ConnectionPool(Origin.parse(scripted.url), time.perf_counter)
        target = Target(Origin.parse(scripted.url), "m1")
        prepared = [Prepared(p, target.request(p, "a b c d")) for p in load]
        asyncio.get_running_loop().call_later(0.02, time.sleep, 0.5)
        run = await Generator(pool, time.perf_counter, timeout_s=10).open_loop(prepared)
        await pool.close()
        return run

    run = asyncio.run(stalled())
    assert max(run.lateness_s) > 0.3
    assert max(r.ttft_s for r in run.records) > 0.3
    assert max(run.loop_lag_s) > 0.3


def test_a_closed_loop_keeps_so_many_under_way_and_reuses_their_connections(scripted, sse):
    flying, most, three = 0, 0, asyncio.Event()

    async def answer(body, writer):
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        if flying == 3:
            three.set()
        await three.wait()
        await asyncio.sleep(0.01)
        flying -= 1
        await sse.words_answer(1)(body, writer)

    scripted.answer = answer
    with Client(scripted.url) as client:
        prepared = client.prepare(fixed_lengths(12, 4, 1), 0)
        before = scripted.num_connections
        run, result = client.run(prepared, [], ServeSettings(concurrency=3, num_warmup=0))
    assert most == 3
    assert scripted.num_connections - before == 3
    assert [r.planned.index for r in run.records] == list(range(12))
    assert all(r.due_s == r.sent_s for r in run.records)
    assert len(result.counted) == 12


def test_a_duration_ends_a_closed_loop(scripted, sse):
    scripted.answer = sse.words_answer(1, gap_s=0.1)
    run, _ = drive(scripted, fixed_lengths(100, 4, 1), ServeSettings(concurrency=2, duration_s=0.35, num_warmup=0))
    assert 2 <= len(run.records) <= 8
    assert all(r.is_good for r in run.records)


def test_an_idle_connection_that_the_server_closes_costs_no_request(scripted, sse):
    scripted.answer, scripted.close_idle = sse.words_answer(1), True
    _, result = drive(scripted, fixed_lengths(6, 4, 1), ServeSettings(concurrency=1, num_warmup=0))
    assert result.errors == {}


def test_a_body_that_ends_with_the_connection_is_complete(scripted, sse):
    async def answer(body, writer):
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + sse.text("a") + sse.usage(4, 1) + sse.DONE)
        await writer.drain()
        writer.close()

    assert outcome(scripted, answer) == ("", "")


def test_a_server_that_cannot_be_used_is_told_before_anything_is_sent(scripted):
    with pytest.raises(UnknownModel, match="does not serve 'm2'; it serves m1"):
        Client(scripted.url, model="m2")
    for body in (b"<html>", b"[]", b'{"data": []}'):
        scripted.models = body
        with pytest.raises(EngineUnavailable, match="does not speak the OpenAI protocol"):
            Client(scripted.url)
    with pytest.raises(EngineUnavailable, match="no server answers at"):
        Client("http://127.0.0.1:9")


def test_a_failing_warmup_stops_the_run(scripted, sse):
    async def refuse(body, writer):
        await sse.plain(writer, b'{"error": {"message": "no"}}', "400 Bad Request")

    scripted.answer = refuse
    with Client(scripted.url) as client:
        load = fixed_lengths(2, 4, 1)
        prepared, warmup = client.prepare(load, 0), client.prepare(warmup_load(load, 1), 0)
        with pytest.raises(EngineUnavailable, match="no request of the warm-up was answered: http_400: no"):
            client.run(prepared, warmup, CLOSED)


def test_a_request_longer_than_the_server_takes_is_refused_beforehand(scripted):
    with Client(scripted.url) as client, pytest.raises(ConfigError, match="2000 \\+ 100 tokens, m1 takes 2048"):
        client.prepare(fixed_lengths(1, 2000, 100), 0)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("127.0.0.1:8000", "must be like"),
        ("ftp://h", "must be like"),
        ("http://", "must be like"),
        ("http://h:x", "is no URL"),
    ],
)
def test_a_base_url_that_is_none_is_refused(url, told):
    with pytest.raises(ConfigError, match=told):
        Origin.parse(url)


def test_origins_are_read_with_and_without_v1():
    assert Origin.parse("http://h:81/v1/").url == "http://h:81"
    assert Origin.parse("https://h/gate/v1").url == "https://h/gate"
    assert Origin.parse("https://h").port == 443
    assert Origin.parse("http://[::1]:8000").authority == "[::1]:8000"
    assert isinstance(ConnectionPool(Origin.parse("https://h"), time.perf_counter)._tls, ssl.SSLContext)


@pytest.mark.parametrize("text", ["{", "[]", '{"stream": false}', '{"prompt": "x"}', '{"max_tokens": 3}'])
def test_extra_fields_that_would_spoil_the_load_are_refused(text):
    with pytest.raises(ConfigError, match="--extra-body"):
        parse_extra_body(text)


@pytest.mark.parametrize("settings", [{"concurrency": 0}, {"num_warmup": -1}, {"duration_s": 0.0}, {"timeout_s": 0.0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match=r"must (be|not)"):
        ServeSettings(**settings)
