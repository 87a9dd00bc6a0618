"""Noticing that the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


async def while_connected(work: Coroutine[Any, Any, Result], receive: Receive) -> Result:
    """Run `work`, and cancel it at once when the client leaves. The request's body must have been read.

    Cancellation also reaches work that waits for a stalled engine or a stalled client. It has ended when this returns.

    Raises:
        ClientGone: the client left first.
    """
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_until_disconnect(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientGone
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
