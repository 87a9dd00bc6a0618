"""The recorder's figures against those computed from every single record."""

from __future__ import annotations

import gc
import io
import itertools
import json
import math

import pytest

from argosy import __version__
from argosy.errors import ConfigError
from argosy.sim.feeder import Feeder
from argosy.sim.histogram import RELATIVE_ERROR
from argosy.sim.recorder import Recorder
from argosy.sim.replica import Failure
from argosy.sim.results import ReplicaCost, Slo
from argosy.sim.run_log import RunLog, config_hash
from argosy.sim.workload.trace_request import OpenLoop


class Both:
    """Passes reports to a recorder and to a listener that keeps them."""

    def __init__(self, *listeners) -> None:
        self.listeners = listeners

    def __getattr__(self, name):
        def tell(*arguments) -> None:
            for listener in self.listeners:
                getattr(listener, name)(*arguments)

        return tell


def record(sim, requests, *, recorder: Recorder, cost: ReplicaCost | None = None, **settings):
    bench = sim.bench(**settings)
    recorder.add_replica(bench.replica, cost)
    bench.ledger._listener = Both(recorder, bench.heard)
    for one in requests:
        bench.at(one.arrival_s, lambda one=one: (recorder.on_arrival(one), bench.submit(one)))
    heard = bench.finish()
    return heard, recorder.results(bench.loop.now_s())


def ranked(values: list[float], share: float) -> float:
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


def near(value: float):
    return pytest.approx(value, rel=RELATIVE_ERROR * 1.001)


@pytest.fixture(scope="module")
def recorded(sim):
    slo = Slo(ttft_s=0.03, tpot_s=0.0085)
    cost = ReplicaCost(devices=2, usd_per_device_hour=3.0, watts_per_device=700.0)
    requests = sim.poisson(5, rate=30.0, count=80, prompt=80, output=40, shared=64)
    return (slo, *record(sim, requests, recorder=Recorder(slo=slo, window_s=0.25), cost=cost, num_blocks=70))


def test_latencies_are_those_of_the_records(recorded):
    _, heard, results = recorded
    outcomes = heard.outcomes
    for name, values in {
        "ttft": [o.ttft_s for o in outcomes],
        "tpot": [o.tpot_s for o in outcomes if o.tpot_s is not None],
        "e2e": [o.e2e_s for o in outcomes],
        "queueing": [o.first_scheduled_s - o.request.arrival_s for o in outcomes],
    }.items():
        got = getattr(results, name)
        assert got.count == len(values)
        assert got.mean_s == pytest.approx(sum(values) / len(values))
        assert (got.least_s, got.greatest_s) == (min(values), max(values))
        for share, value in ((0.5, got.p50_s), (0.9, got.p90_s), (0.95, got.p95_s), (0.99, got.p99_s)):
            assert value == pytest.approx(ranked(values, share), rel=RELATIVE_ERROR * 1.001, abs=1e-9)


def test_rates_goodput_and_hits(recorded):
    slo, heard, results = recorded
    good = [o for o in heard.outcomes if o.ttft_s <= slo.ttft_s and (o.tpot_s is None or o.tpot_s <= slo.tpot_s)]
    assert 0 < len(good) < 80
    assert results.outcomes["finished"] == results.submitted == 80
    assert results.goodput_per_s == pytest.approx(len(good) / results.duration_s)
    assert results.slo_share == len(good) / 80
    assert results.requests_per_s == pytest.approx(80 / results.duration_s)
    tokens = sum(o.num_output_tokens for o in heard.outcomes)
    assert results.output_tokens_per_s == pytest.approx(tokens / results.duration_s)
    prompts = sum(o.request.num_prompt_tokens for o in heard.outcomes)
    hits = sum(o.num_cached_tokens for o in heard.outcomes)
    assert results.prefix_hit_rate == pytest.approx(hits / prompts)
    assert hits > 0
    assert results.preemptions == sum(o.preemptions for o in heard.outcomes) > 0
    assert results.in_flight == 0


def test_use_cost_and_energy(recorded):
    _, heard, results = recorded
    (replica,) = results.replicas
    spent = [step[2] - step[1] for step in heard.steps]
    assert replica.busy_s == pytest.approx(sum(spent))
    assert replica.busy_share == pytest.approx(sum(spent) / results.duration_s)
    assert replica.steps == len(spent)
    assert replica.usd == results.usd == pytest.approx(2 * 3.0 * results.duration_s / 3600)
    assert replica.energy_j == results.energy_j == pytest.approx(2 * 700.0 * sum(spent))
    assert results.usd_per_million_output_tokens == pytest.approx(results.usd / replica.generated_tokens * 1e6)
    held = [step[-5] for step in heard.steps]
    weighed = sum(s * h for s, h in zip(spent, held, strict=True))
    assert replica.mean_kv_used == pytest.approx(weighed / sum(spent) / 70)
    assert replica.peak_kv_used == max(held) / 70 <= 1.0
    assert replica.generated_tokens >= sum(o.num_output_tokens for o in heard.outcomes)


def test_composition_over_time_adds_up(recorded):
    _, heard, results = recorded
    windows = results.series.windows
    (replica,) = results.replicas
    for name in ("busy_s", "tokens", "prefill_tokens", "generated_tokens", "preemptions", "steps"):
        assert sum(getattr(window, name) for window in windows) == pytest.approx(getattr(replica, name))
    assert sum(window.arrivals for window in windows) == sum(window.finished for window in windows) == 80
    busiest = max(windows, key=lambda window: window.busy_s)
    index = windows.index(busiest)
    width = results.series.width_s
    steps = [s for s in heard.steps if index * width <= s[2] < (index + 1) * width]
    assert busiest.per_busy_second(busiest.running) == pytest.approx(
        sum((s[2] - s[1]) * s[-7] for s in steps) / sum(s[2] - s[1] for s in steps)
    )


