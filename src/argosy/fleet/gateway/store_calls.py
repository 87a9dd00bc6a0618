"""Calls of the database from the event loop: in threads, each with a bound, and none while the database is lost."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from argosy.errors import StoreUnavailable
from argosy.fleet.gateway.store import Store
from argosy.observe.logs import log_event

Result = TypeVar("Result")
MAX_CALLS = 1024
logger = logging.getLogger("argosy.gateway.store")


class StoreCalls:
    """Runs blocking calls of one `Store` for the event loop, and knows whether the database answers.

    Calls take turns on a few threads and wait up to `timeout_s` for theirs. One that has not ended `timeout_s` after it
    began fails, and its connection is closed under it, so its thread comes back. From then on the database counts as lost:
    calls fail at once, but for one every `retry_s`, which finds out whether it answers again. Each transition is one line
    in the log. Methods belong to the event loop.

    Attributes:
        is_lost: whether the last call found no database.
        num_failures: calls that failed for want of a database, those refused at once not counted.
    """

    def __init__(
        self,
        store: Store,
        *,
        caller: str = "requests",
        retry_s: float = 1.0,
        num_threads: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`caller` says in the log whose calls these are. `clock` is in seconds."""
        self.store = store
        self.timeout_s = store.config.timeout_s
        self.is_lost = False
        self.num_failures = 0
        self._caller = caller
        self._retry_s = retry_s
        self._retry_at_s = 0.0
        self._num_calls = 0
        self._clock = clock
        num_threads = min(num_threads, store.config.pool_size - 1)
        self._places = asyncio.Semaphore(num_threads)
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="argosy-store")

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which calls the store, within `timeout_s`.

        Raises:
            StoreUnavailable: no answer in time, or the database is lost; and whatever else `work` raises.
        """
        if self.is_lost:
            if self._clock() < self._retry_at_s:
                raise StoreUnavailable("the database does not answer; try again in a moment")
            self._retry_at_s = self._clock() + self.timeout_s + self._retry_s  # the others wait for this one's outcome
        if self._num_calls >= MAX_CALLS:
            raise StoreUnavailable("too many calls of the database wait; try again in a moment")
        self._num_calls += 1
        try:
            return await self._run_in_turn(work)
        finally:
            self._num_calls -= 1

    async def _run_in_turn(self, work: Callable[[], Result]) -> Result:
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._places.acquire()
        except TimeoutError:
            # That many calls wait says nothing about the database: whoever guesses keys must not make it count as lost.
            raise StoreUnavailable("too many calls of the database wait; try again in a moment") from None
        call = _Call(work)
        running = asyncio.get_running_loop().run_in_executor(self._threads, call)
        running.add_done_callback(self._on_end)
        try:
            result = await asyncio.wait_for(asyncio.shield(running), self.timeout_s)
        except TimeoutError:
            call.give_up(self.store)
            error = StoreUnavailable(f"the database did not answer within {self.timeout_s:g} s")
            self._on_lost(error)
            raise error from None
        except StoreUnavailable as error:
            self._on_lost(error)
            raise
        self._on_answer()
        return result

    def close(self) -> None:
        """Drop calls that have not begun. The store is closed by its owner. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _on_end(self, ended: asyncio.Future[Any]) -> None:
        self._places.release()
        if not ended.cancelled():
            ended.exception()  # looked at: who waited for it may have left

    def _on_lost(self, error: StoreUnavailable) -> None:
        self.num_failures += 1
        self._retry_at_s = self._clock() + self._retry_s
        if not self.is_lost:
            self.is_lost = True
            log_event(logger, logging.ERROR, "database lost", caller=self._caller, error=error.message)

    def _on_answer(self) -> None:
        if self.is_lost:
            self.is_lost = False
            log_event(logger, logging.INFO, "database answers again", caller=self._caller)


class _GivenUp(Exception):
    """Nobody waits for the call any more."""


class _Call(Generic[Result]):
    """One piece of work in a thread, that the event loop may give up."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._thread_id: int | None = None
        self._given_up = False

    def __call__(self) -> Result:
        with self._lock:
            if self._given_up:
                raise _GivenUp
            self._thread_id = threading.get_ident()
        try:
            return self._work()
        finally:
            with self._lock:
                self._thread_id = None

    def give_up(self, store: Store) -> None:
        """Nobody waits for the result: do not begin, or end soon."""
        with self._lock:
            self._given_up = True
            if self._thread_id is not None:
                store.interrupt(self._thread_id)
