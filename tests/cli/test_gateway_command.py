import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml

from argosy.cli.main import run
from argosy.fleet.gateway.config import parse_config
from argosy.fleet.gateway.dashboard import alert_rules_yaml, dashboard_json
from argosy.settings.yaml_file import parse_yaml

CONFIG = """
listen: {port: 0}
models:
  - name: big
    aliases: [large]
    fallbacks: [small]
    backends:
      - {url: 'http://10.0.0.1:8000', kind: vllm, weight: 3, api_key_env: ARGOSY_TEST_BACKEND_KEY}
      - {url: 'http://10.0.0.2:8000', kind: vllm}
  - {name: small, routing: least_load, backends: [{url: 'http://10.0.0.3:8000'}]}
tenants:
  - id: acme
    limits: {max_budget_usd: 5, budget_period_s: 86400}
    teams: [{id: research, keys: [{id: ada, key_env: ARGOSY_TEST_KEY, limits: {rpm: 60, tpm: 1000}},
      {id: bot, key_env: ARGOSY_TEST_BOT_KEY, models: [big], priority: best_effort}]}]
observability: {alerts: {quota_ratio: 0.75}}
"""


@pytest.fixture
def config(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ARGOSY_TEST_KEY", "sk-CANARY-1-0123456789")
    monkeypatch.setenv("ARGOSY_TEST_BOT_KEY", "sk-CANARY-3-0123456789")
    monkeypatch.setenv("ARGOSY_TEST_BACKEND_KEY", "sk-CANARY-2")
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG)
    return path


def test_check_shows_what_the_configuration_comes_to(config, capsys):
    assert run(["gateway", str(config), "--check", "--port", "4567"]) == 0
    out = capsys.readouterr().out
    for part in (
        r"big +least_load +10\.0\.0\.1",
        r"\n  alias large ",
        r"\n  fallback small ",
        r"\nsmall +least_load ",
        r"10\.0\.0\.1:8000 +vllm +http://10\.0\.0\.1:8000 +3\n",
        r"acme +\$5 per 1 d",
        r"TENANT +TEAM +KEY +MODELS +PRIORITY +LIMITS",
        r"ada +all +standard +rpm 60, tpm 1000",
        r"bot +big +best_effort +none",
        r"listens on +127\.0\.0\.1:4567",
        r"lets in +keys of tenants",
    ):
        assert re.search(part, out), (part, out)
    assert "CANARY" not in out
    assert "not set" not in out


def test_check_for_a_script(config, capsys):
    assert run(["gateway", "run", str(config), "--check", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["models"][0]["backends"][0]["weight"] == 3
    assert summary["resilience"]["timeouts"]["connect_s"] == 2.0
    assert summary["missing_variables"] == []
    assert summary["models"][0]["routing"] == {"policy": "least_load"}
    assert "is_empty" not in summary["tenants"][0]["limits"], "no setting, but what follows from some"
    assert run(["gateway", str(config), "--json"]) == 2
    assert "--json goes with --check" in capsys.readouterr().err


def test_check_fails_where_a_start_would(config, capsys, monkeypatch):
    monkeypatch.delenv("ARGOSY_TEST_KEY")
    assert run(["gateway", str(config), "--check"]) == 2
    told = capsys.readouterr()
    assert re.search(r"not set +ARGOSY_TEST_KEY\n", told.out)
    assert told.err == (
        "argosy: error: tenants[0].teams[0].keys[0].key_env: the environment variable ARGOSY_TEST_KEY is not set\n"
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "auth: {master_key_env: ARGOSY_TEST_BACKEND_KEY}",
            "auth.master_key_env: the key in ARGOSY_TEST_BACKEND_KEY must have at least 16",
        ),
        ("store: {url: 'sqlite:////nowhere/x.db'}", "store.url: there is no folder /nowhere; make it"),
        ("observability: {access_log: /nowhere/access}", "observability.access_log: there is no folder for /nowhere/access"),
        ("models: [{name: big, routing: prefix_precise, backends: [{url: 'http://h'}]}]", "models[0].tokenizer"),
        (
            "tenants: [{id: a, teams: [{id: t, keys: [{id: b, key_env: A}, {id: c, key_env: B}]}]}]",
            "'b' and 'c' have the same",
        ),
    ],
)
def test_check_finds_what_would_keep_it_from_starting(config, capsys, monkeypatch, more, message):
    monkeypatch.setenv("A", "sk-the-same-secret")
    monkeypatch.setenv("B", "sk-the-same-secret")
    settings = {**yaml.safe_load(CONFIG), **yaml.safe_load(more)}
    config.write_text(yaml.safe_dump(settings))
    assert run(["gateway", str(config), "--check"]) == 2
    assert message in capsys.readouterr().err


