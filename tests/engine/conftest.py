"""Tokenizers and executors that are pure functions of the tokens, so that a test can say what must come out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from argosy.engine.admission import Admission
from argosy.engine.core.clock import ManualClock
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.plan import (
    NewSequence,
    ScheduledSequence,
    SequenceResult,
    StepPlan,
    StepResult,
    TokenLogprob,
)
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.core.scheduler import Scheduler
from argosy.engine.step_loop import StepLoop
from argosy.observe.stats import RequestStats, StepStats

LOGITS_WIDTH = 300
Script = Callable[[NewSequence, tuple[int, ...]], int]


class PieceTokenizer:
    """Token i is the i-th of some byte strings. `encode` is the identity on Latin-1 code points."""

    def __init__(self, pieces: Sequence[bytes], special_token_ids: Sequence[int] = (), eos: Sequence[int] = ()) -> None:
        self._pieces = tuple(pieces)
        self.vocab_size = len(pieces)
        self.bos_token_id = None
        self.special_token_ids = frozenset(special_token_ids)
        self.eos_token_ids = frozenset(eos)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        silent = self.special_token_ids if skip_special_tokens else frozenset()
        return b"".join(self.token_bytes(i) for i in ids if i not in silent).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id] if token_id < len(self._pieces) else b""

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> str:
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"

    @property
    def has_chat_template(self) -> bool:
        return True


@pytest.fixture(scope="session")
def piece_tokenizer() -> Callable[..., PieceTokenizer]:
    return PieceTokenizer


@pytest.fixture(scope="session")
def byte_tokenizer() -> PieceTokenizer:
    """Tokens 0..255 are bytes; 256 and 257 are special and end a sequence; 258 is special only."""
    pieces = [bytes([b]) for b in range(256)] + [b"<eos>", b"<end>", b"<mark>"]
    return PieceTokenizer(pieces, special_token_ids=(256, 257, 258), eos=(256, 257))


class ScriptedExecutor:
    """Answers with `script(introduction, tokens)`, where the tokens are read back from a pool of slots.

    So a wrong block table, a missing copy or a block reused too early gives a wrong token or a failed assertion. Steps wait
    for permission once `permit` was called; step number `fail_at` raises; the prompts in `poisoned` fail alone.
    """

    vocab_size = LOGITS_WIDTH
    kv_dtype = "float32"

    def __init__(self, num_blocks: int, block_size: int, script: Script, clock: ManualClock) -> None:
        self.num_blocks = num_blocks
        self.num_steps = 0
        self.fail_at: int | None = None
        self.poisoned: set[tuple[int, ...]] = set()
        self.is_closed = False
        self.entered = threading.Event()
        self._permits: int | None = None
        self._gate = threading.Condition()
        self._block_size = block_size
        self._script = script
        self._clock = clock
        self._slots: dict[int, int] = {}
        self.known: dict[int, NewSequence] = {}

    def permit(self, num_steps: int | None) -> None:
        """Let this many further steps run, the one under way included; None for any number."""
        with self._gate:
            self._permits = num_steps
            self._gate.notify_all()

    def execute(self, plan: StepPlan) -> StepResult:
        self.num_steps += 1
        self.entered.set()
        with self._gate:
            assert self._gate.wait_for(lambda: self._permits != 0, 30), "the test never let this step run"
            self._permits = None if self._permits is None else self._permits - 1
        if self.num_steps == self.fail_at:
            raise RuntimeError("device lost")
        for sequence_id in plan.finished:
            del self.known[sequence_id]
        self.known |= {new.sequence_id: new for new in plan.new}
        size = self._block_size
        copied = {c.destination * size + i: self._slots.get(c.source * size + i) for c in plan.copies for i in range(size)}
        self._slots |= {slot: token for slot, token in copied.items() if token is not None}
        for s in plan.sequences:
            self._slots |= {self._slot(s, s.start + i): token for i, token in enumerate(s.token_ids)}
        self._clock.advance(1.0)
        return StepResult(plan.step, tuple(self._result(s) for s in plan.sequences), 1.0)

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True

    def _slot(self, scheduled: ScheduledSequence, position: int) -> int:
        return scheduled.block_table[position // self._block_size] * self._block_size + position % self._block_size

    def _result(self, scheduled: ScheduledSequence) -> SequenceResult:
        new = self.known[scheduled.sequence_id]
        if new.prompt_token_ids in self.poisoned:
            return SequenceResult(scheduled.sequence_id, (), (), (), "logits are not finite")
        end = scheduled.start + len(scheduled.token_ids)
        tokens = tuple(self._slots[self._slot(scheduled, p)] for p in range(end))
        assert tokens[: len(new.prompt_token_ids)] == new.prompt_token_ids[:end]
        sampled = (self._script(new, tokens),) if scheduled.sample else ()
        logprobs = tuple(TokenLogprob(t, -float(t), 1, ()) for t in sampled) if new.params.logprobs is not None else ()
        first = scheduled.prompt_logprobs_from
        scored = range(first, min(end, len(new.prompt_token_ids) - 1) + 1) if first >= 0 else ()
        prompt_logprobs = tuple(TokenLogprob(new.prompt_token_ids[p], -float(p), 1, ()) for p in scored)
        return SequenceResult(scheduled.sequence_id, sampled, logprobs, prompt_logprobs, "")


class RecordingSink:
    def __init__(self) -> None:
        self.steps: list[StepStats] = []
        self.requests: list[RequestStats] = []

    def on_step(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def on_request_finished(self, stats: RequestStats) -> None:
        self.requests.append(stats)


@dataclass
class Rig:
    """A step loop over a scripted executor, on a clock that moves one second a step."""

    loop: StepLoop
    executor: ScriptedExecutor
    admission: Admission
    clock: ManualClock
    sink: RecordingSink = field(default_factory=RecordingSink)

    def add(self, request_id: str, prompt: Sequence[int] | bytes, **params: Any) -> list:
        request = self.admission.admit(request_id, tuple(prompt), SamplingParams(**params), arrival_s=self.clock.now_s())
        return self.loop.add(request)

    def run(self, max_steps: int = 10_000) -> list:
        deltas = []
        while self.loop.has_work:
            deltas += self.loop.step()
            self.loop.scheduler.check_invariants()
            max_steps -= 1
            assert max_steps > 0, "the loop does not end"
        return deltas

    def assert_nothing_is_held(self) -> None:
        scheduler = self.loop.scheduler
        scheduler.check_invariants()
        assert self.loop.live_requests == 0
        assert (scheduler.num_running, scheduler.num_waiting, scheduler.kv.num_held) == (0, 0, 0)


def echo_upper(new: NewSequence, tokens: tuple[int, ...]) -> int:
    """Answers the prompt in capitals, then EOS; every sequence of a request puts its index before it."""
    num_prompt = len(new.prompt_token_ids)
    answer = (str(new.sample_index).encode() if new.params.n > 1 else b"") + bytes(new.prompt_token_ids).upper()
    done = len(tokens) - num_prompt
    return answer[done] if done < len(answer) else 256


@pytest.fixture(scope="session")
def make_rig(byte_tokenizer) -> Callable[..., Rig]:
    """`make_rig(script, **scheduler settings)`; a script may also be the bytes or ids to answer with."""

    def make(
        script: Script | Sequence[int] = echo_upper,
        tokenizer: Any = byte_tokenizer,
        check_invariants: bool = False,
        **settings: Any,
    ) -> Rig:
        if not callable(script):
            answer = tuple(script)

            def script(new: NewSequence, tokens: tuple[int, ...]) -> int:
                done = len(tokens) - len(new.prompt_token_ids)
                return answer[done] if done < len(answer) else 256

        config = SchedulerConfig(**{"num_blocks": 64, "block_size": 4, "max_model_len": 128, "max_num_seqs": 8} | settings)
        clock, sink = ManualClock(), RecordingSink()
        executor = ScriptedExecutor(config.num_blocks, config.block_size, script, clock)
        loop = StepLoop(Scheduler(config), executor, tokenizer, clock=clock, sink=sink, check_invariants=check_invariants)
        eos = tokenizer.eos_token_ids
        admission = Admission(tokenizer, LOGITS_WIDTH, config.effective_max_len, eos, lambda: 11)
        return Rig(loop, executor, admission, clock, sink)

    return make
