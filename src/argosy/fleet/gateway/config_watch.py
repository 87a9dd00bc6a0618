"""Reading the configuration again while the gateway runs: on SIGHUP, or when the file has changed.

A file that is wrong changes nothing: the old configuration stays in force and one line of the log says why.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from argosy.errors import ArgosyError, ConfigError
from argosy.fleet.gateway.config import GatewayConfig, load_config, read_secrets
from argosy.observe.logs import log_event

_LOGGER = logging.getLogger("argosy.gateway.config")
# What sockets, stores and files are opened with. To change it, start another gateway and drain this one.
FIXED = (
    "listen",
    "auth",
    "store",
    "redis",
    "observability.access_log",
    "observability.access_log_lines",
    "observability.max_label_values",
    "observability.tracing",
)

Apply = Callable[[GatewayConfig, Mapping[str, str]], None]
"""Puts a configuration and its secrets in force, all of it or nothing. Raises `ArgosyError` for nothing."""


class ConfigWatch:
    """Keeps the configuration in force. Belongs to the event loop.

    Attributes:
        config: in force.
        num_refused: files that were not taken over.
    """

    def __init__(
        self,
        path: Path,
        config: GatewayConfig,
        apply: Apply,
        *,
        amend: Callable[[GatewayConfig], GatewayConfig] = lambda config: config,
        on_read: Callable[[str], None] = lambda _result: None,
        environment: Mapping[str, str] | None = None,
        interval_s: float = 2.0,
    ) -> None:
        """`config` is in force already.

        Args:
            amend: what the command line changes in the file's configuration.
            on_read: told "applied" or "refused" after every reading.
            environment: for secrets, this process's unless given.
            interval_s: from one look at the file to the next.
        """
        self.config = config
        self.num_refused = 0
        self._path = path
        self._apply = apply
        self._amend = amend
        self._on_read = on_read
        self._environment = environment
        self._interval_s = interval_s
        self._seen = _stamp(path)

    async def run(self) -> None:
        """Look at the file until cancelled. One that changed is read when it has been still for an interval."""
        changed = False
        while True:
            await asyncio.sleep(self._interval_s)
            stamp = _stamp(self._path)
            if stamp != self._seen:
                self._seen, changed = stamp, True
            elif changed:
                changed = False
                self.reload()

    def reload(self) -> bool:
        """Read the file and put it in force; return whether it was. Never raises for what a person can cause."""
        self._seen = _stamp(self._path)
        try:
            config = self._amend(load_config(self._path))
            check_changes(self.config, config)
            self._apply(config, read_secrets(config, self._environment))
        except ArgosyError as error:
            self.num_refused += 1
            log_event(_LOGGER, logging.ERROR, "configuration refused, the old one stays", reason=error.message)
            self._on_read("refused")
            return False
        changed = [field.name for field in dataclasses.fields(config) if _differ(config, self.config, field.name)]
        self.config = config
        log_event(_LOGGER, logging.INFO, "configuration in force", path=str(self._path), changed=changed)
        self._on_read("applied")
        return True


def check_changes(old: GatewayConfig, new: GatewayConfig) -> None:
    """Raise `ConfigError` for the first difference that cannot take effect while the gateway runs."""
    for path in FIXED:
        before, after = _at(old, path), _at(new, path)
        if before == after:
            continue
        name = path
        if dataclasses.is_dataclass(before) and dataclasses.is_dataclass(after):
            name += f".{next(field.name for field in dataclasses.fields(before) if _differ(before, after, field.name))}"
        raise ConfigError(f"{name} cannot change while the gateway runs; restart it", param=name)


def _at(config: object, path: str) -> object:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def _differ(one: object, other: object, name: str) -> bool:
    return bool(getattr(one, name) != getattr(other, name))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What tells one state of the file from another; a mounted configuration is replaced, not written."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
