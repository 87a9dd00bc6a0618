"""HTTP/1.1 as clients really speak it, and as they should not."""

import asyncio
import time
import tracemalloc

import pytest

from argosy.errors import ConfigError
from argosy.fleet.gateway.client_connection import ClientConnection, ServerLimits
from argosy.fleet.gateway.http_server import HttpServer

HEAD = b"POST /x HTTP/1.1\r\nhost: a\r\n"


async def echo(request, writer):
    """Answers with what it got; `/stream` in chunks, `/slow` later, `/big` with much, `/fail` not at all."""
    if request.path == "/slow":
        await asyncio.sleep(0.2)
    if request.path == "/fail":
        raise ValueError("broken")
    if request.path == "/half":
        writer.start(200, [], b"half")
        raise ValueError("broken")
    if request.path == "/stream":
        writer.start(200, [(b"x-a", b"1")], b"one")
        writer.write(b"two")
        writer.finish(b"three")
    elif request.path == "/big":
        writer.start(200, [], b"")
        for _ in range(1000):
            while writer.is_paused:
                resumed = asyncio.get_running_loop().create_future()
                writer.on_resume = lambda resumed=resumed: resumed.done() or resumed.set_result(None)
                await resumed
            writer.write(b"x" * 65536)
        writer.finish()
    else:
        lines = [f"{request.method} {request.path}?{request.query} {len(request.body)}".encode()]
        lines += [b"%b=%b" % pair for pair in sorted(request.headers.items())]
        writer.send(200, [], b"\n".join([*lines, request.body]))


@pytest.fixture
async def serve():
    """Starts a server with the given limits; its address as `connect` wants it."""
    servers = []

    async def start(handler=echo, **limits):
        server = HttpServer(handler, ServerLimits(**limits))
        await server.start("127.0.0.1", 0)
        servers.append(server)
        return server, f"http://127.0.0.1:{server.port}"

    yield start
    for server in servers:
        await server.close()
        assert (server.num_connections, server.num_answering, server.held_bytes) == (0, 0, 0)


async def ends(client):
    """Whether the server closes the connection."""
    try:
        return await asyncio.wait_for(client.reader.read(), 5.0) == b""
    except ConnectionError:
        return True


async def test_requests_one_after_the_other(serve, connect):
    _, url = await serve()
    client = await connect(url)
    for body in (b"", b"abc", b"x" * 100_000):
        answer = await client.ask(body, path="/p?q=1", key=None)
        assert answer.status == 200
        assert answer.body.startswith(b"POST /p?q=1 %d\n" % len(body))
        assert answer.body.endswith(b"\n" + body)


async def test_every_byte_by_itself(serve, connect):
    _, url = await serve()
    client = await connect(url)
    for byte in HEAD + b"X-A: b\r\ncontent-length: 3\r\n\r\nabc":
        client.write(bytes([byte]))
        await asyncio.sleep(0)
    answer = await client.answer()
    assert b"x-a=b" in answer.body
    assert answer.body.endswith(b"\nabc")


async def test_a_chunked_body(serve, connect):
    _, url = await serve()
    client = await connect(url)
    client.write(HEAD + b"transfer-encoding: chunked\r\n\r\n3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nx-trailer: 1\r\n\r\n")
    answer = await client.answer()
    assert answer.body.endswith(b"\nabcde")
    assert b"x-trailer" not in answer.body


async def test_requests_behind_each_other_are_answered_in_order(serve, connect):
    _, url = await serve()
    client = await connect(url)
    for number in range(12):
        client.send(b"", path="/slow" if number == 0 else f"/{number}", key=None)
    for number in range(12):
        answer = await client.answer()
        assert b"/slow" in answer.body if number == 0 else answer.body.startswith(b"POST /%d?" % number)


async def test_continue_is_sent_when_it_is_asked_for(serve, connect):
    _, url = await serve()
    client = await connect(url)
    client.write(HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    assert (await client.head())[0] == 100
    client.write(b"ab")
    assert (await client.answer()).body.endswith(b"\nab")
    client.write(HEAD + b"expect: 100-continue\r\ncontent-length: 99999999999\r\n\r\n")
    assert (await client.answer()).status == 413


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc", 400),
        (HEAD + b"content-length: -1\r\n\r\n", 400),
        (HEAD + b"content-length: 1000001\r\n\r\n", 413),
        (HEAD + b"content-length: 99999999999999999999\r\n\r\n", 400),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"ffff\r\n" + b"x" * 0xFFFF + b"\r\nffffff\r\n" + b"x" * 10**6, 413),
        (HEAD + b"x: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\n\r\n", 431),
        (HEAD + b"expect: something\r\n\r\n", 417),
        (HEAD + b"a b: c\r\n\r\n", 400),
        (HEAD + b" folded\r\n\r\n", 400),
    ],
)
async def test_what_is_refused(serve, connect, data, status):
    _server, url = await serve(max_body_bytes=1_000_000)
    client = await connect(url)
    client.write(data)
    answer = await client.answer()
    assert answer.status == status
    assert answer.document["error"]["message"]
    assert answer.headers["connection"] == "close"
    client.writer.close()
    assert await ends(client)


