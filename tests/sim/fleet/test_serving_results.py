"""Results about language model replicas that must come out: real schedulers, step times of an 8B model on an H100."""

from random import Random
from statistics import fmean

import pytest

from argosy.sim.cost_executor import CostTimer
from argosy.sim.step_pricer import StepPricer
from argosy.sim.workload.trace_request import Segment, TraceRequest


@pytest.fixture(scope="module")
def timer(sim) -> CostTimer:
    return CostTimer(StepPricer(sim.model("Llama-3.1-8B")))


class Steps:
    """Durations of the steps in which some sequence decoded: the gaps between the tokens of a stream."""

    def __init__(self) -> None:
        self.gaps_s: list[float] = []

    def __call__(self, replica, span) -> None:
        begin_s = span.start_s
        for end_s in span.ends_s:
            if span.num_decoding:
                self.gaps_s.append(end_s - begin_s)
            begin_s = end_s


class TestChunkedPrefill:
    """16 streams that decode, and a prompt of 8000 tokens every 2 s."""

    def run(self, fleet, timer, **settings):
        bench = fleet.Bench(
            replicas=1, timer=timer, checked=False, num_blocks=8000, max_model_len=16_000, max_num_seqs=64, **settings
        )
        steps = Steps()
        bench.heard.on_steps = steps
        streams = [fleet.request(f"s{i}", 0.0, prompt=50, output=900) for i in range(16)]
        long = [fleet.request(f"l{i}", 1.0 + 2.0 * i, prompt=8000, output=10) for i in range(4)]
        bench.offer([*streams, *long])
        heard = bench.run()
        return max(steps.gaps_s), heard

    def test_chunks_keep_streams_flowing_and_cost_the_long_prompt_a_little(self, fleet, timer):
        whole_gap_s, whole = self.run(fleet, timer, max_num_batched_tokens=16_000, prefill_share=1.0)
        chunk_gap_s, chunked = self.run(fleet, timer, max_num_batched_tokens=512, prefill_share=1.0)
        assert whole_gap_s > 0.15, "a whole prompt stops every stream"
        assert chunk_gap_s < 0.15 * whole_gap_s
        slower = chunked.outcome("l0").ttft_s / whole.outcome("l0").ttft_s
        assert 1.0 < slower < 2.0


class TestPrefixAwareRouting:
    """24 system prompts of 2000 tokens, 4 replicas that hold about 8 of them each: one holds a third, all hold them all."""

    def run(self, fleet, timer, policy: str):
        settings = {"prefix_precise": {"block_tokens": 16}, "prefix_aware": {"blocks_per_replica": 1200}}.get(policy)
        bench = fleet.Bench(
            replicas=4,
            policy=policy,
            settings=settings,
            timer=timer,
            checked=False,
            num_blocks=1200,
            max_model_len=4000,
            max_num_seqs=16,
        )
        rng, now_s, requests = Random(4), 0.0, []
        for number in range(600):
            now_s += rng.expovariate(30.0)
            segments = (Segment(rng.randrange(24), 2000), Segment(1000 + number, 50))
            requests.append(TraceRequest(f"q{number}", now_s, segments, rng.randint(10, 50)))
        bench.offer(requests)
        outcomes = bench.run().outcomes[200:]
        hits = sum(one.num_cached_tokens for one in outcomes) / sum(one.request.num_prompt_tokens for one in outcomes)
        return hits, fmean(one.ttft_s for one in outcomes)

    def test_each_replica_keeps_its_share_of_the_prefixes(self, fleet, timer):
        random_hits, random_ttft_s = self.run(fleet, timer, "random")
        for policy in ("prefix_aware", "prefix_precise"):
            hits, ttft_s = self.run(fleet, timer, policy)
            assert random_hits < 0.5
            assert hits > 0.85
            assert ttft_s < 0.5 * random_ttft_s
