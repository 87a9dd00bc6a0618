"""`argosy keys` on a database, on the configuration of a gateway, and against a running one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from argosy.cli.main import run
from argosy.fleet.gateway.admin_api import Admin, create_admin_app
from argosy.fleet.gateway.key_hash import KeyHasher, load_secret
from argosy.fleet.gateway.store import Store, StoreConfig
from argosy.fleet.gateway.store_calls import StoreCalls
from argosy.fleet.gateway.tenancy_groups import GroupRecords
from argosy.fleet.gateway.tenancy_keys import KeyRecords

MASTER_KEY = "CANARY-master-0123456789"
Output = pytest.CaptureFixture[str]


@pytest.fixture
def where(tmp_path: Path) -> list[str]:
    return ["--store", f"sqlite:///{tmp_path}/gateway.db", "--secret-file", str(tmp_path / "secret")]


def ids(where: list[str], capsys: Output) -> list[str]:
    capsys.readouterr()
    assert run(["keys", "list", "--json", *where]) == 0
    return [key["key_id"] for key in json.loads(capsys.readouterr().out)["keys"]]


def info(key_id: str, where: list[str], capsys: Output) -> dict[str, object]:
    capsys.readouterr()
    assert run(["keys", "info", key_id, *where]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_life_of_a_key(where: list[str], capsys: Output) -> None:
    limits = ["--rpm", "5", "--tpm", "100", "--max-parallel", "2", "--max-budget", "1.5", "--budget-duration", "1d"]
    rights = ["--alias", "ci", "--model", "m", "--model", "n", "--priority", "critical", "--duration", "1h"]
    assert run(["keys", "create", *limits, *rights, *where]) == 0
    told = capsys.readouterr()
    key = told.out.strip()
    assert key.startswith("sk-")
    assert key not in told.err
    (key_id,) = ids(where, capsys)
    found = info(key_id, where, capsys)
    expected = {
        "key_alias": "ci",
        "models": ["m", "n"],
        "priority": "critical",
        "rpm_limit": 5,
        "tpm_limit": 100,
        "max_parallel_requests": 2,
        "max_budget": 1.5,
        "budget_duration": "1d",
    }
    assert {name: found[name] for name in expected} == expected
    assert key not in json.dumps(found)

    assert run(["keys", "rotate", key_id, "--grace", "1h", *where]) == 0
    assert capsys.readouterr().out.strip() != key
    assert len(info(key_id, where, capsys)["old_keys_valid_until"]) == 1  # type: ignore[arg-type]
    for command, state in (("block", "blocked"), ("unblock", "active"), ("expire", "expired")):
        assert run(["keys", command, key_id, *where]) == 0
        assert run(["keys", "list", *where]) == 0
        assert state in capsys.readouterr().out
    assert run(["keys", "delete", key_id, *where]) == 0
    assert ids(where, capsys) == []


def test_mistakes_are_one_line_and_exit_code_2(where: list[str], capsys: Output, tmp_path: Path) -> None:
    for arguments, message in (
        (["keys", "create", "--rpm", "-1", *where], "error: --rpm"),
        (["keys", "create", "--budget-duration", "1mo", "--max-budget", "1", *where], "error: --budget-duration must be"),
        (["keys", "create", "--duration", "soon", *where], "error: --duration must be"),
        (["keys", "create", "--priority", "high", *where], "error: --priority"),
        (["keys", "create", "--model", "a b", *where], "error: --model"),
        (["keys", "expire", "key_none", "--in", "soon", *where], "error: --in must be"),
        (["keys", "rotate", "key_none", "--grace", "soon", *where], "error: --grace must be"),
        (["keys", "list", "--size", "0", *where], "error: page must be at least 1 and size from 1"),
        (["keys", "create", "--team", "none", *where], "there is no team"),
        (["keys", "info", "key_none", *where], "there is no key"),
        (["keys", "list"], "--config FILE"),
        (["keys", "list", *where[:2]], "go together"),
        (["keys", "list", "--url", "http://127.0.0.1:1", *where], "name one place only"),
        (["keys", "list", "--url", "localhost:4000"], "--url must be http://HOST:PORT"),
        (["keys", "list", "--store", "mysql://x/y", *where[2:]], "sqlite"),
    ):
        assert run(arguments) == 2, arguments
        told = capsys.readouterr().err
        assert message in told
        assert told.count("\n") == 1


def test_the_configuration_of_a_gateway_says_where(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(
        f"""
