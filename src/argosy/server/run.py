"""Putting the application on a socket, and taking it off again without cutting anyone short."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from argosy.engine.client import EngineClient
from argosy.errors import ConfigError
from argosy.observe.logs import log_event
from argosy.observe.metrics import EngineMetrics
from argosy.server.app import create_app
from argosy.server.config import ServerConfig
from argosy.server.http_protocol import protocol_class
from argosy.server.state import ServerState

_LOGGER = logging.getLogger("argosy.server")
FLUSH_S = 5
BACKLOG = 2048


def run_server(
    engine: EngineClient,
    config: ServerConfig,
    metrics: EngineMetrics | None = None,
    *,
    on_started: Callable[[str], None] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit code.

    The first signal drains: `/health/ready` answers 503, new requests are refused with 503, running ones go on for up to
    `drain_timeout_s` and are then aborted; exit code 0. A second signal quits at once; exit code 128 + signal.
    `on_started` is called with the server's URL when it listens. The engine is left to the caller.

    Raises:
        ConfigError: the address cannot be bound.
    """
    listener = bind(config)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(engine, config, metrics, listener, on_started))
    finally:
        listener.close()


def bind(config: ServerConfig) -> socket.socket:
    """A listening socket on `host`:`port`.

    Raises:
        ConfigError: the port is in use, needs privileges, or the host is not one of this machine's.
    """
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda option: option[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {reason}; choose another address with --host and --port"
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a listening socket can be reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn's server; signals are handled by `_Shutdown`, which drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(
    engine: EngineClient,
    config: ServerConfig,
    metrics: EngineMetrics | None,
    listener: socket.socket,
    on_started: Callable[[str], None] | None,
) -> int:
    app = create_app(engine, config, metrics)
    # What is there by then stays: a full collection over it would stop all threads for the better part of a second.
    gc.collect()
    gc.freeze()
    server = _Server(uvicorn_config(app, config))
    shutdown = _Shutdown(app.state.server, server)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shutdown.on_signal, number)
    try:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = url_of(listener)
        log_event(_LOGGER, logging.INFO, "listening", url=url, models=list(app.state.server.model_names))
        if on_started is not None:
            on_started(url)
        await serving
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        await shutdown.close()
        app.state.server.side_work.close()
        gc.unfreeze()
    return shutdown.exit_code


def uvicorn_config(app: Callable[..., object], config: ServerConfig) -> uvicorn.Config:
    """Settings under which uvicorn runs `app`."""
    return uvicorn.Config(
        app,
        http=protocol_class(config.header_timeout_s),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=config.keep_alive_timeout_s,
        timeout_graceful_shutdown=FLUSH_S,
    )


class _Shutdown:
    """Turns signals into a drain, and a second one into an end."""

    def __init__(self, state: ServerState, server: uvicorn.Server) -> None:
        self._state = state
        self._server = server
        self._drain: asyncio.Task[None] | None = None
        self.exit_code = 0

    def on_signal(self, number: int) -> None:
        if self._drain is None:
            log_event(_LOGGER, logging.INFO, "draining", signal=signal.Signals(number).name)
            self._state.draining = True
            self._drain = asyncio.create_task(self._drain_engine())
            return
        log_event(_LOGGER, logging.WARNING, "quitting at once", signal=signal.Signals(number).name)
        self.exit_code = 128 + number
        self._server.force_exit = True
        self._server.should_exit = True

    async def _drain_engine(self) -> None:
        try:
            complete = await self._state.engine.drain(self._state.config.drain_timeout_s)
            log_event(_LOGGER, logging.INFO, "drained", complete=complete)
        finally:
            self._server.should_exit = True

    async def close(self) -> None:
        """End the drain, if it still runs."""
        if self._drain is not None:
            self._drain.cancel()
            await asyncio.gather(self._drain, return_exceptions=True)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # not built for this platform
        return asyncio.new_event_loop
    return uvloop.new_event_loop