def test_a_mistake_is_one_line_with_file_and_line(config, capsys):
    config.write_text(CONFIG.replace("weight: 3", "wieght: 3"))
    assert run(["gateway", str(config)]) == 2
    err = capsys.readouterr().err
    assert err == f"argosy: error: {config}:8: models[0].backends[0] has an unknown key 'wieght': did you mean weight?\n"


def test_without_arguments_there_is_help(capsys):
    assert run(["gateway"]) == 0
    assert "import-litellm" in capsys.readouterr().out


def test_a_litellm_configuration_comes_over(tmp_path, capsys):
    path = tmp_path / "litellm.yaml"
    path.write_text("model_list: [{model_name: a, litellm_params: {model: openai/a, rpm: 3}}]\n")
    assert run(["gateway", "import-litellm", str(path)]) == 0
    told = capsys.readouterr()
    assert parse_config(parse_yaml(told.out, "out")).models[0].name == "a"
    assert "argosy: warning: model_list[0].litellm_params.rpm: has no equivalent" in told.err


def test_dashboard_and_rules(config, capsys):
    assert run(["gateway", "dashboard"]) == 0
    assert capsys.readouterr().out == dashboard_json()
    assert run(["gateway", "alert-rules"]) == 0
    assert capsys.readouterr().out == alert_rules_yaml()
    assert run(["gateway", "alert-rules", str(config)]) == 0
    rules = yaml.safe_load(capsys.readouterr().out)["groups"][0]["rules"]
    assert any(rule["expr"].endswith(">= 0.75") for rule in rules)


