"""A gateway as a process: loop, signals, logs that never wait, configuration read again while it runs."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO, cast

from argosy import __version__
from argosy.fleet.gateway.config import GatewayConfig
from argosy.fleet.gateway.config_watch import ConfigWatch
from argosy.fleet.gateway.line_writer import LineStream, LineWriter
from argosy.fleet.gateway.metrics import Reading
from argosy.fleet.gateway.service import GatewayService
from argosy.observe.logs import configure_logging, log_event

_LOGGER = logging.getLogger("argosy.gateway")
_STDERR = 2
_LOG_LINES = 10_000


def run_gateway(
    path: Path,
    config: GatewayConfig,
    secrets: Mapping[str, str],
    *,
    amend: Callable[[GatewayConfig], GatewayConfig] = lambda config: config,
    on_started: Callable[[str], None] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; returns the process's exit code: 0, or 1 if requests had to be cut off.

    The first signal drains (`resilience.drain`), a second one quits at once with 128 + signal. SIGHUP reads the file again,
    as does a change of it, and goes on in a new access log.

    Args:
        path: of `config`; amend: what the command line changes in it, also when it is read again.
        on_started: told the URL when the gateway listens.

    Raises:
        ConfigError: the address cannot be bound, or a setting is impossible.
        StoreUnavailable: the store does not answer.
    """
    writer = LineWriter(_STDERR, max_lines=_LOG_LINES)
    settings = config.observability
    configure_logging(settings.log_level, settings.log_format, cast(TextIO, LineStream(writer)))
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(writer, path, config, secrets, amend, on_started))
    finally:
        writer.close()


async def _serve(
    log: LineWriter,
    path: Path,
    config: GatewayConfig,
    secrets: Mapping[str, str],
    amend: Callable[[GatewayConfig], GatewayConfig],
    on_started: Callable[[str], None] | None,
) -> int:
    service = GatewayService(config, secrets, version=__version__)
    metrics = service.observability.metrics
    metrics.add_source(lambda: [Reading("argosy_gateway_log_lines_dropped_total", ("events",), float(log.num_dropped))])
    metrics.on_reload("applied", time.time())

    def on_read(result: str) -> None:
        metrics.on_reload(result, time.time() if result == "applied" else None)

    watch = ConfigWatch(path, config, service.apply, amend=amend, on_read=on_read)
    leave = _Leaving()

    def on_hang_up() -> None:
        service.observability.reopen_log()
        watch.reload()

    loop = asyncio.get_running_loop()
    handlers: dict[int, Callable[[], object]] = {
        signal.SIGTERM: lambda: leave.on_signal(signal.SIGTERM),
        signal.SIGINT: lambda: leave.on_signal(signal.SIGINT),
        signal.SIGHUP: on_hang_up,
    }
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    watching = asyncio.create_task(watch.run())
    try:
        await service.start()
        if on_started is not None:
            on_started(url_of(config.listen.host, service.port))
        await leave.asked.wait()
        return await _drain(service, leave)
    finally:
        watching.cancel()
        await service.close()
        for number in handlers:
            loop.remove_signal_handler(number)


async def _drain(service: GatewayService, leave: _Leaving) -> int:
    """Drain until that is done or a second signal comes."""
    draining = asyncio.create_task(service.run_drain())
    hurry = asyncio.create_task(leave.at_once.wait())
    await asyncio.wait((draining, hurry), return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if draining.done():
        return 0 if draining.result() else 1
    draining.cancel()
    return leave.exit_code


class _Leaving:
    """What signals have asked for."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()
        self.exit_code = 0

    def on_signal(self, number: signal.Signals) -> None:
        if not self.asked.is_set():
            log_event(_LOGGER, logging.INFO, "asked to stop", signal=number.name)
            self.asked.set()
            return
        log_event(_LOGGER, logging.WARNING, "quitting at once", signal=number.name)
        self.exit_code = 128 + number
        self.at_once.set()


def url_of(host: str, port: int) -> str:
    """Where a gateway that listens there can be reached from this machine."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104, every address of the machine
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # not built for this platform
        return asyncio.new_event_loop
    return uvloop.new_event_loop
