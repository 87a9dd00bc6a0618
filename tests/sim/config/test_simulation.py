"""Every mistake is one line with file, line, path and, for a name, the nearest known one."""

from textwrap import dedent

import pytest

from argosy.errors import ConfigError
from argosy.fleet.policies.autoscaling.predictive import HighestOf, PredictedRate
from argosy.fleet.routing_settings import RoutingSettings
from argosy.sim.fleet.faults import Crash, Slowdown
from argosy.sim.results import Slo

FULL = """
seed: 3
model: llama-3.1-8b
replicas:
  - name: a
    count: 2
    device: h100-sxm
    parallelism: {tensor: 2}
    weights: fp8
    kv: fp8
    engine: {max_num_seqs: 32, block_size: 32}
    speculation: {drafts: 3, acceptance: 0.6, draft: llama-3.2-1b}
    weight: 2
    region: us
    usd_per_device_hour: 2.5
    watts_per_device: 600
routing: {policy: power_of_two, load: tokens, num_probed: 3}
autoscaler:
  cold_start_s: 60
  every_s: 5
  rules:
    - {kind: utilisation, target: 0.6}
    - {kind: queue, target: 4, running_per_replica: 32}
    - {kind: latency, target_s: 3}
    - {kind: rate, requests_per_s: 5, target: 0.8, drain_s: 60}
    - kind: predicted
      requests_per_s: 5
      lead_s: 120
      forecast: {kind: daily_schedule, steps: [[0, 1], [3600, 2]]}
    - {kind: predicted, requests_per_s: 5, lead_s: 1, forecast: {kind: seasonal_naive, season_s: 3600}}
    - {kind: predicted, requests_per_s: 5, lead_s: 1, forecast: {kind: holt_winters, season_s: 3600}}
  limits: {min_replicas: 1, max_replicas: 4, down_window_s: 120}
gateway:
  retry: {max_retries: 1}
  retry_budget_ratio: 0.3
  timeouts: {connect_s: 1, first_token_s: 9}
  health: {interval_s: 2, timeout_s: 1, deep: true}
clients: {timeout_s: 30, budget_ratio: 0.1, retry: {max_retries: 2}}
faults:
  - {kind: crash, at_s: 1, replica: a-0, restart_after_s: 1}
  - {kind: slowdown, at_s: 2, replica: a-1, factor: 3}
  - {kind: hang, at_s: 3, replica: a+0}
random_crashes: {mean_between_s: 100, until_s: 9}
slo: {ttft_s: 1, tpot_s: 0.05, e2e_s: 20}
warm_up_s: 1
measure_until_s: 8
stop_at_s: 9
outputs: {records: none, steps: true, trace_events: 7}
"""