class Backend(BaseHTTPRequestHandler):
    """Answers every request with its own port."""

    protocol_version = "HTTP/1.1"
    wbufsize = 65536

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        body = json.dumps({"object": "chat.completion", "port": self.server.server_port, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def backends() -> Iterator[list[int]]:
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Backend) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [server.server_port for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


class Gateway:
    """A gateway process. Its stdout, where the access log goes, is a pipe that is read on demand only."""

    def __init__(self, folder: Path, config: str) -> None:
        self.path = folder / "gateway.yaml"
        self.path.write_text(config)
        self._err = folder / "err"
        environment = {**os.environ, "ARGOSY_TEST_KEY": "sk-CANARY-1-0123456789"}
        with self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "argosy", "gateway", str(self.path)],
                stdout=subprocess.PIPE, stderr=err, cwd=folder, env=environment,
            )  # fmt: skip
        found = self.wait_for(r"listening host=127.0.0.1 port=(\d+)")
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{found[1]}", headers={"authorization": "Bearer sk-CANARY-1-0123456789"}
        )

    @property
    def log(self) -> str:
        return self._err.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        until_s = time.monotonic() + 60
        while (found := re.search(pattern, self.log)) is None:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < until_s, self.log
            time.sleep(0.05)
        return found

    def ask(self, model: str = "m") -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "x"}]}
        return self.http.post("/v1/chat/completions", json=body)

    def metric(self, line: str) -> float:
        found = re.search(rf"^{re.escape(line)} (\S+)$", self.http.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0


def config_for(port: int, **more: str) -> str:
    parts = {"listen": "{port: 0}", "store": "null", "resilience": "{drain: {propagation_s: 0}}", **more}
    head = "".join(f"{name}: {value}\n" for name, value in parts.items())
    return (
        f"{head}models: [{{name: m, backends: [{{url: 'http://127.0.0.1:{port}'}}]}}]\n"
        "tenants: [{id: acme, teams: [{id: t, keys: [{id: ada, key_env: ARGOSY_TEST_KEY}]}]}]\n"
    )


@pytest.fixture
def start(tmp_path) -> Iterator:
    gateways: list[Gateway] = []

    def begin(config: str) -> Gateway:
        gateways.append(Gateway(tmp_path, config))
        return gateways[-1]

    yield begin
    for gateway in gateways:
        gateway.process.kill()
        gateway.process.wait()
        gateway.process.stdout.close()
        gateway.http.close()


def test_a_process_serves_reloads_and_drains(start, backends, tmp_path):
    gateway = start(config_for(backends[0], observability="{access_log: access.ndjson}"))
    answer = gateway.ask()
    assert (answer.status_code, answer.json()["port"]) == (200, backends[0])
    assert gateway.http.get("/v1/models", headers={"authorization": ""}).status_code == 401

    gateway.path.write_text("models: [")
    gateway.process.send_signal(signal.SIGHUP)
    gateway.wait_for("configuration refused, the old one stays")
    assert gateway.ask().json()["port"] == backends[0]

    gateway.path.write_text(config_for(backends[1], observability="{access_log: access.ndjson}"))
    gateway.process.send_signal(signal.SIGHUP)
    gateway.wait_for("configuration in force")
    assert gateway.ask().json()["port"] == backends[1]
    assert gateway.metric('argosy_gateway_config_reloads_total{result="refused"}') == 1
    assert gateway.metric('argosy_gateway_config_reloads_total{result="applied"}') == 2
    assert gateway.metric('argosy_gateway_tenant_requests_total{outcome="dispatched",tenant="acme"}') == 3

    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait(30) == 0
    lines = [json.loads(line) for line in (tmp_path / "access.ndjson").read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 200, 200]
    assert lines[0]["backend"] != lines[2]["backend"]
    assert "CANARY" not in gateway.log + json.dumps(lines)


def test_a_file_that_changes_is_read_without_a_signal(start, backends):
    gateway = start(config_for(backends[0]))
    gateway.path.write_text(config_for(backends[1]))
    gateway.wait_for("configuration in force")
    assert gateway.ask().json()["port"] == backends[1]


def test_a_log_that_nobody_reads_stops_nothing(start, backends):
    gateway = start(config_for(backends[0], observability="{access_log: '-', access_log_lines: 50}"))
    # About 400 bytes a line: the pipe holds 64 KiB, so it is full long before the end.
    for _ in range(500):
        assert gateway.ask().status_code == 200
    assert gateway.metric('argosy_gateway_log_lines_dropped_total{log="access"}') > 0
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait(30) == 0


def test_a_second_signal_quits_at_once(start, backends):
    gateway = start(config_for(backends[0], resilience="{drain: {propagation_s: 60}}"))
    gateway.process.send_signal(signal.SIGTERM)
    gateway.wait_for("asked to stop")
    assert gateway.http.get("/health/ready").status_code == 503
    gateway.process.send_signal(signal.SIGINT)
    assert gateway.process.wait(30) == 128 + signal.SIGINT


def test_an_address_that_is_taken_is_one_line(start, backends, tmp_path):
    gateway = start(config_for(backends[0]))
    port = gateway.http.base_url.port
    other = tmp_path / "other.yaml"
    other.write_text(config_for(backends[0], listen=f"{{port: {port}}}"))
    command = [sys.executable, "-m", "argosy", "gateway", str(other)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "ARGOSY_TEST_KEY": "sk-0123456789abcdef"},
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "cannot listen on 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr
