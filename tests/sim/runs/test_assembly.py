"""Every part of a configuration does something in the run."""

import orjson
import pytest

from argosy.sim.assembly import assemble, make_blueprints


def requests(ran):
    return [row for row in map(orjson.loads, ran.log.splitlines()) if row["kind"] == "request"]


SCALED = """
autoscaler:
  cold_start_s: 5
  every_s: 1
  rules: [{kind: queue, target: 2, running_per_replica: 8}]
  limits: {min_replicas: 1, max_replicas: 4, down_window_s: 10}
"""


def test_an_autoscaler_adds_replicas_and_pays_for_them_while_they_are_there(simulated):
    ran = simulated(SCALED + "clients: {timeout_s: 100}\n", count=1, rate=12, duration_s=30)
    results = ran.run.results
    names = [replica.name for replica in results.replicas]
    assert names[:2] == ["a-0", "a+0"]
    assert ran.loaded.config.scaled_group.name == "a"
    sizes = [window.mean("replicas") for window in ran.run.timeline.windows.windows if window.samples]
    assert max(sizes) > 1.5
    added = next(replica for replica in results.replicas if replica.name == "a+0")
    assert 0.0 < added.usd < results.replicas[0].usd
    starting = [window.mean("starting") for window in ran.run.timeline.windows.windows if window.samples]
    assert max(starting) > 0.0


BURST = """
workload:
  duration_s: 100
  sources:
    - name: burst
      arrivals:
        kind: seasonal
        rate_per_s: 20
        seasons: [{kind: steps, period_s: 100, points: [[0, 1], [10, 0.02]]}]
      requests: {user_tokens: 100, output_tokens: 30}
"""


def test_replicas_that_went_away_cost_no_more(simulated, fleet_text):
    head = fleet_text(count=1).split("workload:")[0]
    ran = simulated(text=head + SCALED.lstrip() + BURST)
    first, *added = ran.run.results.replicas
    assert added
    assert first.usd == pytest.approx(ran.run.results.duration_s / 3600 * ran.assembly.blueprints["a"].usd_per_hour)
    assert all(replica.usd < 0.8 * first.usd for replica in added)
    (pool,) = ran.assembly.pools
    assert len(pool) < 1 + len(added), "some have gone"
    assert ran.run.results.usd == pytest.approx(pool.usd())


PAIR = """
model: llama-3.1-8b
replicas:
  - {name: p, role: prefill, device: h100-sxm, engine: {num_blocks: 400, max_model_len: 2048, max_num_seqs: 4}}
  - {name: d, role: decode, device: l40s, engine: {num_blocks: 800, max_model_len: 2048, max_num_seqs: 32}}
kv_transfer: {bytes_per_s: 1e9, latency_s: LATENCY}
workload:
  duration_s: 20
  sources:
    - {name: u, arrivals: {kind: poisson, rate_per_s: 4}, requests: {user_tokens: 300, output_tokens: 20}}
"""


def test_prompts_are_computed_in_one_pool_and_answers_in_the_other(simulated):
    slow, fast = (simulated(text=PAIR.replace("LATENCY", latency)) for latency in ("0.1", "0"))
    for ran in (slow, fast):
        by_name = {replica.name: replica for replica in ran.run.results.replicas}
        assert by_name["p-0"].prefill_tokens >= 300 * ran.run.results.submitted
        assert by_name["p-0"].generated_tokens == ran.run.results.submitted
        assert {row["replica"] for row in requests(ran)} == {"d-0"}
    # Transfers of one replica go one after the other, so that some wait.
    assert 0.1 < slow.run.results.ttft.mean_s - fast.run.results.ttft.mean_s < 0.2


def test_faults_find_their_pool(simulated):
    text = PAIR.replace("LATENCY", "0") + "faults: [{kind: crash, at_s: 5, replica: d-0, restart_after_s: 1}]\n"
    assert simulated(text=text).run.num_skipped_faults == 0


