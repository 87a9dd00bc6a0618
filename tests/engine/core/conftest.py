"""A fake executor that is a pure function of (seed, tokens), keeps the contents of the KV pool, and checks what it reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from argosy.engine.core.clock import ManualClock
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.plan import SequenceResult, StepPlan, StepResult, TokenLogprob
from argosy.engine.core.request import Request
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.core.scheduler import Scheduler


def digest(*parts: object) -> int:
    """Deterministic across processes for ints and tuples of ints."""
    return hash(parts) & 0xFFFFFFFF


class FakeExecutor:
    """Models the KV of a position as a digest of the namespace and every token up to it.

    Each step checks that all positions a sequence attends to hold exactly its own prefix, which catches a block shared,
    evicted, published or written too early, in the wrong place, or under the wrong tokens.
    """

    def __init__(self, block_size: int, *, vocab_size: int = 50, max_run: int = 1) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.max_run = max_run
        self.kv: dict[tuple[int, int], int] = {}
        self.known: dict[int, list[int]] = {}
        self._chains: dict[int, list[int]] = {}
        self.intro: dict[int, Any] = {}
        self.namespaces: dict[int, int] = {}
        self.fail: set[int] = set()
        self.last_step = 0
        self.num_computed_tokens = 0

    def chain(self, sequence_id: int, length: int) -> int:
        """The digest of the namespace and the first `length` tokens."""
        return self.chains(sequence_id)[length - 1]

    def chains(self, sequence_id: int) -> list[int]:
        """The digest at each known position; extended as tokens become known."""
        values = self._chains.setdefault(sequence_id, [])
        for token in self.known[sequence_id][len(values) :]:
            values.append(digest(values[-1] if values else self.namespaces[sequence_id], token))
        return values

    def execute(self, plan: StepPlan) -> StepResult:
        assert plan.step == self.last_step + 1
        self.last_step = plan.step
        for sequence_id in plan.finished:
            del self.known[sequence_id], self.intro[sequence_id]
        for new in plan.new:
            assert new.sequence_id not in self.known
            self.intro[new.sequence_id] = new
            self.known[new.sequence_id] = list(new.prompt_token_ids)
        for source, destination in plan.copies:
            for slot in range(self.block_size):
                self.kv.pop((destination, slot), None)
                if (source, slot) in self.kv:
                    self.kv[destination, slot] = self.kv[source, slot]
        assert len({s.sequence_id for s in plan.sequences}) == len(plan.sequences)
        assert plan.num_tokens == sum(len(s.token_ids) for s in plan.sequences)
        assert plan.num_prefill_tokens == sum(
            len(s.token_ids) for s in plan.sequences if len(s.token_ids) > 1 or not s.sample
        )
        self._check_writes(plan)
        for scheduled in plan.sequences:
            self._write(scheduled)
        results = tuple(self._result(scheduled) for scheduled in plan.sequences)
        return StepResult(plan.step, results, 0.01)

    def _check_writes(self, plan: StepPlan) -> None:
        written: set[int] = set()
        for s in plan.sequences:
            assert s.token_ids, "an entry without tokens"
            assert len(set(s.block_table)) == len(s.block_table)
            first, last = s.start // self.block_size, (s.start + len(s.token_ids) - 1) // self.block_size
            assert last < len(s.block_table), "no block for a position of this step"
            mine = set(s.block_table[first : last + 1])
            assert not mine & written, "two sequences write one block"
            written |= mine
        for s in plan.sequences:
            first = s.start // self.block_size
            assert not set(s.block_table[:first]) & written, "a block is written while another sequence reads it"

    def _write(self, s: Any) -> None:
        known = self.known[s.sequence_id]
        end = s.start + len(s.token_ids)
        assert tuple(known[s.start : end]) == s.token_ids, "the plan's tokens are not the sequence's"
        self.num_computed_tokens += len(s.token_ids)
        chains = self.chains(s.sequence_id)
        size, table = self.block_size, s.block_table
        for position in range(s.start, end):
            self.kv[table[position // size], position % size] = chains[position]
        for position in range(end):
            held = self.kv.get((table[position // size], position % size))
            assert held == chains[position], f"position {position} of {s.sequence_id} reads foreign KV"

    def _result(self, s: Any) -> SequenceResult:
        new = self.intro[s.sequence_id]
        known, end = self.known[s.sequence_id], s.start + len(s.token_ids)
        prompt_logprobs: tuple[TokenLogprob, ...] = ()
        if s.prompt_logprobs_from >= 0:
            assert s.start < s.prompt_logprobs_from <= end, "logprobs wanted of a position whose logits are not computed"
            last = min(end, len(new.prompt_token_ids) - 1)
            prompt_logprobs = tuple(
                TokenLogprob(known[p], -float(self.chain(s.sequence_id, p) % 97), 1, ())
                for p in range(s.prompt_logprobs_from, last + 1)
            )
        assert s.num_output_tokens == len(known) - len(new.prompt_token_ids)
        if s.sequence_id in self.fail:
            return SequenceResult(s.sequence_id, (), (), (), "logits are not finite")
        if not s.sample:
            assert end < len(known) or new.params.max_tokens == 0
            return SequenceResult(s.sequence_id, (), (), prompt_logprobs, "")
        assert end == len(known)
        run = 1 + digest(self.chain(s.sequence_id, end)) % self.max_run
        tokens: list[int] = []
        for _ in range(run):
            token = self.sample(new, self.chain(s.sequence_id, len(known)), len(known) - len(new.prompt_token_ids))
            known.append(token)
            tokens.append(token)
        logprobs = tuple(TokenLogprob(t, -1.0, 1, ()) for t in tokens) if new.params.logprobs is not None else ()
        return SequenceResult(s.sequence_id, tuple(tokens), logprobs, prompt_logprobs, "")

    def sample(self, new: Any, chain: int, num_output: int) -> int:
        token = digest(new.seed, new.sample_index, chain) % self.vocab_size
        while num_output < new.params.min_tokens and token in new.stop_ids:
            token = (token + 1) % self.vocab_size
        return token


class ScriptedExecutor(FakeExecutor):
    """Samples what a script says: sequence id -> the runs of tokens to give, one run per sampling step."""

    def __init__(self, block_size: int, script: dict[int, list[tuple[int, ...]]]) -> None:
        super().__init__(block_size)
        self.script = script

    def _result(self, s: Any) -> SequenceResult:
        if not s.sample:
            return super()._result(s)
        tokens = self.script[s.sequence_id].pop(0)
        self.known[s.sequence_id].extend(tokens)
        return SequenceResult(s.sequence_id, tokens, (), (), "")


class Rig:
    """A scheduler, a fake executor, a clock, and what came out per (request id, sample index)."""

    def __init__(self, config: SchedulerConfig, executor: FakeExecutor | None = None, *, check: bool = True) -> None:
        self.scheduler = Scheduler(config)
        self.executor = executor or FakeExecutor(config.block_size)
        self.clock = ManualClock()
        self.check = check
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.prompt_logprobs: dict[tuple[str, int], list[TokenLogprob]] = {}
        self.endings: dict[tuple[str, int], tuple[str, object]] = {}
        self.errors: dict[tuple[str, int], str] = {}
        self.plans: list[StepPlan] = []
        self.sequences: dict[int, Any] = {}
        self._count = 0

    def submit(self, prompt: Any, *, request_id: str | None = None, **settings: Any) -> tuple[Any, ...]:
        fields = {k: settings.pop(k) for k in ("priority", "cache_salt", "adapter_id", "eos_token_ids") if k in settings}
        seed = settings.pop("seed", 1)
        arrival_s = settings.pop("arrival_s", self.clock.now_s())
        name = request_id or f"r{self._count}"
        self._count += 1
        request = Request(name, tuple(prompt), SamplingParams(**settings), arrival_s, seed, **fields)
        sequences = self.scheduler.submit(request)
        for s in sequences:
            self.sequences[s.sequence_id] = s
            self.executor.namespaces[s.sequence_id] = digest(*request.cache_salt.encode(), -1, *request.adapter_id.encode())
            self.tokens.setdefault((name, s.sample_index), [])
        self.verify()
        return sequences

    def verify(self) -> None:
        if self.check:
            self.scheduler.check_invariants()

    def schedule(self) -> StepPlan | None:
        plan = self.scheduler.schedule(self.clock.now_s())
        if plan is not None:
            self.plans.append(plan)
        self.verify()
        return plan

    def commit(self, plan: StepPlan) -> list[Any]:
        result = self.executor.execute(plan)
        self.clock.advance(result.duration_s)
        events = self.scheduler.commit(plan, result, self.clock.now_s())
        self.record(events)
        self.verify()
        return events

    def step(self) -> list[Any] | None:
        plan = self.schedule()
        return None if plan is None else self.commit(plan)

    def run(self, max_steps: int = 5000) -> Rig:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                assert self.schedule() is None
                return self
            assert self.step() is not None, "work is left, but nothing is scheduled"
        raise AssertionError(f"not done after {max_steps} steps")

    def abort(self, request_id: str) -> list[Any]:
        events = self.scheduler.abort(request_id)
        self.record(events)
        self.verify()
        return events

    def record(self, events: list[Any]) -> None:
        for event in events:
            key = (event.request_id, event.sample_index)
            assert key not in self.endings, f"{key} gave an event after its last"
            self.tokens[key].extend(event.token_ids)
            self.prompt_logprobs.setdefault(key, []).extend(event.prompt_logprobs)
            if event.error:
                self.errors[key] = event.error
            if event.finish_reason is not None:
                self.endings[key] = (event.finish_reason.value, event.stop_reason)

    def output(self, request_id: str, index: int = 0) -> list[int]:
        return self.tokens[request_id, index]

    def assert_idle(self) -> None:
        s = self.scheduler
        assert (s.num_running, s.num_waiting, s.kv.num_held, s.has_work) == (0, 0, 0, False)
        assert s.kv.num_free + s.kv.num_cached == s.kv.num_blocks


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """The classes above, for tests that build their own."""

    def config(**settings: Any) -> SchedulerConfig:
        defaults: dict[str, Any] = {
            "num_blocks": 64,
            "block_size": 4,
            "max_model_len": 256,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "watermark": 0.0,
        }
        return SchedulerConfig(**{**defaults, **settings})

    def rig(executor: FakeExecutor | None = None, **settings: Any) -> Rig:
        return Rig(config(**settings), executor)

    return SimpleNamespace(
        FakeExecutor=FakeExecutor, ScriptedExecutor=ScriptedExecutor, Rig=Rig, config=config, rig=rig, digest=digest
    )
