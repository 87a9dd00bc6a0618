"""One request from its arrival to the last byte of its answer. What it holds is given back on every way out."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from argosy.errors import ArgosyError
from argosy.fleet.gateway.backend_call import BackendCall, Failure
from argosy.fleet.gateway.endpoints import check_head, presented_key, read_body
from argosy.fleet.gateway.exchange import AttemptResult, Exchange
from argosy.fleet.gateway.http_messages import HttpRequest, ResponseWriter
from argosy.fleet.gateway.rate_limit_headers import rate_limit_headers
from argosy.fleet.gateway.replies import error_event, error_reply
from argosy.fleet.gateway.stages import Route, Ticket
from argosy.fleet.gateway.upstream_request import client_headers
from argosy.fleet.policies.attempts import Attempts
from argosy.fleet.policies.ledger import Denial, Lease
from argosy.fleet.policies.outcomes import Outcome, RequestDropped, outcome_of_error
from argosy.observe.logs import log_event

if TYPE_CHECKING:
    from argosy.fleet.gateway.pipeline import Pipeline

_LOGGER = logging.getLogger("argosy.gateway")
CLIENT_GONE_STATUS = 499
_RETRIED = frozenset(
    {
        AttemptResult.THROTTLED,
        AttemptResult.SERVER_ERROR,
        AttemptResult.CONNECT_ERROR,
        AttemptResult.BUSY,
        AttemptResult.FIRST_BYTE_TIMEOUT,
        AttemptResult.CUT,
    }
)
# What the queue says that another model's queue might not.
_NO_ROOM = frozenset(
    {
        Outcome.REJECTED_CAPACITY,
        Outcome.REJECTED_NO_BACKEND,
        Outcome.EVICTED_TTL,
        Outcome.EVICTED_QUEUE_PRESSURE,
    }
)


class RequestRun:
    """The state of one request. Its task is cancelled when the client leaves, in whatever it waits for.

    Attributes:
        is_event_stream: an answer has begun into which events may be written.
    """

    def __init__(self, pipeline: Pipeline, exchange: Exchange, request: HttpRequest, writer: ResponseWriter) -> None:
        self.pipeline = pipeline
        self.stages = pipeline.stages
        self.exchange = exchange
        self.writer = writer
        self._request = request
        self.is_event_stream = False
        self._route: Route | None = None
        self._lease: Lease | None = None
        self._ticket: Ticket | None = None
        self._early: RequestDropped | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def answer(self) -> None:
        """Answer; every error of ours becomes a reply."""
        exchange = self.exchange
        self._task = asyncio.current_task()
        for observer in self.stages.observers:
            observer.started(exchange)
        try:
            with self.pipeline.drain.entered(self.end_early):
                await self._admit()
                await self._call_backends()
        except asyncio.CancelledError:
            if self.writer.client_gone:
                self._note_client_gone()
                raise
            if self._early is None:
                raise
            self._task.uncancel()  # type: ignore[union-attr]
            self._refuse(self._early)
        except ArgosyError as error:
            self._refuse(error)
        except Exception:
            log_event(_LOGGER, logging.ERROR, "unexpected error", exc_info=True, request_id=exchange.request_id)
            message = f"internal error; the log has it under request id {exchange.request_id}"
            self._refuse(RequestDropped(Outcome.FAILED_INTERNAL, message))
        finally:
            self._close()

    def end_early(self, error: RequestDropped) -> None:
        """End the request from outside: a drain that takes too long, a more urgent request, its deadline."""
        if self._early is None and self._task is not None and not self.writer.finished:
            self._early = error
            self._task.cancel()

    # --- the stages --------------------------------------------------------------------------------------------------

    async def _admit(self) -> None:
        exchange, stages = self.exchange, self.stages
        check_head(self._request)
        exchange.principal = principal = await stages.authenticator.authenticate(presented_key(exchange.headers), exchange)
        read_body(exchange)
        exchange.end_early = self.end_early
        timeout_s = self.pipeline.settings.total_timeout_s
        if timeout_s is not None:
            exchange.deadline_s = min(exchange.deadline_s or float("inf"), exchange.received_s + timeout_s)
        self._route = route = stages.chooser.choose(exchange)
        exchange.pool = route.pool
        demand = stages.estimator.estimate(exchange, route)
        now_s = self.pipeline.clock()
        granted = await stages.ledger.acquire(principal.scopes, demand, now_s=now_s)
        exchange.response_headers.update(rate_limit_headers(granted, now_s=now_s))
        if isinstance(granted, Denial):
            raise RequestDropped(granted.outcome, granted.message, retry_after_s=granted.retry_after_s)
        self._lease = exchange.lease = granted
        if exchange.deadline_s is not None:
            self._start_deadline(exchange.deadline_s)

    async def _call_backends(self) -> None:
        """Call backends until one answers or there is nothing left to try."""
        exchange, pipeline = self.exchange, self.pipeline
        retried = exchange.headers.get(b"x-stainless-retry-count", b"0")
        attempts = Attempts(
            pipeline.settings.retries,
            pipeline.budget,
            pipeline.rng,
            deadline_s=exchange.deadline_s,
            client_retry_count=int(retried) if retried.isdigit() and len(retried) < 6 else 0,
        )
        max_retries = pipeline.settings.retries.max_retries
        failure: Failure | None = None
        while True:
            latest = await self._call(attempts)
            if latest is None:
                return
            # That no backend may be called any more says less than why the last one that was called failed.
            failure = latest if failure is None or latest.refusal is None else failure
            is_retried = latest.result in _RETRIED and latest.refusal is None
            # The last call that a request may make goes to another model, where there is one.
            if (not is_retried or attempts.num_calls >= max_retries) and self._fall_back(failure, attempts):
                continue
            wait_s = self._retry_wait_s(failure, attempts) if is_retried else None
            if wait_s is None:
                self._fail(failure, attempts)
                return
            await asyncio.sleep(wait_s)

    async def _call(self, attempts: Attempts) -> Failure | None:
        """Call one backend of the request's pool; None when it has answered."""
        exchange, pipeline, stages, route = self.exchange, self.pipeline, self.stages, self._route
        assert route is not None, "a route is chosen first"
        try:
            if self._ticket is None:
                exchange.queued_s = exchange.queued_s or pipeline.clock()
                self._ticket = await stages.dispatcher.enter(exchange, route)
            preparing = stages.backends.prepare(exchange, route)
            if preparing is not None:
                await preparing
            now_s = pipeline.clock()
            placement = stages.backends.pick(exchange, route, attempts.tried, now_s)
        except RequestDropped as error:
            if error.outcome not in _NO_ROOM:
                raise
            return Failure.dropped(error)
        exchange.dispatched_s = exchange.dispatched_s or now_s
        exchange.backend_id = placement.upstream.backend_id
        attempts.begin(exchange.backend_id)
        exchange.attempts = attempts.num_calls
        return await BackendCall(self, route, placement, attempts).run()

    def _retry_wait_s(self, failure: Failure, attempts: Attempts) -> float | None:
        """A backend's wish to be left alone is waited for only where no other one of the pool may be asked meanwhile."""
        now_s = self.pipeline.clock()
        asked_s = failure.retry_after_s
        if asked_s is not None:
            if self.stages.backends.state(self.exchange.pool, now_s) == "serving":
                asked_s = None
            elif asked_s > self.pipeline.settings.retries.max_backoff_s:
                return None
        return attempts.retry_wait_s(now_s, retry_after_s=asked_s)

    def _fall_back(self, failure: Failure, attempts: Attempts) -> bool:
        """Go on to another model; False if there is none, or it may not be called any more."""
        exchange, route, too_long = self.exchange, self._route, failure.context_too_long
        if route is None or attempts.first_byte_sent:
            return False
        following = self.stages.chooser.fallback(exchange, route, failure.result, context_too_long=too_long)
        if following is None or not attempts.may_fall_back(self.pipeline.clock(), pays=not too_long):
            return False
        self._leave_queue()
        self._route = following
        exchange.pool = following.pool
        exchange.fallbacks += 1
        return True

    # --- the ways out ------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """The answer is complete but for its last bytes: account for it, and give back what it held."""
        lease, route = self._lease, self._route
        if lease is not None and route is not None:
            actual = self.stages.estimator.actual(self.exchange, route)
            await self.stages.ledger.settle(lease, actual, now_s=self.pipeline.clock())
            self._lease = None
        self._leave_queue()

    def _leave_queue(self) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.leave(self.exchange.usage.input_tokens + self.exchange.usage.output_tokens)

    def _close(self) -> None:
        """Runs on every way out, also while the task is being cancelled: it must not wait."""
        exchange, pipeline = self.exchange, self.pipeline
        if self._timer is not None:
            self._timer.cancel()
        lease, self._lease = self._lease, None
        if lease is not None:
            pipeline.in_background(self._give_back(lease))
        self._leave_queue()
        exchange.finished_s = pipeline.clock()
        exchange.end_early = None
        if exchange.outcome is None:  # cancelled, and not because its client left
            exchange.outcome = Outcome.REJECTED_SHUTTING_DOWN
        pipeline.report(exchange)

    async def _give_back(self, lease: Lease) -> None:
        ledger, now_s = self.stages.ledger, self.pipeline.clock()
        usage = self.exchange.usage
        try:
            if self._route is not None and (usage.input_tokens or usage.output_tokens):
                await ledger.settle(lease, self.stages.estimator.actual(self.exchange, self._route), now_s=now_s)
        finally:
            await ledger.release(lease, now_s=now_s)  # nothing happens if it has been settled

    def _note_client_gone(self) -> None:
        exchange = self.exchange
        exchange.status = CLIENT_GONE_STATUS
        exchange.outcome = Outcome.EVICTED_CLIENT_GONE
        exchange.detail = "the client left before its answer was complete"

    def _fail(self, failure: Failure, attempts: Attempts) -> None:
        """Tell the client of the last failure: the backend's own error once and unchanged, or an error of ours."""
        exchange = self.exchange
        exchange.outcome = failure.outcome
        exchange.detail = failure.message
        if failure.reply is None or self.writer.started:
            self._refuse(failure.error(), should_retry=attempts.should_client_retry)
            return
        exchange.status, headers, body = failure.reply
        added = dict(exchange.response_headers)
        if failure.result is not AttemptResult.CLIENT_ERROR:
            added["x-should-retry"] = "true" if attempts.should_client_retry else "false"
        self.writer.send(exchange.status, client_headers(headers, added, exchange.request_id), body)

    def _refuse(self, error: ArgosyError, *, should_retry: bool = True) -> None:
        exchange, writer = self.exchange, self.writer
        if exchange.outcome is None or isinstance(error, RequestDropped):
            exchange.outcome = outcome_of_error(error)
        exchange.detail = error.message if error.http_status >= 500 else error.code or error.type
        if writer.finished:
            return
        if writer.started:
            # The status has gone out as 200; what went wrong stands in the stream, and the cut says that it is not whole.
            if self.is_event_stream:
                writer.write(error_event(error))
            writer.break_off()
            return
        exchange.status, headers, body = error_reply(error)
        if not should_retry:
            exchange.response_headers["x-should-retry"] = "false"
        writer.send(exchange.status, client_headers(headers, exchange.response_headers, exchange.request_id), body)

    def _start_deadline(self, deadline_s: float) -> None:
        left_s = max(0.0, deadline_s - self.pipeline.clock())
        error = RequestDropped(Outcome.EVICTED_DEADLINE, "the request was not answered before its deadline")
        self._timer = asyncio.get_running_loop().call_later(left_s, self.end_early, error)
