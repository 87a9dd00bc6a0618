"""What the gateway benchmarks run: nginx as a backend that costs nothing, our gateway and its peers in front of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import httpx

from peer_process import PeerFailed, PeerServer, free_port

KEY = "sk-benchmark-0123456789abcdef"
EVENTS_PER_STREAM = 100
MODEL = "m"


def chat_answer() -> bytes:
    """A short answer as engines give it."""
    message = {"role": "assistant", "content": "The capital of France is Paris."}
    answer = {
        "id": "chatcmpl-0123456789", "object": "chat.completion", "created": 1_700_000_000, "model": MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 14, "completion_tokens": 8, "total_tokens": 22},
    }  # fmt: skip
    return json.dumps(answer).encode()


def chat_stream() -> bytes:
    """`EVENTS_PER_STREAM` events of one token each, the last with its usage, and the end mark."""
    head = {"id": "chatcmpl-0123456789", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": MODEL}
    events = [
        {**head, "choices": [{"index": 0, "delta": {"content": " token"}, "finish_reason": None}], "usage": None}
        for _ in range(EVENTS_PER_STREAM - 1)
    ]
    usage = {"prompt_tokens": 14, "completion_tokens": EVENTS_PER_STREAM - 1, "total_tokens": 13 + EVENTS_PER_STREAM}
    events.append({**head, "choices": [], "usage": usage})
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


class Nginx:
    """nginx on two ports that answer a fixed JSON and two that answer a fixed stream; ended by `close`."""

    def __init__(self, folder: Path, core: int) -> None:
        (folder / "answer").write_bytes(chat_answer())
        (folder / "stream").write_bytes(chat_stream())
        self.json_urls, self.stream_urls = ([f"http://127.0.0.1:{free_port()}" for _ in range(2)] for _ in range(2))
        servers = "".join(
            self._server(folder, url, file, kind)
            for urls, file, kind in (
                (self.json_urls, "answer", "application/json"),
                (self.stream_urls, "stream", "text/event-stream"),
            )
            for url in urls
        )
        config = f"""
            pid {folder}/nginx.pid; error_log {folder}/nginx.err; worker_processes 1; daemon off;
            events {{ worker_connections 4096; }}
            http {{
                access_log off; keepalive_requests 1000000000; keepalive_timeout 3600; tcp_nodelay on;
                client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
                uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
                open_file_cache max=16;
                {servers}
            }}
        """
        path = folder / "nginx.conf"
        path.write_text(textwrap.dedent(config))
        command = ["taskset", "-c", str(core), "nginx", "-p", str(folder), "-c", str(path), "-e", str(folder / "nginx.err")]
        self._process = subprocess.Popen(command)

    def _server(self, folder: Path, url: str, file: str, kind: str) -> str:
        # A file answers GET only; its error page for POST is the file itself.
        return f"""
            server {{
                listen {url.removeprefix("http://")};
                location = /v1/chat/completions {{ root {folder}; error_page 405 =200 /{file}; return 405; }}
                location = /{file} {{ root {folder}; types {{ }} default_type {kind}; error_page 405 =200 /{file}; }}
                location = /v1/models {{ return 200 '{{"object": "list", "data": [{{"id": "{MODEL}"}}]}}'; }}
                location / {{ return 200 '{{}}'; }}
            }}
        """

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


class Gateway(PeerServer):
    """A gateway on a port of its own, bound to one core."""

    def _answers(self) -> bool:
        headers = {"authorization": f"Bearer {KEY}"}
        try:
            return httpx.get(f"{self.url}/v1/models", headers=headers, timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False


def start_ours(folder: Path, backends: Sequence[str], core: int) -> Gateway:
    """Our gateway with keys, limits on every level, routing, a store for usage, metrics and an access log."""
    port = free_port()
    limits = {"rpm": 10**9, "tpm": 10**9, "max_parallel": 10**6, "kv_tokens": 10**9, "max_budget_usd": 1e6}
    key = {"id": "bench", "key_env": "BENCHMARK_KEY", "limits": limits}
    config = {
        "listen": {"port": port},
        "models": [
            {
                "name": MODEL,
                "routing": {"policy": "power_of_two"},
                "price": {"input_usd_per_million": 0.1, "output_usd_per_million": 0.2},
                "backends": [{"url": url} for url in backends],
            }
        ],
        "tenants": [{"id": "org", "limits": limits, "teams": [{"id": "team", "limits": limits, "keys": [key]}]}],
        "auth": {"secret_file": str(folder / f"secret-{port}")},
        "store": {"url": f"sqlite:///{folder}/gateway-{port}.db", "journal": str(folder / f"usage-{port}.ndjson")},
        "observability": {"access_log": str(folder / f"access-{port}.ndjson")},
        "resilience": {"drain": {"propagation_s": 0}},
    }
    path = folder / f"gateway-{port}.yaml"
    path.write_text(json.dumps(config))
    command = ["taskset", "-c", str(core), sys.executable, "-m", "argosy", "gateway", str(path)]
    return Gateway("argosy", command, {**os.environ, "BENCHMARK_KEY": KEY}, port, timeout_s=60)


def start_litellm(folder: Path, backends: Sequence[str], core: int, peers: Path) -> Gateway:
    """LiteLLM's proxy, one worker, with a master key; limits per key would need a database."""
    port = free_port()
    entries = [
        {"model_name": MODEL, "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"}}
        for url in backends
    ]
    config = {"model_list": entries, "general_settings": {"master_key": KEY}, "litellm_settings": {"telemetry": False}}
    path = folder / f"litellm-{port}.yaml"
    path.write_text(json.dumps(config))
    program = _program(peers, "litellm")
    command = ["taskset", "-c", str(core), program, "--config", str(path), "--port", str(port), "--host", "127.0.0.1"]
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "NO_DOCS": "True"}
    return Gateway("litellm", command, environment, port, timeout_s=180)


def start_vllm_router(folder: Path, backends: Sequence[str], core: int, peers: Path) -> Gateway:  # noqa: ARG001
    """The Rust vllm-router: routing alone; it knows no tenants, keys or limits."""
    port = free_port()
    command = ["taskset", "-c", str(core), _program(peers, "vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--policy", "power_of_two", "--prometheus-port", str(free_port()), "--worker-urls", *backends]
    return Gateway("vllm-router", [*command, "--log-level", "error"], dict(os.environ), port, timeout_s=60)


def _program(peers: Path, name: str) -> str:
    path = peers / name / "bin" / name
    if not path.exists():
        raise PeerFailed(f"{name} is not installed below {peers}: run benchmarks/peers/install_gateways.sh {peers}")
    return str(path)
