"""The stream of one request as its reader holds it."""

from __future__ import annotations

from collections.abc import Callable

from argosy.engine.delta_channel import DeltaChannel
from argosy.engine.outputs import OutputDelta


class EngineStream:
    """The deltas of one request (a `RequestStream`). Leaving the iteration early, or dropping the stream, aborts it."""

    def __init__(self, channel: DeltaChannel, abort: Callable[[], None]) -> None:
        self._channel = channel
        self._abort = abort
        self._iterated = False

    def __aiter__(self) -> EngineDeltas:
        """Iterate once, on the event loop that submitted."""
        if self._iterated:
            raise RuntimeError("the stream of a request can be iterated once")
        self._iterated = True
        return EngineDeltas(self, self._channel)

    def abort(self) -> None:
        """Stop the request within one step and release all it holds. Idempotent, from any thread, in every state."""
        if not self._channel.is_complete:
            self._abort()

    def __del__(self) -> None:
        self.abort()


class EngineDeltas:
    """The one iterator of a stream. Being cancelled, closed or dropped before the end aborts the request at once."""

    def __init__(self, stream: EngineStream, channel: DeltaChannel) -> None:
        self._stream = stream
        self._channel = channel

    def __aiter__(self) -> EngineDeltas:
        return self

    async def __anext__(self) -> OutputDelta:
        """The next news. Raises `EngineUnavailable` if the engine has died."""
        try:
            delta = await self._channel.next_delta()
        except BaseException:
            self._stream.abort()
            raise
        if delta is None:
            raise StopAsyncIteration
        return delta

    async def aclose(self) -> None:
        """Read no further."""
        self._stream.abort()

    def __del__(self) -> None:
        self._stream.abort()
