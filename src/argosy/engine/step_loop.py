"""The step loop: schedule, execute, commit, and turn what came out into text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from argosy.engine.core.clock import Clock
from argosy.engine.core.events import OutputEvent
from argosy.engine.core.plan import StepPlan
from argosy.engine.core.request import FinishReason, Request, Sequence
from argosy.engine.core.scheduler import Scheduler
from argosy.engine.executors.base import Executor
from argosy.engine.live_request import LiveRequest, LiveSequence
from argosy.engine.outputs import OutputDelta
from argosy.errors import EngineUnavailable
from argosy.models.loaded import Tokenizer
from argosy.observe.stats import StatsSink, StepStats

logger = logging.getLogger(__name__)

_NO_STEP = StepPlan(step=0, new=(), finished=(), copies=(), sequences=(), num_tokens=0, num_prefill_tokens=0)


class StepLoop:
    """Owns a scheduler, an executor and the text state of every live request. One thread at a time may use it.

    An exception from a step means that scheduler and executor no longer agree on what was computed: the engine is lost.
    Every live request then ends with an error, and nothing is taken any more. With `check_invariants` each step ends with
    a check of the scheduler's whole state, and a contradiction counts as such a failure.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        tokenizer: Tokenizer,
        *,
        clock: Clock,
        sink: StatsSink | None = None,
        check_invariants: bool = False,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """`on_close` is called when the loop is closed, after the executor."""
        self.scheduler = scheduler
        self._executor = executor
        self._tokenizer = tokenizer
        self._clock = clock
        self._sink = sink
        self._check_invariants = check_invariants
        self._on_close = on_close
        self._live: dict[str, LiveRequest] = {}
        self._lost: str = ""
        self._counters = self._read_counters()

    @property
    def is_alive(self) -> bool:
        """False once a step has failed as a whole."""
        return not self._lost

    @property
    def loss(self) -> str:
        """The line that says why the engine was lost, or ""."""
        return self._lost

    @property
    def has_work(self) -> bool:
        """Whether `step` would have anything to do."""
        return self.is_alive and self.scheduler.has_work

    @property
    def live_requests(self) -> int:
        """Requests added whose last sequence has not ended."""
        return len(self._live)

    def add(self, request: Request) -> list[OutputDelta]:
        """Take a checked request. Returns the ends of sequences that have nothing to compute (`max_tokens` 0).

        Raises:
            QueueFull: as many requests wait as may.
            InvalidRequest: the scheduler can never run it.
            EngineUnavailable: the engine is lost.
        """
        if self._lost:
            raise EngineUnavailable(self._lost)
        sequences = self.scheduler.submit(request)
        self._live[request.request_id] = LiveRequest(request, sequences, self._tokenizer)
        now_s = self._clock.now_s()
        return self._handle_all([_end_of(s) for s in sequences if s.finish_reason is not None], now_s, [])

    def abort(self, request_id: str) -> list[OutputDelta]:
        """End a request, whatever its state, and free what it holds. Does nothing if it has ended or never was."""
        if request_id not in self._live or self._lost:
            return []
        now_s = self._clock.now_s()
        deltas = self._handle_all(self.scheduler.abort(request_id), now_s, [])
        if self._sink is not None:
            # No step may follow, and what was held is free: an idle engine must not look busy.
            self._sink.on_step(self._stats(_NO_STEP, 0.0, now_s, deltas, []))
        return deltas

    def step(self) -> list[OutputDelta]:
        """Run one step and return the news of every sequence that has any; [] if there is no work."""
        if self._lost:
            return []
        try:
            return self._step()
        except Exception as error:
            logger.exception("the engine stopped: a step failed")
            return self._lose(f"the engine stopped: {one_line(error)}")
        except BaseException as interrupt:
            self._lose(f"the engine was interrupted in a step ({type(interrupt).__name__})")
            raise

    def close(self) -> None:
        """Free what the executor holds, and report that nothing runs. Called once; nothing may be called after it."""
        self._executor.close()
        if self._on_close is not None:
            self._on_close()
        if self._sink is not None:
            # However it came to this end, the last report of a step must not stand for ever.
            stats = self._stats(_NO_STEP, 0.0, self._clock.now_s(), [], [])
            self._sink.on_step(replace(stats, num_running=0, num_waiting=0, kv_blocks_held=0, kv_blocks_cached=0))

    def _step(self) -> list[OutputDelta]:
        plan = self.scheduler.schedule(self._clock.now_s())
        if plan is None:
            return []
        result = self._executor.execute(plan)
        now_s = self._clock.now_s()
        latencies_s: list[float] = []
        deltas = self._handle_all(self.scheduler.commit(plan, result, now_s), now_s, latencies_s)
        if self._check_invariants:
            self.scheduler.check_invariants()
        if self._sink is not None:
            self._sink.on_step(self._stats(plan, result.duration_s, now_s, deltas, latencies_s))
        return deltas

    def _handle_all(self, events: Iterable[OutputEvent], now_s: float, latencies_s: list[float]) -> list[OutputDelta]:
        """The deltas of some events; appends their inter-token latencies to `latencies_s`."""
        return [delta for event in events if (delta := self._handle(event, now_s, latencies_s)) is not None]

    def _handle(self, event: OutputEvent, now_s: float, latencies_s: list[float]) -> OutputDelta | None:
        """Turn an event into a delta, ending the sequence if a stop string is complete; None if there is nothing to tell."""
        live = self._live[event.request_id]
        live.add_prompt_logprobs(event.prompt_logprobs)
        if not event.token_ids and event.finish_reason is None:
            return None
        sequence = live.sequences[event.sample_index]
        reason, stop_reason = event.finish_reason, event.stop_reason
        text, num_tokens, matched = sequence.text.append(
            event.token_ids, is_last=reason is not None, last_is_silent=_last_is_silent(live.request, event)
        )
        if matched is not None and reason in (None, FinishReason.STOP, FinishReason.LENGTH):
            if reason is None:
                self.scheduler.finish(event.sequence_id, FinishReason.STOP, matched)
            reason, stop_reason = FinishReason.STOP, matched
        latencies_s += sequence.count_tokens(num_tokens, now_s)
        delta = OutputDelta(
            request_id=event.request_id,
            index=event.sample_index,
            text=text,
            token_ids=event.token_ids[:num_tokens],
            logprobs=None if live.request.params.logprobs is None else event.logprobs[:num_tokens],
            prompt_logprobs=live.take_prompt_logprobs() if event.sample_index == 0 else None,
            finish_reason=None if reason is None else str(reason),
            stop_reason=stop_reason,
            error=event.error,
            num_prompt_tokens=len(live.request.prompt_token_ids),
            num_cached_tokens=live.sequences[0].sequence.num_cached_tokens,
            num_output_tokens=sequence.num_output_tokens,
        )
        if reason is not None:
            self._finish(live, sequence, reason, now_s)
        return delta

    def _finish(self, live: LiveRequest, sequence: LiveSequence, reason: FinishReason, now_s: float) -> None:
        sequence.finish_reason = reason
        live.num_open -= 1
        if live.num_open == 0:
            del self._live[live.request.request_id]
            if self._sink is not None:
                self._sink.on_request_finished(live.stats(now_s))

    def _lose(self, line: str) -> list[OutputDelta]:
        """Mark the engine lost and end every open sequence with an error, without asking the scheduler anything."""
        self._lost = line
        events = [
            _end_of(sequence.sequence)._replace(finish_reason=FinishReason.ERROR, stop_reason=None, error=line)
            for live in self._live.values()
            for sequence in live.sequences
            if sequence.finish_reason is None
        ]
        return self._handle_all(events, self._clock.now_s(), [])

    def _stats(
        self, plan: StepPlan, duration_s: float, now_s: float, deltas: list[OutputDelta], latencies_s: list[float]
    ) -> StepStats:
        before, self._counters = self._counters, self._read_counters()
        preemptions, queries, hits = (after - b for after, b in zip(self._counters, before, strict=True))
        kv = self.scheduler.kv
        return StepStats(
            step=plan.step,
            now_s=now_s,
            duration_s=duration_s,
            num_running=self.scheduler.num_running,
            num_waiting=self.scheduler.num_waiting,
            kv_blocks_held=kv.num_held,
            kv_blocks_cached=kv.num_cached,
            kv_blocks_total=kv.num_blocks,
            num_tokens=plan.num_tokens,
            num_prefill_tokens=plan.num_prefill_tokens,
            num_generated_tokens=sum(len(d.token_ids) for d in deltas),
            num_preemptions=preemptions,
            num_prefix_queries=queries,
            num_prefix_hits=hits,
            inter_token_latencies_s=tuple(latencies_s),
        )

    def _read_counters(self) -> tuple[int, int, int]:
        s = self.scheduler
        return s.num_preemptions, s.prefix_queries_tokens, s.prefix_hits_tokens


def one_line(error: Exception) -> str:
    """An exception of any kind in one line that a caller may see."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _end_of(sequence: Sequence) -> OutputEvent:
    """The last event of a sequence that the scheduler gave none for."""
    return OutputEvent(
        sequence_id=sequence.sequence_id,
        request_id=sequence.request.request_id,
        sample_index=sequence.sample_index,
        token_ids=(),
        logprobs=(),
        prompt_logprobs=(),
        finish_reason=sequence.finish_reason,
        stop_reason=sequence.stop_reason,
        error="",
    )


def _last_is_silent(request: Request, event: OutputEvent) -> bool:
    """Whether the event's last token only ended the sequence: EOS always, a stop id unless it is wanted in the output."""
    if event.finish_reason is not FinishReason.STOP or not event.token_ids:
        return False
    return event.stop_reason is None or not request.params.include_stop_str_in_output
