import pytest

from argosy.fleet.policies.retries import RetryPolicy
from argosy.sim.fleet.faults import Crash, Hang
from argosy.sim.fleet.single import AttemptTimeouts
from argosy.sim.fleet.transfer import KvLink
from argosy.sim.outcome import Outcome

# 1 MB a token at 1 GB/s and 10 ms: 100 tokens take 110 ms.
LINK = KvLink(bytes_per_s=1e9, kv_bytes_per_token=1e6, latency_s=0.01)


def pair(fleet, **settings):
    return fleet.Bench(**({"replicas": 1, "decode": 1, "link": LINK, "policy": "least_work"} | settings))


def test_a_request_is_computed_moved_and_decoded(fleet):
    bench = pair(fleet)
    bench.offer([fleet.request("a", 1.0, prompt=100, output=20)])
    outcome = bench.run().outcome("a")
    prefill_s, step_s = 0.005 + 100 * 20e-6, 0.005 + 20e-6
    assert outcome.outcome is Outcome.FINISHED
    assert (outcome.replica, outcome.num_output_tokens) == ("d0", 20)
    assert outcome.submitted_s == outcome.first_scheduled_s == 1.0
    # The decode replica samples the first token from the last position, whose KV it was sent.
    assert outcome.ttft_s == pytest.approx(prefill_s + 0.110 + 0.005)
    assert outcome.e2e_s == pytest.approx(outcome.ttft_s + 19 * step_s)
    bench.assert_nothing_left()


def test_a_single_token_needs_no_second_replica(fleet):
    bench = pair(fleet)
    bench.offer([fleet.request("a", output=1)])
    outcome = bench.run().outcome("a")
    assert (outcome.replica, outcome.e2e_s) == ("r0", pytest.approx(0.007))
    bench.assert_nothing_left()


def test_transfers_of_one_replica_go_one_after_the_other(fleet):
    def ttft_s(**settings) -> list[float]:
        bench = pair(fleet, **settings)
        bench.offer([fleet.request(name, 0.0, prompt=200) for name in "ab"])
        return sorted(one.ttft_s for one in bench.run().outcomes)

    one_link, two_links = ttft_s(), ttft_s(replicas=2)
    assert one_link[1] - one_link[0] == pytest.approx(0.210, abs=0.01)
    assert two_links[1] - two_links[0] < 0.01


def test_a_worked_transfer():
    """4096 tokens of GQA KV at 12.5 GB/s: 107.4 ms whole, 13.42 ms for each of 8 shards."""
    per_token = 2 * 80 * 8 * 128 * 2
    assert KvLink(12.5e9, per_token).transfer_s(4096) == pytest.approx(0.1074, rel=1e-3)
    assert KvLink(12.5e9, per_token / 8).transfer_s(4096) == pytest.approx(0.01342, rel=1e-3)


@pytest.mark.parametrize("at_s", [0.003, 0.05, 0.13])
def test_a_client_that_leaves_between_any_two_stages_leaves_nothing_behind(fleet, at_s):
    """While the prompt is computed, while its KV moves, while it decodes."""
    bench = pair(fleet)
    bench.offer([fleet.request("a", timeout_s=at_s), fleet.request("b", 1.0)])
    heard = bench.run()
    assert (heard.outcome("a").outcome, heard.outcome("a").finished_s) == (Outcome.TIMED_OUT, at_s)
    assert heard.outcome("b").outcome is Outcome.FINISHED
    bench.assert_nothing_left()


def test_a_prefill_that_fails_frees_the_decode_leg_at_once_and_never_decodes(fleet):
    bench = pair(fleet, faults=[Crash(0.003, "r0")])
    bench.offer([fleet.request("a")])
    booked = []
    bench.loop.at(0.002, lambda: booked.append(bench.decode_pool.member("d0").state.booked.requests))
    bench.loop.at(0.0031, lambda: booked.append(bench.decode_pool.member("d0").state.booked.requests))
    heard = bench.run()
    assert booked == [1, 0]
    assert heard.outcome("a").outcome is Outcome.FAILED
    assert bench.replicas[1].scheduler.num_steps == 0
    bench.assert_nothing_left()


def test_a_decode_replica_that_is_gone_when_the_kv_arrives_makes_it_begin_anew(fleet):
    bench = pair(fleet, decode=2, retry=RetryPolicy(backoff_s=0.0))
    bench.loop.at(0.05, lambda: bench.decode_pool.remove(bench.decode_pool.member("d0")))
    bench.loop.at(0.05, lambda: bench.decode_pool.remove(bench.decode_pool.member("d1")))
    bench.loop.at(2.0, lambda: bench.decode_pool.add(*bench.make("d2")))
    bench.offer([fleet.request("a")])
    heard = bench.run()
    assert (heard.outcome("a").outcome, heard.outcome("a").replica, heard.attempts["a"]) == (Outcome.FINISHED, "d2", 2)
    bench.assert_nothing_left()


def test_silence_in_either_stage_is_noticed(fleet):
    bench = pair(
        fleet,
        replicas=2,
        faults=[Hang(0.0, "r0"), Hang(0.0, "r1", duration_s=2.5)],
        timeouts=AttemptTimeouts(first_token_s=1.0),
        retry=RetryPolicy(max_retries=5, backoff_s=0.1, max_backoff_s=0.1),
    )
    bench.offer([fleet.request("a")])
    heard = bench.run()
    assert heard.outcome("a").outcome is Outcome.FINISHED
    assert heard.attempts["a"] >= 3
    bench.loop.check()


def test_long_prompts_do_not_disturb_decoding_elsewhere(fleet):
    """The pools' reason: with prompts computed apart, the longest gap between tokens of a stream is shorter."""

    def streams_e2e_s(**settings) -> float:
        bench = fleet.Bench(policy="least_work", link=KvLink(1e12, 1.0), max_num_batched_tokens=2048, **settings)
        short = [fleet.request(f"s{i}", 0.01 * i, prompt=20, output=300) for i in range(8)]
        long = [fleet.request(f"l{i}", 0.05 + 0.05 * i, prompt=1800, output=2) for i in range(30)]
        bench.offer(sorted([*short, *long], key=lambda one: one.arrival_s))
        heard = bench.run()
        return max(heard.outcome(f"s{i}").e2e_s for i in range(8))

    assert streams_e2e_s(replicas=1, decode=1) < 0.8 * streams_e2e_s(replicas=2)
