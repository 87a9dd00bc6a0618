"""The way of one request's deltas from the engine's thread to the event loop that reads them."""

from __future__ import annotations

import asyncio
import threading

from argosy.engine.outputs import OutputDelta
from argosy.engine.pending_delta import PendingDelta
from argosy.errors import ArgosyError


class DeltaChannel:
    """Written by the engine's thread, read by one coroutine on `loop`.

    What the reader has not taken is joined per sequence, so a slow reader costs no more than the text itself, and the
    engine never waits for it. The order among deltas of one sequence is kept; among sequences, that of their oldest news.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, num_sequences: int) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._pending: dict[int, PendingDelta] = {}
        self._num_open = num_sequences
        self._error: ArgosyError | None = None
        self._news = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        """Whether nothing more will be put: every sequence has ended, or the request has failed."""
        return self._num_open == 0

    def put(self, delta: OutputDelta) -> None:
        """Add a delta. The reader learns of it at the next `wake`."""
        with self._lock:
            pending = self._pending.get(delta.index)
            if pending is None:
                self._pending[delta.index] = PendingDelta(delta)
            else:
                pending.add(delta)
            if delta.finish_reason is not None:
                self._num_open -= 1

    def fail(self, error: ArgosyError) -> None:
        """End the channel: the reader gets what is pending, then `error`."""
        with self._lock:
            self._error = error
            self._num_open = 0

    def wake(self) -> None:
        """Let the reader look again. Called on `loop` only."""
        self._news.set()

    async def next_delta(self) -> OutputDelta | None:
        """The next news, or None after the end.

        Raises:
            ArgosyError: what `fail` was given.
        """
        while True:
            with self._lock:
                if self._pending:
                    return self._pending.pop(next(iter(self._pending))).join()
                if self._error is not None:
                    raise self._error
                if self._num_open == 0:
                    return None
            # Only this thread sets and clears the event, so a wake-up for news put after the look cannot be lost.
            self._news.clear()
            await self._news.wait()
