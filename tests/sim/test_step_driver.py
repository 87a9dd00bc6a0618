"""Committing uneventful steps together leaves what one event per step leaves, to the last bit."""

from __future__ import annotations

import io
from random import Random

import pytest

from argosy.errors import QueueFull
from argosy.sim.recorder import Recorder
from argosy.sim.replica import Failure
from argosy.sim.run_log import RunLog

# Ample memory; blocks for a few sequences, so that they are preempted; few may run, so that others wait.
SETTINGS = {
    "ample": {},
    "preempting": {"num_blocks": 60, "max_preemptions": 2, "watermark": 0.0},
    "waiting": {"max_num_seqs": 4},
    "priority": {"num_blocks": 80, "scheduling_policy": "priority"},
    "priority without cache": {
        "num_blocks": 80,
        "scheduling_policy": "priority",
        "enable_prefix_caching": False,
        "watermark": 0.0,
    },
    "large blocks": {"block_size": 64, "num_blocks": 30},
    "no cache": {"enable_prefix_caching": False, "num_blocks": 60},
    "chunked": {"max_num_batched_tokens": 32, "prefill_share": 0.5, "max_num_seqs": 16},
}
MODES = {"one by one, all listed": (False, True), "one by one, coasting": (True, True), "together": (True, False)}


def run(sim, mode: str, settings: dict, *, seed: int, model=None, check: bool = False):
    """Random traffic, with aborts, looks, slowdowns and a hang at random moments, which are the same in every mode."""
    coasts, one_by_one = MODES[mode]
    bench = sim.bench(coasts=coasts, one_by_one=one_by_one, check_invariants=check, model=model, **settings)
    requests = sim.poisson(seed, rate=30.0, count=60, prompt=60, output=60, shared=48)
    rng = Random(seed)
    requests = [
        type(r)(r.request_id, r.arrival_s, r.segments, r.output_tokens, priority=rng.randint(0, 2), timeout_s=timeout)
        for r in requests
        for timeout in [rng.choice([None, None, 0.4])]
    ]
    bench.feed(requests)
    looks = []
    for one in rng.sample(requests, 12):
        moment_s = one.arrival_s + rng.random() * 0.5
        act = rng.choice(["abort", "look", "slow", "hang"])
        if act == "abort":
            bench.at(moment_s, lambda one=one: bench.replica.abort(one.request_id))
        elif act == "look":
            bench.at(moment_s, lambda: looks.append((bench.replica.load(), bench.replica.busy_s)))
        elif act == "slow":
            factor = rng.choice([1.0, 2.5])
            bench.at(moment_s, lambda factor=factor: bench.replica.set_slowdown(factor))
        else:
            bench.at(moment_s, lambda: bench.replica.fail(Failure.HANG))
            bench.at(moment_s + 0.05, bench.replica.recover)
    heard = bench.finish()
    bench.replica.scheduler.settle()
    pool = bench.replica.scheduler.kv._pool
    state = (pool.free_blocks, bench.replica.scheduler.kv.num_cached, bench.replica.scheduler.num_steps)
    return heard, looks, state, bench.replica.busy_s


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_mode_gives_the_same_records_and_the_same_free_list(sim, name, seed):
    reference, looks, state, busy_s = run(sim, "one by one, all listed", SETTINGS[name], seed=seed)
    for mode in ("one by one, coasting", "together"):
        heard, seen, left, busy = run(sim, mode, SETTINGS[name], seed=seed)
        assert heard.steps == reference.steps
        assert heard.outcomes == reference.outcomes
        assert heard.first_tokens == reference.first_tokens
        assert (seen, left, busy) == (looks, state, busy_s)
    assert heard.num_spans < reference.num_spans


def test_windows_of_attention_are_followed_while_coasting(sim):
    model = sim.model("gpt-oss-20b")
    reference = run(sim, "one by one, all listed", {}, seed=4, model=model)
    assert run(sim, "together", {}, seed=4, model=model)[0].steps == reference[0].steps


def test_invariants_hold_after_every_step_of_every_mode(sim):
    for mode in MODES:
        run(sim, mode, SETTINGS["preempting"], seed=5, check=True)


def test_preemptions_happen_in_the_settings_meant_for_them(sim):
    heard, *_ = run(sim, "together", SETTINGS["preempting"], seed=1)
    assert sum(one.preemptions for one in heard.outcomes) > 5


def test_an_undisturbed_answer_takes_few_events(sim):
    bench = sim.bench(check_invariants=False, enable_prefix_caching=False)
    bench.feed([sim.request("a", output=1000)])
    heard = bench.finish()
    assert len(heard.steps) == 1000
    assert bench.loop._last_number < 30
    assert heard.num_spans < 100


def log_of(sim, seed: int, mode: str) -> bytes:
    stream = io.BytesIO()
    coasts, one_by_one = MODES[mode]
    bench = sim.bench(coasts=coasts, one_by_one=one_by_one, num_blocks=60)
    recorder = Recorder(log=RunLog(stream, seed=seed, config={"seed": seed}), log_steps=True)
    recorder.add_replica(bench.replica)
    bench.ledger._listener = recorder
    for one in sim.poisson(seed, rate=30.0, count=40, prompt=60, output=60):
        bench.at(one.arrival_s, lambda one=one: (recorder.on_arrival(one), bench.submit(one)))
    bench.finish()
    return stream.getvalue()


def test_the_log_of_a_seed_has_the_same_bytes_in_every_mode(sim):
    logs = {log_of(sim, 1, mode) for mode in MODES}
    assert len(logs) == 1
    assert logs == {log_of(sim, 1, "together")}
    assert log_of(sim, 2, "together") not in logs


def test_a_full_queue_changes_nothing(sim):
    bench = sim.bench(max_waiting=1, max_num_seqs=1)

    def crowd() -> None:
        bench.submit(sim.request("b"))
        with pytest.raises(QueueFull):
            bench.submit(sim.request("c"))

    bench.feed([sim.request("a", output=50)])
    bench.at(0.1, crowd)
    assert [one.request.request_id for one in bench.finish().outcomes] == ["a", "b"]
