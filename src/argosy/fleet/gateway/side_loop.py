"""An event loop in a thread of its own, for work that must neither hold up the data path nor wait for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class SideLoop:
    """Runs from `start` to `stop`. Its methods may be called from any thread but its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; returns when its loop runs."""
        started = threading.Event()

        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            started.set()
            await self._stop.wait()

        self._thread = threading.Thread(target=lambda: asyncio.run(main()), name=self._name, daemon=True)
        self._thread.start()
        started.wait()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function` on the loop, soon. Ignored when the loop has ended."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(function, *args)

    def run(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        """Run `work` on the loop; `asyncio.wrap_future` makes the result awaitable elsewhere."""
        assert self._loop is not None, "start comes first"
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Cancel what runs and end the thread. Idempotent."""
        if self._thread is not None and self._thread.is_alive():
            self.call(self._stop.set)
            self._thread.join(timeout_s)
        self._thread = None
