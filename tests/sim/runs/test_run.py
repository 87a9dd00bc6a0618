import math

import orjson
import pytest

from argosy.errors import ConfigError, TraceFileError
from argosy.sim.run import End


def test_every_request_ends_and_is_counted_once(simulated):
    ran = simulated()
    results, counters = ran.run.results, ran.run.counters
    records = [orjson.loads(line) for line in ran.log.splitlines()]
    requests = [record for record in records if record["kind"] == "request"]
    assert ran.run.end is End.ALL_ENDED
    assert 30 < results.submitted < 90
    assert results.submitted == len(requests) == counters.offered == counters.finished == results.e2e.count
    assert results.in_flight == 0
    assert results.duration_s == max(request["finished_s"] for request in requests)
    assert {request["replica"] for request in requests} == {"a-0", "a-1"}
    steps = [record for record in records if record["kind"] == "step"]
    assert sum(replica.steps for replica in results.replicas) == len(steps)
    assert sum(request["output_tokens"] for request in requests) == sum(step["generated_tokens"] for step in steps)
    assert results.ttft.greatest_s == max(request["first_token_s"] - request["arrival_s"] for request in requests)


def test_equal_seeds_give_equal_bytes_and_others_do_not(simulated):
    first, again, other = simulated(), simulated(), simulated("seed: 1\n")
    assert first.log == again.log
    assert first.trace == again.trace
    assert first.run.results.ttft == again.run.results.ttft
    assert first.log.splitlines()[1:] != other.log.splitlines()[1:]


def test_what_is_not_asked_for_draws_nothing(simulated):
    """A router with a random stream, or retries, changes no arrival and no length."""
    one, other = simulated(), simulated("routing: random\ngateway: {retry: {max_retries: 0}}\n")

    def requests(ran):
        rows = [orjson.loads(line) for line in ran.log.splitlines()]
        keys = ("request_id", "arrival_s", "prompt_tokens", "output_tokens")
        return sorted(tuple(row[key] for key in keys) for row in rows if row["kind"] == "request")

    assert requests(one) == requests(other)
    assert one.log != other.log


def test_only_the_measured_time_counts(simulated):
    whole, part = simulated(), simulated("warm_up_s: 5\nmeasure_until_s: 15\n")
    arrivals = [row["arrival_s"] for row in map(orjson.loads, whole.log.splitlines()) if row["kind"] == "request"]
    results = part.run.results
    assert results.submitted == sum(5 <= at_s < 15 for at_s in arrivals)
    assert results.measured_s == 10.0
    assert part.run.timeline.whole_run().ttft.count == results.ttft.count == results.submitted
    assert part.run.counters.offered == len(arrivals)


def test_a_run_that_is_stopped_says_what_is_in_flight(simulated):
    ran = simulated("stop_at_s: 10\n", rate=20)
    results = ran.run.results
    assert ran.run.end is End.STOPPED
    assert results.duration_s == 10.0
    assert results.in_flight == results.submitted - results.e2e.count > 0
    told = [row["end_s"] for row in map(orjson.loads, ran.log.splitlines()) if row["kind"] == "step"]
    assert 9.5 < max(told) <= 10.0, "steps up to the end are told of"


def test_steps_that_advance_together_are_told_of_up_to_the_end(simulated):
    ran = simulated(
        text="""
        model: llama-3.1-8b
        replicas: [{device: l4, engine: {num_blocks: 400, max_model_len: 2048}}]
        stop_at_s: 10
        workload:
          max_requests: 1
          sources:
            - {name: u, arrivals: {kind: constant, rate_per_s: 10}, requests: {user_tokens: 9, output_tokens: 2000}}
        """
    )
    told = [row["end_s"] for row in map(orjson.loads, ran.log.splitlines()) if row["kind"] == "step"]
    assert 9.8 < max(told) <= 10.0
    assert len(told) > 100


