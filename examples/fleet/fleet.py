"""Two engines and a gateway on this machine: starts them, sends requests through, shows who answered, waits for Ctrl-C.

python examples/fleet/fleet.py [--model smollm2-135m] [--port 4000] [--once]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

START_S, STOP_S = 300.0, 30.0

CONFIG = """\
listen: {{port: {port}}}
models:
  - name: {model}
    aliases: [default]
    routing: prefix_aware
    backends:
      - {{name: one, url: "{urls[0]}", kind: argosy}}
      - {{name: two, url: "{urls[1]}", kind: argosy}}
tenants:
  - id: acme
    teams:
      - id: research
        keys: [{{id: ada, key_env: ADA_KEY, limits: {{rpm: 600, max_parallel: 8}}}}]
auth: {{secret_file: {folder}/secret}}
store: {{url: "sqlite:///{folder}/gateway.db", journal: {folder}/usage.ndjson}}
resilience: {{drain: {{propagation_s: 0}}}}
observability: {{access_log: {folder}/access.ndjson}}
"""


def main() -> int:
    """Run the fleet; returns the exit code."""
    parser = argparse.ArgumentParser(description="Two engines and a gateway on loopback.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--port", type=int, default=4000, help="of the gateway; 0 takes a free one")
    parser.add_argument("--once", action="store_true", help="stop after the requests instead of waiting for Ctrl-C")
    flags = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="argosy-fleet-") as folder:
        return run(flags.model, flags.port or free_port(), Path(folder), once=flags.once)
    return 0


def run(model: str, port: int, folder: Path, *, once: bool) -> int:
    """Start everything, show requests, and stop it again."""
    key = f"sk-{secrets.token_urlsafe(24)}"
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    threads = max(1, (os.cpu_count() or 2) // 2)
    config = folder / "gateway.yaml"
    config.write_text(CONFIG.format(port=port, model=model, urls=urls, folder=folder))
    with contextlib.ExitStack() as running:

        def start(name: str, *arguments: str, environment: dict[str, str] | None = None) -> Process:
            process = Process(name, folder, *arguments, environment=environment)
            running.callback(process.stop)
            return process

        memory = ("--threads", str(threads), "--kv-cache-memory", "256MiB")
        engines = [
            start(name, "serve", model, "--port", url.rpartition(":")[2], *memory)
            for name, url in zip(("one", "two"), urls, strict=True)
        ]
        print(f"engines: one {urls[0]}, two {urls[1]}; loading {model} …", flush=True)
        for engine, url in zip(engines, urls, strict=True):
            engine.wait_until_ready(f"{url}/health/ready")
        gateway = f"http://127.0.0.1:{port}"
        start("gateway", "gateway", str(config), environment={"ADA_KEY": key}).wait_until_ready(f"{gateway}/health/ready")
        print(f"gateway: {gateway}, configured by {config}\n", flush=True)
        for question in ("Name the capital of France.", "Name the capital of Italy.", "Name the capital of Spain."):
            print(f"  {question:<30}{ask(gateway, key, question)}")
        print("\nwho answered, from the access log:\n")
        for line in answered(folder / "access.ndjson", 3):
            print(f"  {line}", flush=True)
        if not once:
            print(f"\nTalk to it: argosy chat --url {gateway} --api-key {key}\nCtrl-C stops.", flush=True)
            signal.pause()
    return 0


def ask(gateway: str, key: str, question: str) -> str:
    """The answer to `question` through the gateway."""
    body = {"model": "default", "messages": [{"role": "user", "content": question}], "max_tokens": 16, "temperature": 0}
    answer = httpx.post(
        f"{gateway}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=120.0
    )
    answer.raise_for_status()
    return " ".join(answer.json()["choices"][0]["message"]["content"].split())


def answered(log: Path, number: int) -> list[str]:
    """The last lines of the access log, for people; it is written a moment after the answers."""
    until_s = time.monotonic() + 5.0
    while (lines := log.read_text().splitlines() if log.exists() else []) and len(lines) < number:
        if time.monotonic() > until_s:
            break
        time.sleep(0.05)
    events = [json.loads(line) for line in lines[-number:]]
    return [
        f"{event['backend']}  tenant {event['tenant']}  {event['status']}  "
        f"{event['input_tokens']} + {event['output_tokens']} tokens  {event['duration_s']:.2f} s"
        for event in events
    ]


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Process:
    """`argosy` with `arguments`, out of the terminal's reach, so that it is ended in order."""

    def __init__(self, name: str, folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self._name, self._log = name, folder / f"{name}.log"
        command: Sequence[str] = (sys.executable, "-m", "argosy", *arguments)
        with self._log.open("w") as out:
            self._child = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, **(environment or {})}, start_new_session=True
            )

    def wait_until_ready(self, url: str) -> None:
        """Return when `url` answers 200; exit with the end of the log if the process ends or takes too long."""
        until_s = time.monotonic() + START_S
        while self._child.poll() is None and time.monotonic() < until_s:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(url, timeout=5.0).status_code == 200:
                    return
            time.sleep(0.1)
        raise SystemExit(f"{self._name} did not start; the end of its log:\n{self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        """End it, by force if it does not end by itself."""
        self._child.terminate()
        try:
            self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        print(f"{self._name} stopped ({self._child.returncode})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
