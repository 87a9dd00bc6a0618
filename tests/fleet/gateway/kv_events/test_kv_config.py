import subprocess
import sys

import pytest
import yaml

from argosy.errors import ConfigError
from argosy.fleet.gateway.config import parse_config
from argosy.fleet.gateway.config_kv import KvEventSettings, TokenizerSettings
from argosy.fleet.gateway.service_parts import check_routing
from argosy.settings.yaml_file import read_yaml

EVENTS = {"endpoint": "tcp://10.0.0.1:5557"}


@pytest.fixture
def parse(tmp_path):
    def parse(backend=None, **model):
        backends = [{"url": "http://10.0.0.1:8000", "kind": "vllm", "kv_events": EVENTS, **(backend or {})}]
        whole = {"name": "m", "routing": "prefix_precise", "tokenizer": "smollm2-135m", "backends": backends, **model}
        whole = {name: value for name, value in whole.items() if value is not None}
        path = tmp_path / "gateway.yaml"
        path.write_text(yaml.safe_dump({"auth": {"mode": "open"}, "models": [whole]}))
        config = parse_config(read_yaml(path, if_empty=""))
        check_routing(config)
        return config.models[0]

    return parse


def test_what_is_said_and_what_is_not(parse):
    model = parse()
    assert model.tokenizer == TokenizerSettings("smollm2-135m", timeout_s=0.05, max_pending=64, max_characters=200_000)
    assert model.backends[0].kv_events == KvEventSettings("tcp://10.0.0.1:5557", None, "", 500_000)
    full = {"endpoint": "tcp://[::1]:1", "replay_endpoint": "ipc:///run/replays", "topic": "kv@", "max_blocks": 7}
    model = parse(
        {"kv_events": full}, tokenizer={"model": "smollm2-135m", "timeout_s": 0.2, "max_pending": 1, "max_characters": 9}
    )
    assert model.backends[0].kv_events == KvEventSettings(**full)
    assert model.tokenizer == TokenizerSettings("smollm2-135m", 0.2, 1, 9)


def test_a_folder_of_tokenizer_files_will_do(parse, tokenizer_folder):
    assert parse(tokenizer=str(tokenizer_folder)).tokenizer.model == str(tokenizer_folder)


@pytest.mark.parametrize(
    ("backend", "model", "says"),
    [
        ({"kv_events": {"endpoint": "10.0.0.1:5557"}}, {}, "kv_events.*endpoint must be tcp://HOST:PORT"),
        ({"kv_events": {"endpoint": "tcp://*:5557"}}, {}, "tcp://HOST:PORT"),
        ({"kv_events": {"endpoint": "tcp://h:0"}}, {}, "tcp://HOST:PORT"),
        ({"kv_events": {"endpoint": "tcp://h:70000"}}, {}, "tcp://HOST:PORT"),
        ({"kv_events": {"endpoint": "inproc://x"}}, {}, "tcp://HOST:PORT"),
        ({"kv_events": {"endpoint": "ipc://relative"}}, {}, "ipc:///PATH"),
        ({"kv_events": {"replay_endpoint": "tcp://h:1"}}, {}, "needs endpoint"),
        ({"kv_events": {**EVENTS, "replay_endpoint": "h"}}, {}, "replay_endpoint must be"),
        ({"kv_events": {**EVENTS, "replay_endpoint": EVENTS["endpoint"]}}, {}, "another address"),
        ({"kv_events": {**EVENTS, "topics": "x"}}, {}, "did you mean topic"),
        ({"kv_events": {**EVENTS, "topic": "x" * 300}}, {}, "topic"),
        ({"kv_events": {**EVENTS, "max_blocks": 0}}, {}, "max_blocks"),
        ({"kv_events": EVENTS["endpoint"]}, {}, "must be a mapping"),
        ({"kind": "sglang"}, {}, "argosy or vllm"),
        ({"kv_events": None}, {}, "kv_events of at least one backend"),
        ({}, {"tokenizer": None}, r"models\[0\]\.tokenizer"),
        ({}, {"tokenizer": "hf:org/name"}, "hub"),
        ({}, {"tokenizer": " "}, "tokenizer"),
        ({}, {"tokenizer": "smollm-135m"}, "did you mean smollm2-135m"),
        ({}, {"tokenizer": "/no/such/folder"}, "no file, folder or model"),
        ({}, {"tokenizer": {"model": "smollm2-135m", "timeout_s": 0}}, "timeout_s"),
        ({}, {"tokenizer": {"model": "smollm2-135m", "max_pending": 0}}, "max_pending"),
        ({}, {"tokenizer": {"name": "smollm2-135m"}}, "unknown key 'name'"),
        ({}, {"routing": "prefix_aware"}, "kv_events has no effect"),
        ({"kv_events": None}, {"routing": "prefix_aware"}, "tokenizer has no effect"),
    ],
)
def test_what_is_refused_is_named(parse, backend, model, says):
    with pytest.raises(ConfigError, match=says) as refused:
        parse(backend, **model)
    assert (refused.value.param or "").startswith("models[0]")


def test_a_package_that_is_missing_is_said_when_the_file_is_read(parse, monkeypatch):
    monkeypatch.setattr("argosy.fleet.gateway.kv_checks.find_spec", lambda name: None if name == "zmq" else name)
    with pytest.raises(ConfigError, match=r"zmq: pip install 'argosy\[gateway\]'"):
        parse()


def test_a_gateway_without_such_models_needs_none_of_the_packages():
    program = (
        "import sys; import argosy.fleet.gateway.run;"
        "assert not {'zmq', 'msgspec', 'tokenizers', 'jinja2', 'gguf', 'torch'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
