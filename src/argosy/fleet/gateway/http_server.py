"""The gateway's HTTP/1.1 server: listens, keeps the connections, runs the handler for each request."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

from argosy.fleet.gateway.client_connection import ClientConnection, ServerLimits
from argosy.fleet.gateway.http_messages import Handler, HttpRequest, ResponseWriter


class HttpServer:
    """Listens, and keeps the connections. Belongs to one event loop.

    Attributes:
        is_draining: every answer from here on ends its connection.
        held_bytes: of the bodies of all requests that have not ended.
        date_line: header of every answer, renewed once a second.
    """

    def __init__(self, handler: Handler, limits: ServerLimits) -> None:
        self.limits = limits
        self.is_draining = False
        self.held_bytes = 0
        self.date_line = b""
        self._handler = handler
        self._connections: set[ClientConnection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # until start
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int, *, reuse_port: bool = False, backlog: int = 2048) -> None:
        """Listen on `host`:`port`; port 0 takes a free one."""
        self._loop = asyncio.get_running_loop()
        self.date_line = _date_line()
        self._server = await self._loop.create_server(
            lambda: ClientConnection(self), host, port, reuse_port=reuse_port, backlog=backlog
        )
        self._sweeper = self._loop.create_task(self._sweep())

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None, "start comes first"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def num_connections(self) -> int:
        """Connections open."""
        return len(self._connections)

    @property
    def num_answering(self) -> int:
        """Requests being answered."""
        return len(self._tasks)

    def stop_accepting(self) -> None:
        """Close the listening socket and idle connections; the others end after their answer."""
        self.is_draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close_if_idle()

    async def close(self) -> None:
        """Cut everything off."""
        self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.abort()
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    def now_s(self) -> float:
        """The loop's time."""
        return self._loop.time()

    def adopt(self, connection: ClientConnection) -> bool:
        """Take in a connection; False if there are too many."""
        if len(self._connections) >= self.limits.max_connections:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: ClientConnection) -> None:
        """It is closed."""
        self._connections.discard(connection)

    def start_task(self, request: HttpRequest, writer: ResponseWriter) -> asyncio.Task[None]:
        """Run the handler for one request."""
        task: asyncio.Task[None] = self._loop.create_task(self._handler(request, writer))  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _sweep(self) -> None:
        """End what has taken too long. One walk over all connections costs less than a timer per request."""
        limits = self.limits
        shortest_s = min(limits.head_timeout_s, limits.body_timeout_s, limits.keep_alive_s, limits.stall_timeout_s)
        while True:
            await asyncio.sleep(min(1.0, shortest_s / 4.0))
            self.date_line = _date_line()
            now_s = self.now_s()
            for connection in [each for each in self._connections if each.deadline_s < now_s]:
                connection.on_deadline()


def _date_line() -> bytes:
    return b"date: %b\r\n" % formatdate(time.time(), usegmt=True).encode()
