"""The engine on its own thread, so that an event loop never waits for a step."""

from __future__ import annotations

import asyncio
import enum
import logging
import queue
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import NamedTuple

from argosy.engine.admission import Admission, CheckedParams
from argosy.engine.client import EngineInfo
from argosy.engine.core.clock import Clock
from argosy.engine.core.request import Request
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.delta_channel import DeltaChannel
from argosy.engine.engine_stream import EngineStream
from argosy.engine.outputs import OutputDelta
from argosy.engine.step_loop import StepLoop, one_line
from argosy.engine.wake_ups import WakeUps
from argosy.errors import ArgosyError, EngineUnavailable, InvalidRequest, QueueFull
from argosy.models.loaded import Tokenizer

logger = logging.getLogger(__name__)


class _State(enum.Enum):
    CREATED = "not started"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"


class _Submit(NamedTuple):
    request: Request
    channel: DeltaChannel


class _Abort(NamedTuple):
    """Names the channel too: an id may be used again once its request has ended."""

    request_id: str
    channel: DeltaChannel


class _Stop(NamedTuple):
    pass


class AsyncEngine:
    """Runs a step loop on a thread of its own; implements `EngineClient`.

    Callers hand over commands through a queue, which the thread applies between steps and waits on when idle. The waiting
    limit is kept here, where a request can still be refused at once: requests in the queue count as waiting.
    """

    def __init__(
        self,
        step_loop: StepLoop,
        admission: Admission,
        info: EngineInfo,
        *,
        clock: Clock,
    ) -> None:
        self._step_loop = step_loop
        self._admission = admission
        self._info = info
        self._clock = clock
        # SimpleQueue.put is re-entrant: an abort may come from a destructor, at any point of any thread.
        self._inbox: queue.SimpleQueue[_Submit | _Abort | _Stop] = queue.SimpleQueue()
        self._wake_ups = WakeUps()
        self._thread = threading.Thread(target=self._run, name="argosy-engine", daemon=True)
        self._lock = threading.Lock()
        # What follows is written under the lock; the engine thread alone removes channels.
        self._state = _State.CREATED
        self._channels: dict[str, DeltaChannel] = {}
        self._num_in_inbox = 0
        self._num_waiting = 0
        self._idle_waiters: list[Future[None]] = []

    @property
    def info(self) -> EngineInfo:
        """The fixed facts."""
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._admission.tokenizer

    @property
    def is_alive(self) -> bool:
        """False once the engine thread has ended, by a failure or by `close`."""
        return self._state not in (_State.STOPPED, _State.LOST)

    @property
    def is_ready(self) -> bool:
        """Whether a request submitted at this moment would be taken, were the queue not full."""
        return self._state is _State.RUNNING

    @property
    def live_requests(self) -> int:
        """Requests taken whose last sequence has not ended."""
        return len(self._channels)

    def start(self) -> None:
        """Start the thread. Called once."""
        with self._lock:
            assert self._state is _State.CREATED
            self._state = _State.RUNNING
        self._thread.start()

    def check(self, params: SamplingParams) -> CheckedParams:
        """As `EngineClient.check`."""
        return self._admission.check(params)

    def submit(
        self,
        request_id: str,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams | CheckedParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> EngineStream:
        """As `EngineClient.submit`; called on the event loop that will read the stream."""
        request = self._admission.admit(
            request_id, prompt_token_ids, params, arrival_s=self._clock.now_s(), priority=priority, cache_salt=cache_salt
        )
        channel = DeltaChannel(asyncio.get_running_loop(), request.params.n)
        with self._lock:
            if self._state is not _State.RUNNING:
                raise EngineUnavailable(f"the engine takes no requests: it is {self._state.value}")
            if request_id in self._channels:
                raise InvalidRequest(f"a request with the id {request_id!r} is running already", param="request_id")
            if self._num_waiting + self._num_in_inbox >= self._info.max_waiting:
                raise QueueFull(f"{self._info.max_waiting} requests are waiting, which is the limit: try again later")
            self._channels[request_id] = channel
            self._num_in_inbox += 1
            self._inbox.put(_Submit(request, channel))
        return EngineStream(channel, lambda: self._inbox.put(_Abort(request_id, channel)))

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the running ones; False if `timeout_s` passed first (they are then aborted)."""
        idle: Future[None] = Future()
        with self._lock:
            if self._state is _State.RUNNING:
                self._state = _State.DRAINING
            if not self._channels:
                return True
            self._idle_waiters.append(idle)
        try:
            await asyncio.wait_for(asyncio.wrap_future(idle), timeout_s)
        except TimeoutError:
            with self._lock:
                for request_id, channel in self._channels.items():
                    self._inbox.put(_Abort(request_id, channel))
            return False
        return True

    def close(self) -> None:
        """Abort what runs, end the thread after the step under way, and free the executor. Idempotent; blocks."""
        with self._lock:
            if self._state is _State.CREATED:
                self._thread.start()
            if self.is_alive:
                self._state = _State.STOPPED
                self._inbox.put(_Stop())
        if threading.current_thread() is not self._thread:
            self._thread.join()

    async def shutdown(self) -> None:
        """`close`, without blocking the event loop."""
        await asyncio.to_thread(self.close)

    # ---- on the engine's thread ----

    def _run(self) -> None:
        line = "the engine was stopped"
        try:
            while self._apply_inbox() and self._run_step():
                pass
            line = self._step_loop.loss or line
        except Exception as error:
            line = f"the engine stopped: {one_line(error)}"
            logger.exception("the engine thread died")
        finally:
            self._end(line)

    def _apply_inbox(self) -> bool:
        """Apply all commands, waiting for one if there is no work; False when told to stop."""
        wait = not self._step_loop.has_work
        while True:
            try:
                command = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            match command:
                case _Submit(request, channel):
                    self._apply_submit(request, channel)
                case _Abort(request_id, channel):
                    if self._channels.get(request_id) is channel:
                        self._deliver(self._step_loop.abort(request_id))
                        self._count_waiting()
                case _Stop():
                    for request_id in list(self._channels):
                        self._deliver(self._step_loop.abort(request_id))
                    return False

    def _apply_submit(self, request: Request, channel: DeltaChannel) -> None:
        try:
            deltas = self._step_loop.add(request)
        except ArgosyError as error:
            self._fail({request.request_id: channel}, error)
        else:
            self._deliver(deltas)
        with self._lock:
            self._num_in_inbox -= 1
            self._num_waiting = self._step_loop.scheduler.num_waiting_requests

    def _run_step(self) -> bool:
        """Run a step and deliver its news; False if the engine was lost, when its streams are to fail instead."""
        deltas = self._step_loop.step()
        if not self._step_loop.is_alive:
            return False
        self._count_waiting()
        self._deliver(deltas)
        return True

    def _count_waiting(self) -> None:
        with self._lock:
            self._num_waiting = self._step_loop.scheduler.num_waiting_requests

    def _deliver(self, deltas: Iterable[OutputDelta]) -> None:
        touched: dict[str, DeltaChannel] = {}
        for delta in deltas:
            channel = touched[delta.request_id] = self._channels[delta.request_id]
            channel.put(delta)
        self._forget([request_id for request_id, channel in touched.items() if channel.is_complete])
        for orphan in self._wake_ups.schedule(touched.values()):
            # Its event loop is closed: nobody will ever read it.
            for request_id, channel in touched.items():
                if channel is orphan and not channel.is_complete:
                    self._inbox.put(_Abort(request_id, channel))

    def _fail(self, channels: Mapping[str, DeltaChannel], error: ArgosyError) -> None:
        for channel in channels.values():
            channel.fail(error)
        self._forget(channels)
        self._wake_ups.schedule(channels.values())

    def _forget(self, request_ids: Iterable[str]) -> None:
        with self._lock:
            for request_id in request_ids:
                del self._channels[request_id]
            waiters = self._idle_waiters if not self._channels else []
            if waiters:
                self._idle_waiters = []
        for waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(None)

    def _end(self, line: str) -> None:
        """Refuse what comes from here on, fail what is left, free the executor."""
        with self._lock:
            if self._state is not _State.STOPPED:
                self._state = _State.LOST
        self._fail(self._channels.copy(), EngineUnavailable(line))
        try:
            self._step_loop.close()
        except Exception:
            logger.exception("the executor could not be closed")