@pytest.mark.parametrize("policy", ["prefix_aware", "prefix_precise"])
def test_prefixes_draw_requests_to_where_they_lie(simulated, policy):
    text = """
    model: llama-3.1-8b
    replicas:
      - {name: a, count: 4, device: l4, engine: {num_blocks: 130, max_model_len: 2048, max_num_seqs: 8, block_size: 32}}
    routing: POLICY
    workload:
      duration_s: 60
      sources:
        - name: u
          arrivals: {kind: poisson, rate_per_s: 4}
          requests: {system_prompts: {count: 12, tokens: 900, zipf: 0}, user_tokens: 30, output_tokens: 4}
    """
    drawn, spread = (simulated(text=text.replace("POLICY", name)) for name in (policy, "round_robin"))
    assert drawn.run.results.prefix_hit_rate > spread.run.results.prefix_hit_rate + 0.2


def test_what_a_crash_cut_off_is_tried_again_unless_the_client_has_seen_some(simulated, fleet_text):
    fault = "faults: [{kind: crash, at_s: 8, replica: a-0, restart_after_s: 2, cold_start_s: 3}]\n"
    answers = simulated(fault, rate=6)
    assert answers.run.counters.failed > 0
    prompts = (
        fleet_text(rate=5)
        .replace("low: 20, high: 200", "low: 1800, high: 1900")
        .replace("low: 1, high: 40", "low: 1, high: 1")
    )
    ran = simulated(text=prompts + fault)
    assert ran.run.counters.retries > 0
    assert ran.run.counters.failed == 0


def test_random_crashes_come_and_depend_on_the_seed_alone(simulated):
    more = "random_crashes: {mean_between_s: 15, until_s: 20, restart_after_s: 1, cold_start_s: 1}\n"
    ran, again, other = simulated(more), simulated(more), simulated(more + "seed: 1\n")
    assert ran.run.counters.retries + ran.run.counters.failed > 0
    assert ran.log == again.log
    assert ran.log.splitlines()[1:] != other.log.splitlines()[1:]


def test_health_checks_find_what_hangs(simulated):
    fault = "faults: [{kind: hang, at_s: 4, replica: a-0, duration_s: 30}]\nclients: {timeout_s: 12}\n"
    blind = simulated(fault + "gateway: {health: {interval_s: 2, timeout_s: 1, failures: 1}}\n", rate=6)
    deep = simulated(fault + "gateway: {health: {interval_s: 2, timeout_s: 1, failures: 1, deep: true}}\n", rate=6)
    assert 0 < deep.run.counters.timed_out < blind.run.counters.timed_out / 2


def test_clients_send_again(simulated):
    fault = "faults: [{kind: hang, at_s: 4, replica: a-0, duration_s: 30}]\n"
    ran = simulated(fault + "clients: {timeout_s: 3, retry: {max_retries: 2, backoff_s: 0.1, max_backoff_s: 1}}\n", rate=4)
    assert ran.run.num_sent_again > 0
    assert ran.run.counters.offered > ran.assembly.source.num_given


def test_speculation_gives_several_tokens_a_step(simulated, fleet_text):
    plain = simulated(count=1)
    text = fleet_text(count=1).replace("device: l4", "device: l4\n    speculation: {drafts: 4, acceptance: 0.8}")
    drafting = simulated(text=text)
    assert drafting.run.results.replicas[0].steps < 0.9 * plain.run.results.replicas[0].steps
    assert drafting.run.results.tpot.mean_s < 0.6 * plain.run.results.tpot.mean_s


def test_the_service_level_and_faster_devices(simulated, fleet_text):
    strict = simulated("slo: {ttft_s: 0.1, tpot_s: 0.001}\n").run.results
    loose = simulated("slo: {ttft_s: 100, tpot_s: 1}\n").run.results
    assert strict.slo_share < 0.2
    assert loose.slo_share == 1.0
    faster = "  - {name: b, device: h100-sxm, engine: {num_blocks: 400}}\nworkload:"
    mixed = simulated(text=fleet_text(count=1).replace("workload:", faster)).run.results
    slow, fast = mixed.replicas
    assert slow.busy_s / slow.tokens > 2 * fast.busy_s / fast.tokens


def test_an_assembly_needs_no_sinks(simulated):
    loaded = simulated().loaded
    assembly = assemble(loaded.config, make_blueprints(loaded.config), loaded.folder)
    assembly.loop.run(5.0)
    assert assembly.fleet.counters.offered > 0