def test_what_is_kept_over_time_adds_up_to_the_results(simulated):
    results = simulated().run.results
    windows = results.series.windows
    busy_s = sum(replica.busy_s for replica in results.replicas)
    assert sum(window.busy_s for window in windows) == pytest.approx(busy_s)
    used = sum(replica.mean_kv_used * replica.busy_s for replica in results.replicas) / busy_s
    assert sum(window.kv_held for window in windows) / sum(window.kv_blocks for window in windows) == pytest.approx(used)
    hits = sum(window.prefix_hit_tokens for window in windows) / sum(window.prefix_query_tokens for window in windows)
    assert hits == pytest.approx(results.prefix_hit_rate)
    assert sum(window.energy_j for window in windows) == pytest.approx(results.energy_j)


def test_an_overload_is_called_unstable(simulated):
    results = simulated(count=1, duration_s=25, rate=40, steps=False).run.results
    assert results.stability.is_unstable
    assert "the queue grows" in str(results.stability)


def test_what_hangs_for_ever_does_not_keep_the_run_going(simulated):
    ran = simulated("faults: [{kind: hang, at_s: 10, replica: a-0}]\n", count=1)
    assert ran.run.end is End.STALLED
    assert ran.run.results.in_flight > 0


def test_conversations_go_on_and_end(simulated):
    ran = simulated(
        text="""
        model: llama-3.1-8b
        replicas: [{device: l4, engine: {num_blocks: 400, max_model_len: 2048}}]
        workload:
          max_requests: 30
          sources:
            - name: c
              closed_loop: {clients: 3, think_s: 0.5}
              requests: {user_tokens: 50, output_tokens: 20, conversation: {turns: 4, think_s: 1}}
        """
    )
    assert ran.run.results.e2e.count == 30
    assert ran.run.end is End.ALL_ENDED
    assert ran.run.results.prefix_hit_rate > 0.3, "later turns find earlier ones cached"
    assert ran.progress[-1].until_s is None


def test_a_trace_of_the_folder_and_its_faults(simulated, tmp_path):
    text = """
    model: llama-3.1-8b
    replicas: [{device: l4, engine: {num_blocks: 400, max_model_len: 2048}}]
    workload: {sources: [{name: t, trace: {path: t.csv}}]}
    """
    (tmp_path / "t.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0,100,10\n2023-11-16 18:00:01.5,50,5\n"
    )
    results = simulated(text=text, folder=tmp_path).run.results
    assert results.e2e.count == 2
    assert 1.5 < results.duration_s < 3.0
    with (tmp_path / "t.csv").open("a") as file:
        file.write("2023-11-16 18:00:01.0,50,5\n")
    with pytest.raises(TraceFileError, match=r"t.csv line 4: arrives before the line above it"):
        simulated(text=text, folder=tmp_path)
    with pytest.raises(TraceFileError, match="cannot be read: No such file"):
        simulated(text=text, folder=tmp_path / "elsewhere")


def test_nothing_arrives(simulated):
    ran = simulated(duration_s=0.001, rate=0.001)
    assert ran.run.end is End.ALL_ENDED
    assert ran.run.results.submitted == 0
    assert ran.run.results.ttft.mean_s is None


def test_progress_only_grows_and_says_when_it_will_be_over(simulated):
    progress = simulated().progress
    assert progress
    assert all(one.until_s == 20.0 for one in progress)
    for name in ("now_s", "num_arrived", "num_ended", "wall_s"):
        told = [getattr(one, name) for one in progress]
        assert told == sorted(told), name
    assert math.isclose(progress[-1].num_ended, progress[-1].num_arrived)


def test_faults_of_a_group_are_located(simulated):
    with pytest.raises(ConfigError, match=r"replicas\[0\]: kv 'fp7' is unknown") as caught:
        simulated(text="model: llama-3.1-8b\nreplicas: [{device: l4, kv: fp7}]\n" + WORKLOAD)
    assert caught.value.param == "replicas[0].kv"
    with pytest.raises(ConfigError, match="model: no model is called 'llama-9'") as caught:
        simulated(text="model: llama-9\nreplicas: [{device: l4}]\n" + WORKLOAD)
    assert caught.value.param == "model"


WORKLOAD = """
workload:
  max_requests: 3
  sources: [{name: u, arrivals: {kind: constant, rate_per_s: 1}, requests: {user_tokens: 9, output_tokens: 2}}]
"""
