"""One replica: the engine's own scheduler on the event loop, with steps that take as long as an executor says."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from argosy.engine.core.events import OutputEvent
from argosy.engine.core.request import FinishReason, Request, Sequence
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.core.scheduler import Scheduler
from argosy.errors import ConfigError, EngineUnavailable
from argosy.sim.cost_executor import SimulatedExecutor
from argosy.sim.event_loop import EventHandle, EventLoop
from argosy.sim.outcome import Outcome, ReplicaListener, RequestOutcome, StepSpan
from argosy.sim.step_driver import StepDriver
from argosy.sim.workload.trace_request import TraceRequest

_MOST_PARAMS = 4096


class ReplicaState(enum.StrEnum):
    """What a replica can do. Only a READY one takes requests."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    CRASHED = "crashed"
    HANGING = "hanging"


_STATES_THAT_STEP = (ReplicaState.READY, ReplicaState.DRAINING)


class Failure(enum.StrEnum):
    """What can befall a replica.

    CRASH: its requests fail at once, KV and cache are lost. HANG: the step in progress never ends and requests are still
    taken, as by a server whose device is stuck; clients give up by their timeouts. CORRUPT: it goes on, but what it computes
    is wrong, and nobody can tell from outside.
    """

    CRASH = "crash"
    HANG = "hang"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What a router may know of a replica at a moment.

    Attributes:
        num_running, num_waiting: requests in the batch and in the queue before it.
        active_tokens: tokens known of running sequences, prompt and output so far.
        waiting_tokens: prompt tokens of those that wait.
        kv_used_fraction: share of KV blocks that running sequences hold.
        kv_tokens_free: tokens that fit in blocks which are free, or cached and so evictable.
    """

    num_running: int
    num_waiting: int
    active_tokens: int
    waiting_tokens: int
    kv_used_fraction: float
    kv_tokens_free: int


@dataclass(slots=True)
class _Live:
    """A request that has not ended."""

    request: TraceRequest
    sequence: Sequence
    submitted_s: float
    timeout: EventHandle | None
    corrupted: bool = False


class Replica:
    """Owns a scheduler and an executor, and drives them on `loop`.

    Attributes:
        name: unique in a fleet; goes into records.
        scheduler: the engine's; read its counters, call nothing that changes it.
        state: see `ReplicaState`.
        listener: hears of tokens, ends and steps; may be replaced before the first request.
    """

    def __init__(
        self,
        name: str,
        loop: EventLoop,
        scheduler: Scheduler,
        executor: SimulatedExecutor,
        *,
        listener: ReplicaListener | None = None,
        one_by_one: bool = False,
        check_invariants: bool = False,
    ) -> None:
        """Make a READY replica.

        Args:
            one_by_one: make every step an event of its own; see `StepDriver`.
            check_invariants: check the scheduler's whole state after every step.

        Raises:
            ConfigError: scheduler and executor differ in the number of KV blocks.
        """
        if scheduler.config.num_blocks != executor.num_blocks:
            raise ConfigError(
                f"replica {name}: the scheduler has {scheduler.config.num_blocks} KV blocks and the executor "
                f"{executor.num_blocks}; give both the same number"
            )
        self.name = name
        self.scheduler = scheduler
        self.listener = listener
        self.state = ReplicaState.READY
        self._loop = loop
        self._executor = executor
        self._corrupts = False
        self._live: dict[str, _Live] = {}
        self._params_of: dict[int, SamplingParams] = {}
        self._startup: EventHandle | None = None
        self._driver = StepDriver(
            loop,
            scheduler,
            executor,
            on_events=lambda events: self._handle(events, Outcome.FINISHED),
            on_span=self._tell,
            one_by_one=one_by_one,
            check_invariants=check_invariants,
        )

    @property
    def busy_s(self) -> float:
        """Seconds in which a step was running, so far."""
        self._driver.catch_up()
        return self._driver.busy_s

    @property
    def num_in_flight(self) -> int:
        """Requests taken that have not ended."""
        return len(self._live)

    @property
    def is_ready(self) -> bool:
        """Whether `submit` takes requests. A hanging replica seems ready."""
        return self.state in (ReplicaState.READY, ReplicaState.HANGING)

    def load(self) -> ReplicaLoad:
        """The load at this moment."""
        self._driver.catch_up()
        s = self.scheduler
        kv = s.kv
        return ReplicaLoad(
            num_running=s.num_running,
            num_waiting=s.num_waiting,
            active_tokens=s.num_running_tokens,
            waiting_tokens=s.num_waiting_tokens,
            kv_used_fraction=kv.num_held / kv.num_blocks,
            kv_tokens_free=kv.num_available * kv.block_size,
        )

    def submit(self, request: TraceRequest, *, transferred_tokens: int = 0) -> None:
        """Take a request. Its timeout, if it has one, runs from its arrival.

        Args:
            transferred_tokens: leading prompt tokens whose KV was computed elsewhere and is there: they take blocks and
                budget like others, but no time.

        Raises:
            EngineUnavailable: the replica is not ready.
            QueueFull, ContextLengthExceeded, InvalidRequest: as the scheduler says.
        """
        if not self.is_ready:
            raise EngineUnavailable(f"replica {self.name} is {self.state}")
        self._driver.interrupt()
        now_s = self._loop.now_s()
        sequence, answer = self._submit_to_scheduler(request, now_s)
        self._executor.expect(sequence.sequence_id, answer, transferred_tokens)
        timeout = None
        if request.timeout_s is not None:
            due_s = max(now_s, request.arrival_s + request.timeout_s)
            timeout = self._loop.at(due_s, lambda: self._give_up(request.request_id))
        self._live[request.request_id] = _Live(request, sequence, now_s, timeout, self._corrupts)
        self._driver.wake()

    def abort(self, request_id: str) -> None:
        """End a request in any state; its outcome is ABORTED. Does nothing if it has ended or never was."""
        if request_id in self._live:
            self._drop(request_id, Outcome.ABORTED)

    def fail(self, kind: Failure) -> None:
        """Let `kind` befall the replica; see `Failure`."""
        if kind is Failure.CORRUPT:
            self._corrupts = True
            for one in self._live.values():
                one.corrupted = True
            return
        if kind is Failure.CRASH:
            self._go_down(ReplicaState.CRASHED)
            return
        self._driver.pause()
        self.state = ReplicaState.HANGING

    def recover(self) -> None:
        """Undo a hang or corruption: a step that hung begins anew. A crashed replica needs `start`."""
        self._corrupts = False
        if self.state is ReplicaState.HANGING:
            self.state = ReplicaState.READY
            self._driver.resume()

    def set_slowdown(self, factor: float) -> None:
        """Let steps from the next one on take `factor` times as long. Raises `ConfigError` unless it is above 0."""
        if not 0.0 < factor < math.inf:
            raise ConfigError(f"replica {self.name}: a slowdown must be above 0 and finite, got {factor}")
        self._driver.interrupt()
        self._driver.slowdown = factor

    def start(self, cold_start_s: float = 0.0) -> None:
        """Become ready after `cold_start_s`, with an empty cache. Does nothing unless it is stopped or crashed."""
        if self.state not in (ReplicaState.STOPPED, ReplicaState.CRASHED):
            return
        self.state = ReplicaState.STARTING
        self._startup = self._loop.after(cold_start_s, self._be_ready)

    def stop(self, *, drain: bool = True) -> None:
        """Take no more requests; STOPPED when those in flight have ended, at once without `drain` (they fail).

        A replica that hangs cannot drain: it is stopped at once.
        """
        if self._startup is not None:
            self._startup.cancel()
            self._startup = None
        if drain and self._live and self.state in _STATES_THAT_STEP:
            self.state = ReplicaState.DRAINING
        else:
            self._go_down(ReplicaState.STOPPED)

    def _be_ready(self) -> None:
        self._startup = None
        self._corrupts = False
        self.state = ReplicaState.READY

    def _submit_to_scheduler(self, request: TraceRequest, now_s: float) -> tuple[Sequence, tuple[int, ...]]:
        """The sequence of a request, and the answer that it is to be given.

        Only a prefix cache and tokens that end an answer look at what tokens say; without them, all are alike.
        """
        if self.scheduler.config.enable_prefix_caching or request.end_token_ids:
            vocab_size = self._executor.vocab_size
            prompt, answer = request.token_ids(vocab_size), request.answer_token_ids(vocab_size)
        else:
            prompt, answer = (0,) * request.num_prompt_tokens, (0,) * request.output_tokens
        (sequence,) = self.scheduler.submit(
            Request(
                request.request_id,
                prompt,
                self._params(request.output_tokens),
                now_s,
                seed=0,
                eos_token_ids=request.end_token_ids,
                priority=request.priority,
                cache_salt=request.tenant,
            )
        )
        return sequence, answer

    def _params(self, max_tokens: int) -> SamplingParams:
        """Parameters of an answer of so many tokens; kept, since checking them anew takes longer than the rest."""
        params = self._params_of.get(max_tokens)
        if params is None:
            if len(self._params_of) >= _MOST_PARAMS:
                self._params_of.clear()
            params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
            self._params_of[max_tokens] = params
        return params

    def _give_up(self, request_id: str) -> None:
        self._drop(request_id, Outcome.TIMED_OUT)

    def _drop(self, request_id: str, outcome: Outcome) -> None:
        self._driver.interrupt()
        self._handle(self.scheduler.abort(request_id), outcome)

    def _tell(self, span: StepSpan) -> None:
        if self.listener is not None:
            self.listener.on_steps(self, span)

    def _go_down(self, state: ReplicaState) -> None:
        self._driver.interrupt()
        self.state = state
        events = [event for request_id in list(self._live) for event in self.scheduler.abort(request_id)]
        self._driver.drop()
        self.scheduler.reset_prefix_cache()
        self._handle(events, Outcome.FAILED)

    def _handle(self, events: list[OutputEvent], outcome: Outcome) -> None:
        """Tell of first tokens and of requests that ended; `outcome` stands for every end that is not an error."""
        now_s = self._loop.now_s()
        for event in events:
            one = self._live.get(event.request_id)
            if one is None:
                continue
            if event.token_ids and one.sequence.num_output == len(event.token_ids) and self.listener is not None:
                self.listener.on_first_token(self, one.request, now_s)
            if event.finish_reason is None:
                continue
            del self._live[event.request_id]
            self._executor.forget(event.sequence_id)
            if one.timeout is not None:
                one.timeout.cancel()
            if self.listener is not None:
                failed = event.finish_reason is FinishReason.ERROR
                self.listener.on_finish(self, self._outcome(one, Outcome.FAILED if failed else outcome, now_s))
        if self.state is ReplicaState.DRAINING and not self._live:
            self._go_down(ReplicaState.STOPPED)

    def _outcome(self, one: _Live, outcome: Outcome, now_s: float) -> RequestOutcome:
        sequence = one.sequence
        return RequestOutcome(
            request=one.request,
            replica=self.name,
            outcome=outcome,
            submitted_s=one.submitted_s,
            first_scheduled_s=sequence.first_scheduled_s,
            first_token_s=sequence.first_token_s,
            finished_s=now_s,
            num_output_tokens=sequence.num_output,
            num_cached_tokens=sequence.num_cached_tokens,
            preemptions=sequence.preemptions,
            corrupted=one.corrupted,
        )
