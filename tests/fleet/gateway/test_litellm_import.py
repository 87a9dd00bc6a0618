from textwrap import dedent

import pytest

from argosy.errors import ConfigFileError
from argosy.fleet.gateway.config import parse_config
from argosy.fleet.gateway.config_operations import StoreSettings
from argosy.fleet.gateway.litellm_import import import_litellm, imported
from argosy.settings.yaml_file import parse_yaml

FILE = """
model_list:
  - model_name: gpt
    litellm_params: {model: openai/gpt-4o-mini, api_key: os.environ/OPENAI_API_KEY, rpm: 100, weight: 3,
      input_cost_per_token: 1.5e-7, output_cost_per_token: 6e-7, max_parallel_requests: 20}
    model_info: {id: 7, cache_read_input_token_cost: 7.5e-8}
  - model_name: gpt
    litellm_params: {model: hosted_vllm/Qwen/Qwen2.5, api_base: http://10.0.0.1:8000/v1, api_key: sk-CANARY}
  - model_name: claude
    litellm_params: {model: anthropic/claude, api_key: sk-CANARY}
  - model_name: small
    litellm_params: {model: ollama/llama3, timeout: 30}
  - model_name: "any/*"
    litellm_params: {model: "openai/*"}
  - model_name: plain
    litellm_params: {model: gpt-4o, api_base: https://api.example/v1}
router_settings:
  routing_strategy: least-busy
  num_retries: 3
  timeout: 90
  cooldown_time: 20
  fallbacks: [{gpt: [small]}, {nobody: [gpt]}]
  context_window_fallbacks: [{gpt: [claude, plain]}]
  model_group_alias: {best: gpt, worst: {model: small, hidden: true}, none: nothing}
  redis_host: 10.0.0.2
  redis_port: 6380
litellm_settings: {drop_params: true, request_timeout: 10, default_fallbacks: [plain]}
general_settings: {master_key: os.environ/MASTER, database_url: "postgresql://u:CANARY@h/d", health_check_interval: 60,
  allow_requests_on_db_unavailable: false, background_health_checks: true}
environment_variables: {X: CANARY}
"""


def of(text: str):
    result = imported(parse_yaml(dedent(text), "litellm.yaml"))
    return parse_config(parse_yaml(result.text, "imported.yaml")), result


def test_what_has_an_equivalent_comes_over():
    config, _ = of(FILE)
    models = {model.name: model for model in config.models}
    assert list(models) == ["gpt", "small", "plain"]
    first, second = models["gpt"].backends
    assert (first.url, first.kind, first.model, first.api_key_env) == (
        "https://api.openai.com", "openai", "gpt-4o-mini", "OPENAI_API_KEY"
    )  # fmt: skip
    assert (first.weight, first.max_in_flight) == (3, 20)
    assert first.price.input_usd_per_million == pytest.approx(0.15)
    assert first.price.output_usd_per_million == pytest.approx(0.6)
    assert first.price.cached_input_usd_per_million == pytest.approx(0.075)
    assert (second.url, second.kind, second.model) == ("http://10.0.0.1:8000", "vllm", "Qwen/Qwen2.5")
    assert models["small"].backends[0].url == "http://127.0.0.1:11434"
    assert models["plain"].backends[0].model == "gpt-4o"
    assert models["gpt"].aliases == ("best",)
    assert models["small"].aliases == ("worst",)
    assert models["gpt"].routing.policy == "least_load"
    assert models["gpt"].fallbacks == ("small", "plain")
    assert set(models["gpt"].fallback_on) == {"timeout", "overload", "context_length"}
    assert models["small"].fallbacks == ("plain",)
    assert set(models["small"].fallback_on) == {"timeout", "overload"}
    assert config.resilience.retries.max_retries == 3
    assert config.resilience.timeouts.total_s == 90
    assert config.resilience.breaker.open_s == 20
    assert config.resilience.health.ready.interval_s == 60
    assert config.auth.master_key_env == "MASTER"
    assert (config.store.url, config.store.url_env) == (StoreSettings().url, None)
    assert not config.store.serve_on_store_loss
    assert config.redis.url == "redis://10.0.0.2:6380/0"


