import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import get_args, get_type_hints

import pytest

from argosy.errors import ConfigError, ConfigFileError
from argosy.fleet.gateway.config import GatewayConfig, load_config, parse_config, read_secrets
from argosy.fleet.gateway.config_operations import ProbeSettings
from argosy.fleet.policies.breaker import BreakerConfig
from argosy.fleet.policies.health_state import ProbeKind
from argosy.fleet.routing_settings import RoutingSettings
from argosy.settings.yaml_file import parse_yaml

MINIMAL = "models: [{name: m, backends: [{url: 'http://127.0.0.1:8001'}]}]\nauth: {mode: open}\n"
FULL = """
listen: {host: 0.0.0.0, port: 4001, max_connections: 5, max_body_bytes: 1000, max_header_bytes: 2000,
  header_timeout_s: 1, body_timeout_s: 2, keep_alive_timeout_s: 3, write_timeout_s: 4}
auth: {mode: keys, master_key_env: MASTER, secret_file: s, cache_entries: 7, cache_ttl_s: 8}
models:
  - name: big
    aliases: [large, default]
    split: conversation
    routing: {policy: power_of_two, load: tokens}
    fallbacks: [small]
    fallback_on: [timeout]
    rules:
      - {model: small, max_prompt_tokens: 10, tiers: [free], header: {name: x-fast, value: "1"}, keywords: [short]}
    degradation: {shorter_context_above: 0.8, max_output_tokens: 64, no_speculation_above: 0.85,
      smaller_model_above: 0.9, smaller_model: small, hysteresis: 0.1}
    price: {input_usd_per_million: 1, output_usd_per_million: 2, cached_input_usd_per_million: 0.5}
    backends:
      - {url: https://one.example/v1, kind: vllm, name: one, model: org/big, weight: 3, api_key_env: ONE, region: eu,
         max_model_len: 4096, max_in_flight: 9, kv_capacity_tokens: 100, usd_per_hour: 2.5,
         price: {input_usd_per_million: 3}}
      - {url: 'http://[::1]:8001/llm/', kind: argosy}
  - {name: small, backends: [{url: 'http://127.0.0.1:8002', kind: llama_cpp}]}
tenants:
  - id: acme
    weight: 2
    limits: {max_budget_usd: 10, budget_period_s: 86400}
    teams:
      - id: research
        limits: {tpm: 1000, kv_tokens: 99, soft: true}
        keys:
          - {id: ada, key_env: ADA, models: [large], priority: critical, tier: gold, limits: {rpm: 5, max_parallel: 2,
             max_input_tokens: 100, max_output_tokens: 50}}
queue:
  critical: {max_requests: 1, max_bytes: 2, ttl_s: 3}
  standard: {max_requests: 4, max_bytes: 5, ttl_s: 6}
  best_effort: {max_requests: 7, max_bytes: 8, ttl_s: 0}
  queue_threshold: 2
  kv_threshold: 0.7
  max_in_flight: 11
resilience:
  timeouts: {connect_s: 1, first_byte_s: 2, idle_s: 3, total_s: 4}
  retries: {max_retries: 5, backoff_s: 0.5, max_backoff_s: 6, budget_ratio: 0.2, budget_credits: 3}
  breaker: {error_fraction: 0.4, min_requests: 6, window_s: 7, open_s: 8}
  health: {live: {interval_s: 4, timeout_s: 3, failures: 2}, ready: {interval_s: 3, timeout_s: 2, failures: 1}, deep: null,
    loading_timeout_s: 9, metrics_interval_s: 0.5}
  drain: {propagation_s: 1, timeout_s: 2}
  bulkhead: {connections_per_backend: 3, tenant_share: 0.5}
store: {url: 'postgresql+psycopg://u@h/d', url_env: DB, timeout_s: 1, serve_on_store_loss: false, grace_s: 2, journal: j}
redis: {url: 'redis://h:1/0', url_env: REDIS, timeout_s: 0.1, on_loss: closed, replicas: 3, prefix: p}
observability:
  log_level: debug
  log_format: json
  access_log: access.ndjson
  access_log_lines: 10
  max_label_values: 20
  tracing: {endpoint: 'http://c:4318/v1/traces', service_name: s, sample_ratio: 0.5, headers_env: OTEL}
  alerts: {latency_target_s: 2, latency_factor: 1.5, quota_ratio: 0.8, fair_share_factor: 3, hold_s: 60, window_s: 30,
    max_subjects: 5}
"""


def config_of(text: str) -> GatewayConfig:
    return parse_config(parse_yaml(dedent(text), "gw.yaml"))


def refusal(text: str) -> str:
    with pytest.raises(ConfigFileError) as caught:
        config_of(text)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_few_lines_are_enough():
    config = config_of(MINIMAL)
    assert config.listen.port == 4000
    assert config.models[0].backends[0].name == "127.0.0.1:8001"
    assert config.store is not None
    assert config.redis is None


