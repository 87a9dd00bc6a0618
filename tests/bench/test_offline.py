import time
from collections.abc import Callable

import pytest

from argosy.bench.offline import Measured, OfflineBench, OfflineSettings, Step, StepSink, generated, prefilled
from argosy.engine.admission import Admission
from argosy.engine.build import EngineParts
from argosy.engine.client import EngineInfo
from argosy.engine.core.clock import ManualClock
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.core.plan import SequenceResult, StepPlan, StepResult
from argosy.engine.core.scheduler import Scheduler
from argosy.engine.step_loop import StepLoop
from argosy.errors import ConfigError, EngineUnavailable

WIDTH, EXECUTOR_S = 260, 0.0001


class Bytes:
    vocab_size, bos_token_id, special_token_ids, eos_token_ids, has_chat_template = (
        256,
        None,
        frozenset(),
        frozenset(),
        False,
    )

    def encode(self, text, *, add_special_tokens=True):
        return list(text.encode())

    def decode(self, ids, *, skip_special_tokens=True):
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id):
        return bytes([token_id]) if token_id < 256 else b""


class Executor:
    """Samples 7 always, and says that each step took it `EXECUTOR_S`."""

    vocab_size, kv_dtype = WIDTH, "float32"

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.prompts: list[tuple[int, ...]] = []
        self.fails = False

    def execute(self, plan: StepPlan) -> StepResult:
        if self.fails:
            raise RuntimeError("device lost")
        self.prompts += [new.prompt_token_ids for new in plan.new]
        time.sleep(0.002)
        results = (SequenceResult(s.sequence_id, (7,) if s.sample else (), (), (), "") for s in plan.sequences)
        return StepResult(plan.step, tuple(results), EXECUTOR_S)

    def close(self) -> None:
        pass


@pytest.fixture
def bench() -> Callable[..., tuple[OfflineBench, Executor]]:
    def build(*, budget: int = 64, num_blocks: int = 64, max_num_seqs: int = 8, **settings) -> tuple[OfflineBench, Executor]:
        config = SchedulerConfig(
            num_blocks=num_blocks,
            block_size=4,
            max_model_len=64,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            prefill_share=1.0,
            enable_prefix_caching=False,
        )
        info = EngineInfo(
            "toy",
            "/toy",
            64,
            WIDTH,
            4,
            num_blocks,
            max_num_seqs,
            budget,
            64,
            "float32",
            "float32",
            "cpu",
            False,
            False,
            False,
            {},
        )
        clock, sink, executor = ManualClock(), StepSink(), Executor(num_blocks)
        loop = StepLoop(Scheduler(config), executor, Bytes(), clock=clock, sink=sink)
        admission = Admission(
            tokenizer=Bytes(), logits_width=WIDTH, max_model_len=64, eos_token_ids=frozenset({7}), draw_seed=lambda: 0
        )
        parts = EngineParts(loop, admission, info, clock)
        return OfflineBench(parts, sink, OfflineSettings(**{"prefill_tokens": (), "batch_sizes": (), **settings})), executor

    return build


def test_decode_counts_only_steps_in_which_the_whole_batch_decodes(bench):
    made, executor = bench(batch_sizes=(5,), prompt_tokens=6, output_tokens=9)
    steps = made.decode(5)
    # The first of 9 tokens comes with the prompt; EOS (7, which is all this model says) ends nothing.
    assert [(s.num_tokens, s.num_generated_tokens, s.num_prefill_tokens) for s in steps] == [(5, 5, 0)] * 8
    assert {len(prompt) for prompt in executor.prompts} == {6}
    assert len(set(executor.prompts)) == 5


def test_prefill_counts_every_step_up_to_the_first_token(bench):
    made, _ = bench(budget=16, prefill_tokens=(40,))
    steps = made.prefill(40)
    assert [s.num_tokens for s in steps] == [16, 16, 8]
    assert [s.num_generated_tokens for s in steps] == [0, 0, 1]


