import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.cost.catalogue import find_device, find_model
from argosy.cost.collectives import Topology
from argosy.cost.deployment import Deployment
from argosy.cost.efficiency import Constants
from argosy.cost.op import StepComposition
from argosy.cost.parallel import ParallelPlan
from argosy.cost.serving_memory import serving_memory
from argosy.cost.serving_time import ClosedLoop, closed_loop, closed_loops, prefill_time
from argosy.cost.speculation import Speculation, speculative_round
from argosy.cost.step_time_model import StepTimeModel
from argosy.errors import ConfigError

H100 = find_device("H100 SXM")
LLAMA = find_model("Llama-3.1-70B")


def model(plan=None, spec=LLAMA):
    return StepTimeModel(Deployment(spec, plan or ParallelPlan(tensor=4)), H100, Topology.of(H100), Constants())


TP4 = model()
TP4_MEMORY = serving_memory(TP4.deployment, H100)


class TestPrefill:
    def test_chunks_follow_each_other_over_a_growing_context(self):
        chunks = [TP4.step_s(StepComposition(((1, new, past),), 1)) for new, past in ((2048, 0), (2048, 2048), (904, 4096))]
        time = prefill_time(TP4, 5000, chunk_tokens=2048)
        assert time.latency_s == pytest.approx(sum(chunks))
        assert time.occupancy_s == pytest.approx(sum(chunks))

    def test_a_cached_prefix_saves_its_computation_but_is_still_looked_at(self):
        whole, rest, short = (
            prefill_time(TP4, tokens, chunk_tokens=8192, cached_tokens=cached).latency_s
            for tokens, cached in ((8000, 0), (2000, 6000), (2000, 0))
        )
        assert short < rest < whole / 3

    def test_chunks_overlap_in_a_pipeline(self):
        pipeline = model(ParallelPlan(tensor=4, pipeline=4))
        time = prefill_time(pipeline, 16384, chunk_tokens=1024)
        alone = pipeline.prefill(np.full(16, 1024.0), np.arange(16) * 1024.0)
        assert time.latency_s == pytest.approx(alone.latency_s[-1] + alone.interval_s[:-1].sum())
        assert time.occupancy_s < time.latency_s < alone.latency_s.sum() / 2