def test_every_setting_arrives():
    config = config_of(FULL)
    big = config.models[0]
    assert config.model_of["large"] is big
    assert config.model_of["default"] is big
    assert [one.url for one in big.backends] == ["https://one.example", "http://[::1]:8001/llm"]
    assert [one.name for one in big.backends] == ["one", "[::1]:8001/llm"]
    assert big.backends[0].price.input_usd_per_million == 3
    assert big.routing.policy == "power_of_two"
    assert big.rules[0].header.name == "x-fast"
    assert big.degradation.smaller_model == "small"
    assert [(org, team, key.id) for org, team, key in config.file_keys()] == [("acme", "research", "ada")]
    assert config.tenants[0].teams[0].limits.soft
    assert config.tenants[0].limits.max_budget_usd == 10
    assert config.resilience.retries.policy().max_retries == 5
    assert config.resilience.breaker.error_fraction == 0.4
    assert set(config.resilience.health.config().checks) == {ProbeKind.LIVE, ProbeKind.READY}
    assert config.resilience.health.config().loading_timeout_s == 9
    assert config.queue.best_effort.ttl_s == 0
    assert config.redis.on_loss == "closed"
    assert config.observability.alerts.quota_ratio == 0.8


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kv_threshold", "kv_treshold", "gw.yaml:38: queue has an unknown key 'kv_treshold': did you mean kv_threshold?"),
        ("kind: vllm", "kind: vlm", "models[0].backends[0]: kind 'vlm' is unknown: did you mean vllm?"),
        ("weight: 3", "weight: -1", "models[0].backends[0]: weight must be finite and not negative"),
        ("https://one.example/v1", "ftp://one.example", "models[0].backends[0]: url must be http://HOST"),
        ("https://one.example/v1", "https://u:CANARY@one.example", "models[0].backends[0]: url must hold no credentials"),
        ("https://one.example/v1", "http://one.example:99999", "url must be http://HOST"),
        ("api_key_env: ONE", "api_key_env: sk-CANARY", "api_key_env takes the name of an environment variable"),
        ("key_env: ADA", "key_env: sk-CANARY", "key_env takes the name of an environment variable"),
        ("fallbacks: [small]", "fallbacks: [smal]", "models[0].fallbacks[0]: there is no model 'smal': did you mean small?"),
        ("fallbacks: [small]", "fallbacks: [large]", "models[0].fallbacks[0]: 'large' is this model itself"),
        ("{model: small, max", "{model: tiny, max", "models[0].rules[0].model: there is no model 'tiny'"),
        ("smaller_model: small", "smaller_model: none", "models[0].degradation.smaller_model: there is no model"),
        ("fallback_on: [timeout]", "fallback_on: [never]", "fallback_on 'never' is unknown"),
        ("aliases: [large, default]", "aliases: [large, small]", "models[1].name: 'small' is taken by models[0].aliases[1]"),
        ("policy: power_of_two", "policy: power_of_too", "models[0].routing: routing policy 'power_of_too' is unknown"),
        ("load: tokens", "lod: tokens", "models[0].routing has an unknown key 'lod'"),
        ("models: [large]", "models: [lage]", "tenants[0].teams[0].keys[0].models: there is no model 'lage'"),
        ("priority: critical", "priority: urgent", "priority 'urgent' is unknown"),
        ("id: research", "id: re search", "id must be letters"),
        ("rpm: 5", "rpm: -5", "rpm must not be negative"),
        ("rpm: 5", "rpm: five", "rpm must be a whole number"),
        ("port: 4001", "port: 70000", "listen: port must be within"),
        ("max_connections: 5", "max_connections: 0", "max_connections must be a whole number of at least 1"),
        ("on_loss: closed", "on_loss: close", "redis: on_loss 'close' is unknown: did you mean closed?"),
        ("'redis://h:1/0'", "'redis://:CANARY@h:1/0'", "redis: url must hold no password"),
        ("'postgresql+psycopg://u@h/d'", "'mysql://h/d'", "store: url must begin with sqlite://"),
        ("sample_ratio: 0.5", "sample_ratio: 2", "observability.tracing: sample_ratio must be between 0 and 1"),
        ("http://c:4318/v1/traces", "grpc://c:4317", "observability.tracing: endpoint must begin with http"),
        ("quota_ratio: 0.8", "quota_ratio: 0", "observability.alerts: quota_ratio must be above 0"),
        ("log_level: debug", "log_level: loud", "observability: log_level 'loud' is unknown"),
        ("kv_threshold: 0.7", "kv_threshold: 1.7", "queue: kv_threshold must be above 0 and at most 1"),
        ("tenant_share: 0.5", "tenant_share: 0", "tenant_share must be above 0"),
        ("interval_s: 4, timeout_s: 3", "interval_s: 2, timeout_s: 3", "health.live: timeout_s (3) must not be above"),
        ("budget_ratio: 0.2", "budget_ratio: 1.2", "budget_ratio must be between 0 and 1"),
        ("connect_s: 1", "connect_s: 0", "resilience.timeouts: connect_s must be finite and above 0"),
        ("error_fraction: 0.4", "error_fraction: 4", "resilience.breaker: error_fraction"),
        ("max_prompt_tokens: 10", "min_prompt_tokens: 11, max_prompt_tokens: 10", "min_prompt_tokens (11) must not"),
        ("hysteresis: 0.1", "hysteresis: 0.85", "shorter_context_above must be above hysteresis"),
        ("smaller_model_above: 0.9, ", "", "smaller_model_above and smaller_model are given together"),
        ("id: acme", "id: ''", "id must be letters"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_path(old, new, says):
    assert old in FULL
    message = refusal(FULL.replace(old, new, 1))
    assert says in message
    assert "CANARY" not in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models: []\nauth: {mode: open}", "models must hold at least one model"),
        ("models: [{name: m, backends: []}]\nauth: {mode: open}", "backends must name at least one backend"),
        ("models: [{name: 'a b', backends: [{url: 'http://h'}]}]", "must be 1 to 200 characters without blanks"),
        ("models: [{name: m, backends: [{url: 'http://h'}], rules: [{model: m}]}]", "a rule needs a condition"),
        (MINIMAL.replace("8001'}", "8001'}, {url: 'http://127.0.0.1:8001/v1'}"), "'127.0.0.1:8001' is there already"),
        (MINIMAL.replace("open", "keys") + "store: null", "no request could pass"),
        (MINIMAL + "tenants: [{id: a}]", 'tenants have no effect with auth.mode "open"'),
        ("listen: {port: 1}", "the file needs models"),
        ("- 1", "the file must be a mapping"),
    ],
)
def test_what_contradicts_itself_is_refused(text, says):
    assert says in refusal(text)


