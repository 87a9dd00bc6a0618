"""Health: is the process alive, would it take a request, does the model still make sense."""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from dataclasses import dataclass

import orjson
from starlette.requests import Request
from starlette.responses import Response

from argosy.engine.core.plan import TokenLogprob
from argosy.engine.core.sampling_params import MAX_LOGPROBS, SamplingParams
from argosy.errors import ArgosyError, QueueFull
from argosy.observe.logs import log_event
from argosy.server.errors import json_response
from argosy.server.generation import Generation
from argosy.server.prompts import EncodedPrompt
from argosy.server.state import ServerState, state_of

_LOGGER = logging.getLogger("argosy.server")
PROBE_TEXT = "The"
PROBE_PRIORITY = -(2**31)


async def live(request: Request) -> Response:
    """200 while the engine's thread lives; only a restart helps otherwise."""
    return _status("ok" if state_of(request).engine.is_alive else "the engine has died")


async def ready(request: Request) -> Response:
    """200 while a request would be taken: not before the engine has loaded, not while draining."""
    state = state_of(request)
    if state.draining:
        return _status("draining")
    return _status("ok" if state.engine.is_ready else "the engine is not ready")


async def inference(request: Request) -> Response:
    """200 if the engine generates a token in time and its distribution is sane.

    One probe runs at a time and its outcome is given out for `inference_check_ttl_s`, so that this cannot be used to load
    the engine. 429 if the queue is full, which says nothing about the model.
    """
    probe: InferenceProbe = request.app.state.inference_probe
    outcome = await probe.outcome()
    body = {
        "status": outcome.status,
        "latency_s": outcome.latency_s,
        "entropy_nats": outcome.entropy_nats,
        "age_s": max(0.0, state_of(request).clock() - outcome.finished_s),
    }
    return json_response(orjson.dumps(body), 200 if outcome.status == "ok" else 503)


def _status(status: str) -> Response:
    return json_response(orjson.dumps({"status": status}), 200 if status == "ok" else 503)


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """What one probe found. `finished_s` is on the server's clock."""

    status: str
    latency_s: float
    entropy_nats: float | None
    finished_s: float


class InferenceProbe:
    """Generates one token at a time, however many ask."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._last: ProbeOutcome | None = None
        self._running: asyncio.Task[ProbeOutcome] | None = None

    async def outcome(self) -> ProbeOutcome:
        """The last outcome if it is fresh, else that of a probe all callers share.

        Raises:
            QueueFull: no probe could be submitted.
        """
        last, ttl_s = self._last, self._state.config.inference_check_ttl_s
        if last is not None and self._state.clock() - last.finished_s < ttl_s:
            return last
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._probe())
        self._last = await asyncio.shield(self._running)
        return self._last

    async def _probe(self) -> ProbeOutcome:
        started_s = self._state.clock()
        entropy_nats, status = None, "ok"
        timeout_s = self._state.config.inference_check_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                entropy_nats = next_token_entropy_nats(await self._generate(), self._state.engine.info.logits_width)
            status = self._judge(entropy_nats)
        except TimeoutError:
            status = f"no token within {timeout_s:g} s"
        except QueueFull:
            raise
        except ArgosyError as error:
            status = error.message
        except Exception:
            status = "the probe failed; see the log"
            log_event(_LOGGER, logging.ERROR, "inference probe failed", exc_info=True)
        finished_s = self._state.clock()
        if status != "ok":
            log_event(_LOGGER, logging.WARNING, "inference check", status=status)
        return ProbeOutcome(status, finished_s - started_s, entropy_nats, finished_s)

    async def _generate(self) -> TokenLogprob | None:
        engine = self._state.engine
        prompt = EncodedPrompt(tuple(engine.tokenizer.encode(PROBE_TEXT)), PROBE_TEXT, "prompt")
        num_top = min(MAX_LOGPROBS, engine.info.logits_width)
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=num_top)
        generation = Generation(
            engine,
            f"health-{uuid.uuid4().hex}",
            [prompt],
            engine.check(params),
            clock=self._state.clock,
            priority=PROBE_PRIORITY,
        )
        found = None
        try:
            async for _, delta in generation.deltas():
                for logprob in delta.logprobs or ():
                    found = logprob
        finally:
            generation.abort()
        return found

    def _judge(self, entropy_nats: float) -> str:
        if not math.isfinite(entropy_nats):
            return "the model's log probabilities are not finite"
        scale = math.log(self._state.engine.info.logits_width)
        low, high = (fraction * scale for fraction in self._state.config.inference_entropy_band)
        if low <= entropy_nats <= high:
            return "ok"
        return f"the entropy of the next token is {entropy_nats:.3g} nats, outside [{low:.3g}, {high:.3g}]"


def next_token_entropy_nats(logprob: TokenLogprob | None, width: int) -> float:
    """Largest entropy a distribution over `width` tokens can have, given its most likely ones; NaN if they make no sense.

    H <= -sum_k p_k ln p_k - r ln(r / (width - k)), with r the mass of the others, spread evenly.
    """
    if logprob is None or not logprob.top:
        return math.nan
    logs = [value for _, value in logprob.top]
    if any(math.isnan(value) or value > 1e-3 for value in logs) or not math.isfinite(logs[0]):
        return math.nan
    probabilities = [math.exp(value) for value in logs]
    rest = 1.0 - sum(probabilities)
    if rest < -1e-3:
        return math.nan
    entropy = -sum(p * value for p, value in zip(probabilities, logs, strict=True) if p > 0.0)
    others = width - len(logs)
    return entropy - (rest * math.log(rest / others) if rest > 1e-12 and others > 0 else 0.0)