class TestClosedLoop:
    def test_one_client_sees_its_own_steps_only(self):
        estimate = closed_loop(TP4, ClosedLoop(1000, 101, 1), step_tokens=8192)
        prompt = prefill_time(TP4, 1000, chunk_tokens=8192).latency_s
        decode = float(TP4.decode(1, 1050).latency_s[0])
        assert estimate.ttft_s == pytest.approx(prompt, rel=0.01)
        # Its own prompt step is among the mean: 1 of 101.
        assert estimate.tpot_s == pytest.approx((100 * decode + prompt) / 101, rel=0.01)

    def test_means_are_consistent(self):
        estimate = closed_loop(TP4, ClosedLoop(2000, 300, 50), step_tokens=4096, memory=TP4_MEMORY)
        assert estimate.request_s == pytest.approx(estimate.ttft_s + 299 * estimate.tpot_s)
        assert estimate.running == pytest.approx(estimate.requests_per_s * estimate.request_s)
        assert estimate.output_tokens_per_s == pytest.approx(300 * estimate.requests_per_s)
        assert sum(estimate.by_binding.values()) == pytest.approx(1.0)

    def test_prompt_tokens_computed_are_those_that_arrive(self):
        load = ClosedLoop(3000, 200, 40)
        estimate = closed_loop(TP4, load, step_tokens=4096)
        cycle = 199 + 1
        arriving = load.concurrency / cycle * load.prompt_tokens
        assert estimate.step_tokens == pytest.approx(load.concurrency * 199 / cycle + arriving)

    def test_no_step_exceeds_its_budget_when_prompts_fill_every_step(self):
        estimate = closed_loop(TP4, ClosedLoop(8000, 20, 64), step_tokens=2048)
        assert estimate.mixed_share == pytest.approx(1.0)
        assert estimate.step_tokens <= 2048 * (1 + 1e-6)
        assert estimate.ttft_s > 5 * prefill_time(TP4, 8000, chunk_tokens=2048).latency_s

    def test_one_output_token_has_no_time_per_output_token(self):
        one, two = (closed_loop(TP4, ClosedLoop(1000, output, 8), step_tokens=8192) for output in (1, 2))
        assert one.tpot_s is None
        assert one.request_s == one.ttft_s
        assert two.tpot_s == pytest.approx(two.request_s - two.ttft_s)

    def test_beyond_the_cache_requests_wait(self):
        fits = TP4_MEMORY.admissible_concurrency(2048)
        before, beyond = (
            closed_loop(TP4, ClosedLoop(1024, 1024, clients), step_tokens=8192, memory=TP4_MEMORY)
            for clients in (fits, fits + fits // 4)
        )
        assert (before.beyond_kv, beyond.beyond_kv) == (False, True)
        assert beyond.running == before.running == fits
        assert beyond.ttft_s > 20 * before.ttft_s
        assert beyond.tpot_s == before.tpot_s
        assert beyond.admission_wait_s == pytest.approx(beyond.waiting / beyond.requests_per_s)

    def test_a_cached_prefix_lowers_both(self):
        cold, warm = (
            closed_loop(TP4, ClosedLoop(4000, 200, 64, cached), step_tokens=8192, memory=TP4_MEMORY) for cached in (0, 3000)
        )
        assert warm.ttft_s < cold.ttft_s
        assert warm.tpot_s < cold.tpot_s

    def test_a_pipeline_keeps_its_stages_busy(self):
        two = model(ParallelPlan(tensor=4, pipeline=2))
        estimate = closed_loop(two, ClosedLoop(64, 2000, 64), step_tokens=8192)
        halves = two.decode(32, 64 + 1000)
        assert estimate.tpot_s == pytest.approx(max(halves.latency_s[0], 2 * halves.interval_s[0]), rel=0.02)

    def test_attention_data_ranks_share_the_clients(self):
        spec = find_model("DeepSeek-V2-Lite")
        plan = ParallelPlan.for_serving(data=4, expert=4)
        estimate = closed_loop(model(plan, spec), ClosedLoop(64, 2000, 64), step_tokens=8192)
        assert estimate.tpot_s == pytest.approx(float(model(plan, spec).decode(16, 1064).latency_s[0]), rel=0.02)

    @given(
        tokens=st.integers(1, 8000),
        output=st.integers(2, 1000),
        clients=st.integers(1, 400),
        budget=st.sampled_from([512, 2048, 8192]),
    )
    @settings(max_examples=40, deadline=None)
    def test_more_clients_are_never_served_faster_each(self, tokens, output, clients, budget):
        base, more = (
            closed_loop(TP4, ClosedLoop(tokens, output, count), step_tokens=budget, memory=TP4_MEMORY)
            for count in (clients, clients + 50)
        )
        assert more.request_s >= base.request_s * (1 - 1e-6)
        assert base.requests_per_s > 0
        bound = float(TP4.decode(1, tokens).latency_s[0])
        assert base.tpot_s >= bound * (1 - 1e-9)

    def test_speculation_replaces_decode_steps_by_rounds(self):
        draft = model(spec=find_model("Llama-3.2-1B"))
        load = ClosedLoop(64, 2000, 4)
        estimate = closed_loop(TP4, load, step_tokens=8192, speculation=Speculation(draft, 4, 0.8))
        alone = speculative_round(TP4, draft, sequences=4, context=1064, drafts=4, acceptance=0.8)
        assert estimate.tpot_s == pytest.approx(alone.tpot_s, rel=0.01)
        assert estimate.tpot_s < closed_loop(TP4, load, step_tokens=8192).tpot_s

    def test_speculation_that_is_never_accepted_only_costs(self):
        draft = model(spec=find_model("Llama-3.2-1B"))
        load = ClosedLoop(500, 500, 64)
        plain = closed_loop(TP4, load, step_tokens=8192)
        estimate = closed_loop(TP4, load, step_tokens=8192, speculation=Speculation(draft, 4, 0.0))
        assert estimate.tpot_s > plain.tpot_s
        assert estimate.ttft_s > plain.ttft_s

    def test_many_loads_at_once_are_each_as_alone(self):
        loads = [ClosedLoop(1000, 300, 1), ClosedLoop(8000, 20, 64), ClosedLoop(100, 1, 5), ClosedLoop(4000, 500, 900, 1000)]
        budgets = [8192, 2048, 512, 4096]
        together = closed_loops(TP4, loads, step_tokens=budgets, memory=TP4_MEMORY)
        for load, budget, estimate in zip(loads, budgets, together, strict=True):
            alone = closed_loop(TP4, load, step_tokens=budget, memory=TP4_MEMORY)
            assert estimate.ttft_s == pytest.approx(alone.ttft_s, rel=1e-12)
            assert estimate.tpot_s == (None if alone.tpot_s is None else pytest.approx(alone.tpot_s, rel=1e-12))
            assert (estimate.running, estimate.waiting) == (alone.running, alone.waiting)

    def test_among_many_loads_one_that_never_fits_is_marked(self):
        fits, never = closed_loops(
            TP4, [ClosedLoop(100, 10, 4), ClosedLoop(2_000_000, 10, 4)], step_tokens=8192, memory=TP4_MEMORY
        )
        assert fits.requests_per_s > 0
        assert (never.admissible, never.running, never.requests_per_s, never.ttft_s) == (0, 0, 0.0, math.inf)

    def test_a_request_that_can_never_fit_is_refused(self):
        tight = serving_memory(Deployment(LLAMA, ParallelPlan(tensor=2)), H100)
        with pytest.raises(ConfigError, match="out of memory by"):
            closed_loop(TP4, ClosedLoop(100_000, 100, 1), step_tokens=8192, memory=tight)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ((0, 1, 1), "input_tokens"),
            ((1, 0, 1), "output_tokens"),
            ((1, 1, 0), "concurrency"),
            ((10, 1, 1, 10), "cached_tokens"),
            ((10, 1, 1, -1), "cached_tokens"),
        ],
    )
    def test_impossible_loads(self, fields, message):
        with pytest.raises(ConfigError, match=message):
            ClosedLoop(*fields)

    def test_a_budget_of_nothing(self):
        with pytest.raises(ConfigError, match="step_tokens"):
            closed_loop(TP4, ClosedLoop(10, 10, 1), step_tokens=0)