def test_everything_a_file_may_say(read, workload):
    config = read(FULL + workload)
    (group,) = config.replicas
    assert group.replica_names == ("a-0", "a-1")
    assert (group.parallelism.plan().devices, group.weights, group.kv, group.engine.block_size) == (2, "fp8", "fp8", 32)
    assert (group.speculation.drafts, group.speculation.draft) == (3, "llama-3.2-1b")
    assert config.routing.make(block_tokens=16).picker.num_probed == 3
    policy = config.autoscaler.make().policy
    assert isinstance(policy, HighestOf)
    assert [type(one).__name__ for one in policy.policies] == [
        "TargetUtilisation",
        "TargetQueue",
        "TargetLatency",
        "TargetRate",
        "PredictedRate",
        "PredictedRate",
        "PredictedRate",
    ]
    predicted = policy.policies[4]
    assert isinstance(predicted, PredictedRate)
    assert predicted.forecaster.rate_per_s(4000.0) == 2.0
    assert config.autoscaler.make().limits.cold_start_s == 60.0
    assert config.faults[:2] == (Crash(1.0, "a-0", 1.0), Slowdown(2.0, "a-1", 3.0))
    assert config.slo == Slo(1.0, 0.05, 20.0)
    assert config.scaled_group is group
    assert (config.seed, config.warm_up_s, config.measure_until_s, config.stop_at_s) == (3, 1.0, 8.0, 9.0)
    assert config.clients.retry.max_retries == 2
    assert config.gateway.health.deep


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed: 3", "sead: 3", "fleet.yaml:2: the file has an unknown key 'sead': did you mean seed?"),
        ("    count: 2", "    cuont: 2", r"fleet.yaml:6: replicas\[0\] has an unknown key 'cuont': did you mean count?"),
        ("    count: 2", "    count: two", r"fleet.yaml:6: replicas\[0\].count must be a whole number, got 'two'"),
        ("    count: 2", "    count: -1", r"fleet.yaml:6: replicas\[0\]: count must not be negative"),
        ("    device: h100-sxm", "", r"fleet.yaml:5: replicas\[0\]: needs either device or node"),
        ("max_num_seqs: 32", "max_num_seq: 32", r"fleet.yaml:11: replicas\[0\].engine has an unknown key 'max_num_seq'"),
        ("max_num_seqs: 32", "max_num_seqs: 0", r"fleet.yaml:11: replicas\[0\].engine: max_num_seqs must be at least 1"),
        ("tensor: 2", "tensor: 0", r"fleet.yaml:8: replicas\[0\].parallelism: "),
        ("acceptance: 0.6", "acceptance: 2", r"fleet.yaml:12: replicas\[0\].speculation: acceptance must be between"),
        (
            "power_of_two",
            "power_of_to",
            "fleet.yaml:17: routing: routing policy 'power_of_to' is unknown: did you mean power_of_two",
        ),
        ("num_probed: 3", "num_prob: 3", "fleet.yaml:17: routing has an unknown key 'num_prob': did you mean num_probed?"),
        ("num_probed: 3", "num_probed: x", "fleet.yaml:17: routing.num_probed must be a whole number"),
        ("num_probed: 3", "num_probed: 0", "fleet.yaml:17: routing: num_probed must be at least 1"),
        ("load: tokens", "load: token", "fleet.yaml:17: routing: load must be one of requests, tokens, kv"),
        (
            "kind: queue",
            "kind: queues",
            r"fleet.yaml:23: autoscaler.rules\[1\].kind 'queues' is unknown: did you mean queue?",
        ),
        ("target: 0.6", "target: 6", r"fleet.yaml:22: autoscaler.rules\[0\]: target utilisation must be within"),
        (
            "down_window_s: 120",
            "down_window_s: 30",
            r"fleet.yaml:18: autoscaler: down_window_s \(30.0\) must not be shorter",
        ),
        ("max_replicas: 4", "cold_start_s: 4", "fleet.yaml:32: autoscaler: limits must not have cold_start_s"),
        ("replica: a-1", "replica: a-3", r"fleet.yaml:41: faults\[1\].replica: there is no 'a-3': did you mean a-1?"),
        ("replica: a+0", "replica: b+0", r"fleet.yaml:42: faults\[2\].replica: there is no 'b\+0'"),
        ("kind: slowdown", "kind: slow", r"fleet.yaml:41: faults\[1\].kind 'slow' is unknown: did you mean slowdown?"),
        ("warm_up_s: 1", "warm_up_s: 8", r"fleet.yaml:45: warm_up_s \(8\) must be below the 8 s"),
        (
            "records: none",
            "records: csv",
            "fleet.yaml:48: outputs: records 'csv' is unknown: known are ndjson, parquet, none",
        ),
        ("rate_per_s: 2", "rate_per_s: 0", r"fleet.yaml:53: workload.sources\[0\].arrivals: rate_per_s must be finite"),
        ("timeout_s: 30", "timeout_s: 0", "fleet.yaml:38: clients: timeout_s of clients must be above 0"),
        ("    weight: 2", "    weight: 2\n    count: 3", r"fleet.yaml:14: replicas\[0\] has the key 'count' twice"),
    ],
)
def test_mistakes(read, workload, old, new, message):
    text = FULL + workload
    assert text.count(old) == 1, "the test changes one place"
    with pytest.raises(ConfigError, match=message):
        read(text.replace(old, new))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("decode_routing: random", "fleet.yaml:11: decode_routing needs replicas of roles prefill and decode"),
        ("kv_transfer: {bytes_per_s: 1e9}", "fleet.yaml:11: kv_transfer needs replicas"),
        ("routing: [1]", "fleet.yaml:11: routing must be the name of a policy"),
        ("routing: randm", "fleet.yaml:11: routing: routing policy 'randm' is unknown: did you mean random?"),
        (
            "autoscaler: {cold_start_s: 1, group: b, rules: [{kind: utilisation}]}",
            "fleet.yaml:11: autoscaler.group 'b' is unknown",
        ),
        ("autoscaler: {cold_start_s: 1, rules: []}", "fleet.yaml:11: autoscaler: rules must not be empty"),
    ],
)
def test_what_does_not_go_together(read, base, more, message):
    with pytest.raises(ConfigError, match=message):
        read(f"{base}{more}\n")


def groups(text: str, workload: str) -> str:
    return f"model: llama-3.1-8b\nreplicas:\n{dedent(text)}\n{workload}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  - {device: l4}\n  - {device: l40s}", "two groups are called 'replica'"),
        ("  - {device: l4, role: prefill}", "replicas must hold at least one of role decode"),
        ("  - {device: l4, count: 0}", "replicas must hold at least one of role serve"),
        ("  - {device: l4, role: cook}", "role 'cook' is unknown: known are serve, prefill, decode"),
        (
            "  - {name: a, device: l4, role: prefill}\n  - {name: b, device: l4, role: decode}\n  - {name: c, device: l4}",
            "replicas must be either of role serve",
        ),
    ],
)
def test_groups_that_make_no_fleet(read, workload, text, message):
    with pytest.raises(ConfigError, match=message):
        read(groups(text, workload))


def test_no_groups_at_all(read, workload):
    with pytest.raises(ConfigError, match="replicas must hold at least one of role serve"):
        read(f"model: llama-3.1-8b\nreplicas: []\n{workload}")


def test_precise_prefixes_need_one_block_size(read, workload):
    text = "  - {name: a, device: l4}\n  - {name: b, device: l4, engine: {block_size: 32}}"
    with pytest.raises(ConfigError, match="one block_size for all replicas"):
        read(groups(text, workload) + "routing: prefix_precise\n")


def test_an_autoscaler_of_several_groups_names_its_group(read, workload):
    text = groups("  - {name: a, device: l4}\n  - {name: b, device: l4}", workload)
    scaler = "autoscaler: {cold_start_s: 1, rules: [{kind: utilisation}]}\n"
    with pytest.raises(ConfigError, match="autoscaler needs group: one of a, b"):
        read(text + scaler)
    config = read(text + scaler.replace("{cold", "{group: b, cold"))
    assert config.scaled_group.name == "b"


def test_a_policy_by_name_and_the_block_size_it_gets():
    settings = RoutingSettings.from_settings("prefix_precise", "routing")
    assert settings.make(block_tokens=32).prefix_matcher is not None
    assert RoutingSettings.from_settings("random", "routing").make(block_tokens=1).name == "random"


def test_each_policy_made_has_tables_of_its_own():
    settings = RoutingSettings.from_settings({"policy": "prefix_aware", "ttl_s": 5}, "routing")
    first, second = settings.make(block_tokens=16), settings.make(block_tokens=16)
    assert first.prefix_matcher is not second.prefix_matcher