async def test_what_came_before_nonsense_is_answered(serve, connect):
    _, url = await serve()
    client = await connect(url)
    client.send(b"", path="/slow", key=None)
    client.write(b"NONSENSE\r\n\r\n")
    assert (await client.answer()).status == 200
    assert (await client.answer()).status == 400


async def test_a_stream(serve, connect):
    _, url = await serve()
    client = await connect(url)
    answer = await client.ask(b"", path="/stream", key=None)
    assert (answer.body, answer.headers["x-a"]) == (b"onetwothree", "1")
    client.write(b"GET /stream HTTP/1.0\r\n\r\n")
    answer = await client.answer()
    assert "transfer-encoding" not in answer.headers
    assert answer.body == b"onetwothree"


async def test_head_has_no_body(serve, connect):
    _, url = await serve()
    client = await connect(url)
    client.write(b"HEAD /x HTTP/1.1\r\n\r\n")
    _, headers = await client.head()
    assert int(headers["content-length"]) > 0
    assert (await client.ask(b"", key=None)).status == 200


async def test_an_upgrade_is_not_followed(serve, connect):
    _, url = await serve()
    client = await connect(url)
    asking = HEAD + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAQ\r\nx-kept: 1\r\n"
    client.write(asking + b"content-length: 2\r\n\r\nab" + asking + b"transfer-encoding: chunked\r\n\r\n1\r\nc\r\n")
    answer = await client.answer()
    assert answer.body.endswith(b"\nab")
    assert b"x-kept=1" in answer.body
    assert b"upgrade" not in answer.body
    client.write(b"0\r\n\r\n" + asking + b"\r\n" + HEAD + b"\r\n")
    assert (await client.answer()).body.endswith(b"\nc")
    assert [(await client.answer()).status for _ in range(2)] == [200, 200]