def test_gaps_between_tokens_are_the_decode_steps_of_one_request(sim):
    recorder = Recorder()
    heard, results = record(sim, [sim.request("a", 3.0, output=30)], recorder=recorder)
    gaps = [step[2] - step[1] for step in heard.steps[1:]]
    assert (results.itl.count, results.itl.greatest_s) == (29, pytest.approx(max(gaps)))
    assert results.itl.mean_s == pytest.approx(sum(gaps) / 29)


def test_a_hang_is_a_gap_between_tokens(sim):
    recorder, bench = Recorder(), sim.bench()
    recorder.add_replica(bench.replica)
    bench.replica.listener = recorder
    bench.at(0.0, lambda: bench.replica.submit(sim.request("a", output=30)))
    bench.at(0.1, lambda: bench.replica.fail(Failure.HANG))
    bench.at(4.1, bench.replica.recover)
    bench.loop.run()
    assert 4.0 < recorder.results(5.0).itl.greatest_s < 4.1


def test_a_prompt_that_is_all_cached_has_no_gap_before_its_first_token(sim):
    one = sim.request("a", prompt=33, output=2)
    again = sim.request("b", 50.0, segments=one.segments, output=2)
    _, results = record(sim, [one, again], recorder=Recorder())
    assert results.itl.count == 2
    assert results.itl.greatest_s < 1.0


def test_only_the_measured_time_counts(sim):
    requests = [sim.request(str(second), float(second), output=3) for second in range(10)]
    _, results = record(sim, requests, recorder=Recorder(measure_from_s=2.0, measure_until_s=7.0))
    assert (results.submitted, results.ttft.count, results.measured_s) == (5, 5, 5.0)
    assert results.requests_per_s == 1.0
    assert results.replicas[0].generated_tokens == 30


def test_an_overloaded_replica_is_called_unstable(sim):
    requests = sim.poisson(1, rate=60.0, count=400, prompt=100, output=60)
    _, results = record(sim, requests, recorder=Recorder(), max_num_seqs=8, check_invariants=False)
    assert results.stability.is_unstable
    requests = sim.poisson(1, rate=8.0, count=200, prompt=100, output=60)
    _, results = record(sim, requests, recorder=Recorder(), max_num_seqs=8, check_invariants=False)
    assert not results.stability.is_unstable
    assert results.stability.in_system


def test_what_is_refused_or_in_flight_is_counted_apart(sim):
    recorder = Recorder(slo=Slo(ttft_s=1.0))
    for name in "abc":
        recorder.on_arrival(sim.request(name))
    recorder.on_refused(sim.request("b"))
    results = recorder.results(10.0)
    assert (results.submitted, results.refused, results.in_flight, results.slo_share) == (3, 1, 2, 0.0)
    assert recorder.num_in_system == 2
    assert results.usd is None


def test_the_log_says_what_happened_and_from_what(sim):
    stream = io.BytesIO()
    config = {"replicas": 1, "rate": 2.5}
    recorder = Recorder(log=RunLog(stream, seed=9, config=config, commit="abc"), log_steps=True)
    heard, _ = record(sim, [sim.request("a", output=4, tenant="t")], recorder=recorder)
    header, *lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert header == {
        "kind": "header",
        "format": "argosy-run-log",
        "format_version": 1,
        "argosy": __version__,
        "commit": "abc",
        "seed": 9,
        "config_hash": config_hash({"rate": 2.5, "replicas": 1}),
    }
    assert [line["kind"] for line in lines] == ["step"] * 4 + ["request"]
    assert [(line["step"], line["end_s"], line["kv_blocks_held"]) for line in lines[:4]] == [
        (step[0], step[2], step[-5]) for step in heard.steps
    ]
    one = heard.outcome("a")
    assert {key: lines[-1][key] for key in ("request_id", "tenant", "outcome", "first_token_s", "output_tokens")} == {
        "request_id": "a",
        "tenant": "t",
        "outcome": "finished",
        "first_token_s": one.first_token_s,
        "output_tokens": 4,
    }
    assert config_hash({"rate": 2.6, "replicas": 1}) != header["config_hash"]


class Nowhere(io.BytesIO):
    def write(self, data) -> int:
        return len(data)


def test_memory_does_not_grow_with_simulated_time(sim):
    recorder = Recorder(log=RunLog(Nowhere(), seed=0, config={}), window_s=10.0)
    bench = sim.bench(check_invariants=False, num_blocks=100)
    recorder.add_replica(bench.replica)
    bench.replica.listener = recorder
    offered = (sim.request(f"q{number % 50}", number * 0.25, prompt=40, output=20) for number in itertools.count())

    def arrive(one) -> None:
        recorder.on_arrival(one)
        bench.replica.submit(one)

    Feeder(bench.loop, OpenLoop(offered), arrive).start()

    def num_objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    bench.loop.run(150.0)
    before = num_objects()
    bench.loop.run(400.0)
    assert num_objects() - before < 100, "1 000 requests came and went in between"


@pytest.mark.parametrize("bounds", [{"ttft_s": 0.0}, {"tpot_s": -1.0}, {"e2e_s": math.nan}])
def test_impossible_bounds_are_refused(bounds):
    with pytest.raises(ConfigError, match="must be above 0"):
        Slo(**bounds)


@pytest.mark.parametrize("fields", [{"devices": 0}, {"usd_per_device_hour": -1.0}, {"watts_per_device": math.nan}])
def test_impossible_costs_are_refused(fields):
    with pytest.raises(ConfigError):
        ReplicaCost(**fields)