def test_prompts_differ_from_round_to_round_and_repeat_with_the_seed(bench):
    (one, first), (two, second), (three, third) = (bench(prefill_tokens=(30,), seed=seed) for seed in (1, 1, 2))
    for made in (one, two, three):
        made.prefill(30)
        made.prefill(30)
    assert first.prompts == second.prompts != third.prompts
    assert first.prompts[0] != first.prompts[1]
    assert all(0 <= token < WIDTH for token in first.prompts[0])


def test_rates_are_tokens_over_wall_time_and_the_rest_of_a_step_is_not_the_executors():
    rounds = [
        [Step(0.5, 0.4, 4, 0, 4), Step(0.3, 0.2, 4, 0, 4)],
        [Step(1.0, 0.9, 4, 0, 4), Step(0.2, 0.1, 4, 0, 4)],
    ]
    found = Measured.of(rounds, generated)
    assert found.tokens_per_s == pytest.approx((8 / 0.8, 8 / 1.2))
    assert found.median_tokens_per_s == pytest.approx((10 + 8 / 1.2) / 2)
    assert (found.step_s, found.executor_s, found.slowest_step_s) == pytest.approx((0.4, 0.3, 1.0))
    assert found.overhead_share == pytest.approx(0.4 / 2.0)
    assert found.num_steps == 4
    assert Measured.of([[Step(0.5, 0.5, 40, 40, 1)]], prefilled).tokens_per_s == (80.0,)


def test_warmup_rounds_are_run_and_not_counted(bench):
    told = []
    made, executor = bench(prefill_tokens=(8,), batch_sizes=(2,), prompt_tokens=4, output_tokens=4, repetitions=3, warmup=2)
    result = made.run(lambda *report: told.append(report))
    assert len(result.prefill[8].tokens_per_s) == 3
    assert result.decode[2].num_steps == 9
    assert [len(prompt) for prompt in executor.prompts] == [8] * 5 + [4] * 10
    assert told[:2] == [("prefill of 8", 0, 5), ("prefill of 8", 1, 5)]
    assert told[-1] == ("decode at 2", 5, 5)
    assert result.decode[2].executor_s == EXECUTOR_S
    assert 0.5 < result.decode[2].overhead_share < 1.0
    assert result.as_dict()["decode"][0]["sequences"] == 2


def test_an_engine_that_dies_ends_the_measurement(bench):
    made, executor = bench(prefill_tokens=(8,))
    executor.fails = True
    with pytest.raises(EngineUnavailable, match="device lost"):
        made.run()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"prefill_tokens": (0,)}, "--prefill-tokens"),
        ({"batch_sizes": (1, 0)}, "--batch-sizes"),
        ({"prompt_tokens": 0}, "--prompt-tokens"),
        ({"output_tokens": 2}, "--output-tokens"),
        ({"repetitions": 0}, "--repetitions"),
        ({"warmup": -1}, "--warmup"),
        ({"prefill_tokens": (), "batch_sizes": ()}, "nothing to measure"),
    ],
)
def test_settings_out_of_range_are_named(settings, named):
    with pytest.raises(ConfigError, match=named):
        OfflineSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"prefill_tokens": (64,)}, "the longest sequence has 65 tokens, this engine takes 64"),
        ({"batch_sizes": (1,), "prompt_tokens": 60, "output_tokens": 8}, "the longest sequence has 68 tokens"),
        ({"batch_sizes": (9,), "output_tokens": 8, "prompt_tokens": 8}, "9 sequences, this engine runs 8 at once"),
        ({"batch_sizes": (8,), "prompt_tokens": 24, "output_tokens": 8}, "need 64 KV blocks, this engine has 64"),
    ],
)
def test_an_engine_too_small_is_told_before_anything_runs(bench, settings, told):
    with pytest.raises(ConfigError, match=told):
        bench(**settings)
