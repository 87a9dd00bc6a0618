"""The response that sends server-sent events until they end, fail, or nobody listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from argosy.errors import ArgosyError
from argosy.observe.logs import log_event
from argosy.server.chunks import DONE, PING, error_event
from argosy.server.connection import ClientGone, while_connected
from argosy.server.errors import error_bytes, internal_error_bytes, loggable
from argosy.server.generation import Generation
from argosy.server.state import RequestRecord, ServerState

_LOGGER = logging.getLogger("argosy.server")


class EventStream(Response):
    """Sends `events` as they come, comments during silence, `[DONE]` at the end; or an error event in its place.

    However it ends, `generation` is aborted if it still runs. A slow reader holds up only its own response: the engine's
    deltas wait in memory, at most `max_tokens` of them.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], generation: Generation, record: RequestRecord, state: ServerState
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache, no-store", "x-accel-buffering": "no"})
        self._events = events
        self._generation = generation
        self._record = record
        self._state = state
        self._last_sent_s = state.clock()

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response (ASGI)."""
        try:
            await while_connected(self._send_all(send), receive)
        except ClientGone:
            self._record.client_gone = True
        finally:
            self._generation.abort()  # for the case that sending never began
            self._record.take(self._generation)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pinger = asyncio.create_task(self._ping(send))
        last = DONE
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    self._last_sent_s = self._state.clock()
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        except ArgosyError as error:
            self._record.error = loggable(error)
            last = error_event(error_bytes(error))
        except Exception:
            log_event(_LOGGER, logging.ERROR, "stream failed", exc_info=True, request_id=self._record.request_id)
            self._record.error = "internal error"
            last = error_event(internal_error_bytes(self._record.request_id))
        finally:
            pinger.cancel()
            self._generation.abort()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _ping(self, send: Send) -> None:
        interval_s = self._state.config.ping_interval_s
        while interval_s > 0:
            silent_s = self._state.clock() - self._last_sent_s
            if silent_s >= interval_s:
                self._last_sent_s = self._state.clock()
                await send({"type": "http.response.body", "body": PING, "more_body": True})
                silent_s = 0.0
            await asyncio.sleep(interval_s - silent_s)
