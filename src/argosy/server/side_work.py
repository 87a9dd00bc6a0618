"""Work in proportion to what a request brings, done beside the event loop when that is much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.types import Receive

from argosy.server.connection import while_connected

Result = TypeVar("Result")
INLINE_SIZE = 16_384
LARGE_SIZE = 1 << 19
NUM_THREADS = 2


class SideWork:
    """The threads of one server. Sizes are in characters of text, or in what takes about as long.

    Up to `INLINE_SIZE` the event loop does the work itself, for handing it over would take longer. Above `LARGE_SIZE` it
    is done one piece at a time, whoever asks: encoding a text takes some 200 times its size in memory, and others should
    not have to wait behind several such texts.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="argosy-side")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="argosy-large")

    async def run(self, work: Callable[[], Result], size: int, receive: Receive | None = None) -> Result:
        """The result of `work`. With `receive`, waiting ends when the client leaves, and work not begun is not done.

        Raises:
            ClientGone: the client left; and whatever `work` raises.
        """
        if size <= INLINE_SIZE:
            return work()
        waiting = self._wait(self._large if size > LARGE_SIZE else self._threads, work)
        return await (waiting if receive is None else while_connected(waiting, receive))

    async def _wait(self, executor: ThreadPoolExecutor, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(executor, work)

    def close(self) -> None:
        """Drop what has not begun. Idempotent."""
        for executor in (self._threads, self._large):
            executor.shutdown(wait=False, cancel_futures=True)