def test_what_has_none_is_noted_and_stands_in_the_text():
    _, result = of(FILE)
    notes = "\n".join(result.notes)
    for part in (
        "model_list[0].litellm_params.rpm: has no equivalent",
        "model_list[1].litellm_params.api_key: stands in the file; it was not copied: put it into the environment variable",
        "model_list[2].litellm_params: provider 'anthropic' does not speak OpenAI's protocol",
        "model_list[3].litellm_params.timeout: has no equivalent",
        "model_list[4]: 'any/*' stands for many models",
        "router_settings.fallbacks.nobody: there is no model",
        "router_settings.context_window_fallbacks.gpt: there is no model 'claude'",
        "router_settings.context_window_fallbacks.gpt: joined",
        "router_settings.model_group_alias.none: there is no model",
        "litellm_settings.drop_params: has no equivalent",
        "general_settings.database_url: its tables are LiteLLM's, so it was left out: the gateway keeps the default store",
        "environment_variables: has no equivalent",
    ):
        assert part in notes, part
    assert all(f"#   {note}\n" in result.text for note in result.notes)
    assert "background_health_checks" not in notes
    assert "request_timeout" not in notes


def test_no_secret_is_copied():
    _, result = of(FILE)
    assert "CANARY" not in result.text
    assert not any("CANARY" in note for note in result.notes)


def test_without_a_master_key_everybody_may_come_in_and_that_is_said():
    config, result = of("model_list: [{model_name: a, litellm_params: {model: openai/a}}]")
    assert config.auth.mode == "open"
    assert config.models[0].routing.policy == "weighted_random"
    assert any("lets everybody in" in note for note in result.notes)


def test_a_password_of_redis_goes_into_the_environment():
    config, result = of(
        "model_list: [{model_name: a, litellm_params: {model: openai/a}}]\n"
        "router_settings: {redis_host: h, redis_password: CANARY}\n"
    )
    assert config.redis.url_env == "REDIS_URL"
    assert "CANARY" not in result.text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models: []", "litellm.yaml:1: is no configuration of LiteLLM's proxy"),
        ("- 1", "is no configuration of LiteLLM's proxy"),
        ("model_list: 3", "no model of it can be served: model_list: is no list"),
        ("model_list: [3]", "no model of it can be served"),
        ("model_list: [{model_name: a, litellm_params: {model: bedrock/a}}]", "provider 'bedrock' does not speak"),
        ("model_list: [{model_name: a, litellm_params: {model: hosted_vllm/a}}]", "needs api_base"),
    ],
)
def test_a_file_that_gives_nothing(text, says):
    with pytest.raises(ConfigFileError) as caught:
        imported(parse_yaml(text, "litellm.yaml"))
    assert says in caught.value.message


def test_from_a_file(tmp_path):
    path = tmp_path / "litellm.yaml"
    path.write_text("model_list: [{model_name: a, litellm_params: {model: openai/a}}]\nrouter_settings: 3\n")
    result = import_litellm(path)
    assert result.text.startswith("# From litellm.yaml, a configuration of LiteLLM's proxy.")
    assert "router_settings: is no mapping and was left out" in result.notes


def test_every_strategy_of_theirs_has_a_policy():
    strategies = {
        "simple-shuffle": "weighted_random",
        "least-busy": "least_load",
        "usage-based-routing": "least_load",
        "usage-based-routing-v2": "least_load",
        "latency-based-routing": "least_latency",
        "cost-based-routing": "cost_aware",
        "unheard-of": "weighted_random",
    }
    for theirs, ours in strategies.items():
        config, result = of(
            "model_list: [{model_name: a, litellm_params: {model: openai/a}}]\n"
            f"router_settings: {{routing_strategy: {theirs}}}"
        )
        assert config.models[0].routing.policy == ours
        assert any("unheard-of" in note for note in result.notes) == (theirs == "unheard-of")