async def test_many_upgrades_behind_each_other(serve, connect):
    _, url = await serve(max_pipelined=5000)
    client = await connect(url)
    client.write(b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n" * 3000)
    assert [(await client.answer()).status for _ in range(3000)] == [200] * 3000


async def test_no_tunnel_is_opened(serve, connect):
    _, url = await serve()
    client = await connect(url)
    client.write(b"CONNECT 10.0.0.1:22 HTTP/1.1\r\nhost: 10.0.0.1:22\r\n\r\n" + HEAD + b"\r\n")
    assert b"CONNECT 10.0.0.1:22" in (await client.answer()).body
    assert await ends(client)


def test_a_body_in_tiny_chunks_takes_no_more_memory_than_is_counted():
    class Transport(asyncio.Transport):
        def set_write_buffer_limits(self, high=None, low=None):
            pass

    async def answered_later(request, writer):
        await asyncio.sleep(0)

    async def receive():
        server = HttpServer(answered_later, ServerLimits())
        await server.start("127.0.0.1", 0)
        connection = ClientConnection(server)
        connection.connection_made(Transport({"peername": ("127.0.0.1", 1)}))
        connection.data_received(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        tracemalloc.start()
        for _ in range(100):
            connection.data_received(b"2\r\nab\r\n" * 1000)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert server.held_bytes == 200_000
        connection.connection_lost(None)
        await server.close()
        return taken

    assert asyncio.run(receive()) < 600_000


async def test_a_body_counts_until_its_answer_has_ended_whatever_follows_it(serve, connect, wait_until):
    server, url = await serve()
    client = await connect(url)
    client.send(b"x" * 100_000, path="/slow", key=None)
    client.write(b"\x00 nonsense\r\n\r\n")
    await wait_until(lambda: server.num_answering == 1)
    await asyncio.sleep(0.05)
    assert server.held_bytes == 100_000
    assert (await client.answer()).status == 200
    assert (await client.answer()).status == 400


@pytest.mark.parametrize("sent", [b"", b"POST /x HT", HEAD, HEAD + b"content-length: 9\r\n\r\nabc"])
async def test_slow_senders_are_cut_off(serve, connect, sent):
    _server, url = await serve(head_timeout_s=0.2, body_timeout_s=0.2, keep_alive_s=0.2)
    client = await connect(url)
    client.write(sent)
    begun_s = time.monotonic()
    data = await asyncio.wait_for(client.reader.read(), 5.0)
    assert data == b"" if not sent else data.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - begun_s < 3.0
    client.writer.close()


async def test_trickling_does_not_help(serve, connect):
    _server, url = await serve(head_timeout_s=0.3)
    client = await connect(url)
    answering = asyncio.ensure_future(client.reader.read())
    client.write(HEAD)
    while not answering.done():
        client.write(b"x: y\r\n")
        await asyncio.sleep(0.02)
    assert answering.result().startswith(b"HTTP/1.1 408 ")


async def test_idle_connections_are_closed_and_busy_ones_are_not(serve, connect):
    _, url = await serve(keep_alive_s=0.1)
    client = await connect(url)
    assert (await client.ask(b"", path="/slow", key=None)).status == 200
    assert await ends(client)


async def test_a_client_that_does_not_read(serve, connect):
    server, url = await serve(stall_timeout_s=0.3, buffer_bytes=65536)
    client = await connect(url)
    client.send(b"", path="/big", key=None)
    await asyncio.sleep(0.1)
    client.reader._transport.pause_reading()
    begun_s = time.monotonic()
    while server.num_connections:
        assert time.monotonic() - begun_s < 5.0
        await asyncio.sleep(0.02)


async def test_a_slow_reader_gets_everything(serve, connect):
    _, url = await serve(stall_timeout_s=0.5, buffer_bytes=65536)
    client = await connect(url)
    client.send(b"", path="/big", key=None)
    answer = await client.answer()
    assert len(answer.body) == 65536 * 1000


@pytest.mark.parametrize("behind", [0, 1, 3])
async def test_a_client_that_leaves_ends_the_handler(serve, connect, behind):
    ended = []

    async def wait(request, writer):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append(writer.client_gone)
            raise

    _server, url = await serve(wait)
    client = await connect(url)
    for _ in range(1 + behind):
        client.send(b"", key=None)
    await asyncio.sleep(0.05)
    client.close()
    await asyncio.sleep(0.05)
    assert ended == [True]


async def test_faults_of_the_handler(serve, connect, caplog):
    _, url = await serve()
    client = await connect(url)
    answer = await client.ask(b"", path="/fail", key=None)
    assert answer.status == 500
    assert b"broken" not in answer.body
    client.send(b"", path="/half", key=None)
    await client.head()
    assert await client.chunk() == b"half"
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ValueError)):
        await client.chunk()
    caplog.clear()


async def test_one_connection_too_many(serve, connect):
    _server, url = await serve(max_connections=2)
    clients = [await connect(url) for _ in range(2)]
    for client in clients:
        assert (await client.ask(b"", key=None)).status == 200
    assert await ends(await connect(url))
    clients[0].close()
    await asyncio.sleep(0.05)
    assert (await (await connect(url)).ask(b"", key=None)).status == 200


async def test_draining(serve, connect):
    server, url = await serve()
    idle, busy = await connect(url), await connect(url)
    await idle.ask(b"", key=None)
    busy.send(b"", path="/slow", key=None)
    await asyncio.sleep(0.05)
    server.stop_accepting()
    assert await ends(idle)
    answer = await busy.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await ends(busy)
    with pytest.raises(ConnectionRefusedError):
        await connect(url)


def test_limits_are_checked():
    with pytest.raises(ConfigError, match="max_body_bytes"):
        ServerLimits(max_body_bytes=0)


async def test_bodies_are_held_up_to_a_bound(serve, connect):
    server, url = await serve(max_held_bytes=250_000)
    waiting = [await connect(url) for _ in range(2)]
    for client in waiting:
        client.send(b"x" * 100_000, path="/slow", key=None)
    await asyncio.sleep(0.05)
    assert server.held_bytes == 200_000
    refused = await connect(url)
    answer = await refused.ask(b"x" * 100_000, key=None)
    assert (answer.status, answer.document["error"]["code"]) == (429, "queue_full")
    refused.close()
    for client in waiting:
        assert (await client.answer()).status == 200
    assert server.held_bytes == 0
    assert (await waiting[0].ask(b"x" * 100_000, key=None)).status == 200