def test_an_empty_file_says_where_to_look(tmp_path):
    path = tmp_path / "gw.yaml"
    path.write_text("# nothing\n")
    with pytest.raises(ConfigFileError, match=r"is empty; docs/gateway\.md shows one"):
        load_config(path)


def test_ids_and_keys_are_used_once():
    keys = "models: [{name: m, backends: [{url: 'http://h'}]}]\ntenants: [{id: a, teams: [{id: t, keys: [%s]}]}]"
    assert "the key 'k' is used by" in refusal(keys % "{id: k, key_env: A}, {id: k, key_env: B}")
    assert "variable 'A' is used by" in refusal(keys % "{id: k, key_env: A}, {id: l, key_env: A}")


def test_secrets_come_from_the_environment():
    config = config_of(FULL)
    names = ("MASTER", "ONE", "ADA", "DB", "REDIS", "OTEL")
    environment = {name: f" the-long-secret-{name}\n" for name in names}
    assert read_secrets(config, environment) == {name: f"the-long-secret-{name}" for name in names}
    for name in names:
        with pytest.raises(ConfigError, match=f"_env: the environment variable {name} is not set"):
            read_secrets(config, {**environment, name: " "})
    with pytest.raises(ConfigError, match=r"auth\.master_key_env: the key in MASTER must have at least 16 characters"):
        read_secrets(config, {**environment, "MASTER": "x" * 15})
    for key in ("abc", "x" * 15, "sk a b and so forth", "sk\ta-b-and-so-forth", "sk-ä-0123456789abcdef"):
        with pytest.raises(ConfigError, match=r"key_env: the key in ADA must have at least 16 .* no spaces") as refused:
            read_secrets(config, {**environment, "ADA": key})
        assert key not in refused.value.message


def test_reading_a_configuration_needs_no_engine():
    code = (
        "import sys; import argosy.fleet.gateway.run; "
        "assert not {'torch', 'numba', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def settings_of(cls: type, seen: set[type]) -> Iterator[str]:
    """Names of every setting below `cls`."""
    seen.add(cls)
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        yield field.name
        for part in (hints[field.name], *get_args(hints[field.name])):
            if dataclasses.is_dataclass(part) and part not in seen:
                yield from settings_of(part, seen)


def test_the_page_on_the_gateway_names_every_setting():
    pages = [Path(__file__).parents[3] / "docs" / name for name in ("gateway.md", "gateway-resilience.md")]
    text = "".join(page.read_text() for page in pages)
    elsewhere = {field.name for cls in (BreakerConfig, RoutingSettings, ProbeSettings) for field in dataclasses.fields(cls)}
    missing = {name for name in set(settings_of(GatewayConfig, set())) - elsewhere if f"`{name}`" not in text}
    assert missing <= {"live", "ready", "deep", "loading_timeout_s"}, missing