models: [{{name: m, backends: [{{url: "http://127.0.0.1:1"}}]}}]
auth: {{secret_file: {tmp_path}/secret}}
store: {{url_env: STORE_URL}}
"""
    )
    assert run(["keys", "list", "--config", str(config)]) == 2
    assert "STORE_URL is not set" in capsys.readouterr().err
    monkeypatch.setenv("STORE_URL", f"sqlite:///{tmp_path}/there.db")
    assert run(["keys", "create", "--config", str(config)]) == 0
    assert len(ids(["--config", str(config)], capsys)) == 1
    assert (tmp_path / "there.db").exists()


def test_models_are_those_of_the_configuration(tmp_path: Path, capsys: Output) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(
        f"""
models: [{{name: small, aliases: [tiny], backends: [{{url: "http://127.0.0.1:1"}}]}}]
auth: {{secret_file: {tmp_path}/secret}}
store: {{url: "sqlite:///{tmp_path}/there.db"}}
"""
    )
    where = ["--config", str(config)]
    assert run(["keys", "create", "--model", "small", "--model", "nope", *where]) == 2
    assert "gateway.yaml has no model 'nope'; it has small, tiny\n" in capsys.readouterr().err
    assert run(["keys", "create", "--model", "smal", *where]) == 2
    assert "did you mean 'small'?" in capsys.readouterr().err
    assert ids(where, capsys) == []
    assert run(["keys", "create", "--model", "small", "--model", "tiny", *where]) == 0


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[str]:
    """The URL of a running admin API."""
    hasher = KeyHasher(load_secret(tmp_path / "secret"))
    store = Store(StoreConfig(f"sqlite:///{tmp_path}/gateway.db"))
    store.open(hasher.fingerprint())
    started = threading.Event()

    async def serve_until_told(scope: object, receive: object, send: object) -> None:
        await app(scope, receive, send)  # type: ignore[arg-type]

    class Server(uvicorn.Server):
        async def startup(self, sockets: object = None) -> None:
            nonlocal app
            calls = StoreCalls(store)
            app = create_admin_app(Admin(calls, KeyRecords(store, hasher), GroupRecords(store), hasher, MASTER_KEY))
            await super().startup(sockets)  # type: ignore[arg-type]
            started.set()

    app: object = None
    server = Server(uvicorn.Config(serve_until_told, port=0, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    assert started.wait(20.0)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(20.0)
    store.close()


def test_a_running_gateway(gateway: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    where = ["--url", gateway]
    assert run(["keys", "list", *where]) == 2
    assert "ARGOSY_MASTER_KEY is not set" in capsys.readouterr().err
    monkeypatch.setenv("ARGOSY_MASTER_KEY", MASTER_KEY)
    assert run(["keys", "create", "--json", *where]) == 0
    made = json.loads(capsys.readouterr().out)
    assert ids(where, capsys) == [made["key_id"]]
    monkeypatch.setenv("OTHER", "wrong-CANARY-0123456789")
    assert run(["keys", "list", "--master-key-env", "OTHER", *where]) == 1
    told = capsys.readouterr().err
    assert "not the master key" in told
    assert run(["keys", "list", "--url", f"{gateway}/elsewhere"]) == 1
    assert "auth.master_key_env" in capsys.readouterr().err
    assert "CANARY" not in told


def test_a_gateway_that_is_not_there(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARGOSY_MASTER_KEY", MASTER_KEY)
    assert run(["keys", "list", "--url", "http://127.0.0.1:1"]) == 1
    assert "no gateway answers at http://127.0.0.1:1: " in capsys.readouterr().err
