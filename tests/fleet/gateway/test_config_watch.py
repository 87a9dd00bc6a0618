import asyncio
import logging
import os
from dataclasses import replace

import pytest

from argosy.errors import ConfigError
from argosy.fleet.gateway.config import load_config, read_secrets
from argosy.fleet.gateway.config_operations import AuthSettings, RedisSettings, TracingSettings
from argosy.fleet.gateway.config_watch import FIXED, ConfigWatch, check_changes

TEXT = "models: [{name: %s, backends: [{url: 'http://127.0.0.1:8001', weight: %s}]}]\nauth: {mode: open}\n"


class Reloads:
    def __init__(self, path) -> None:
        self.applied, self.results, self.fault = [], [], None
        self.watch = ConfigWatch(
            path, load_config(path), self.apply, on_read=self.results.append, environment={"KEY": "k"}, interval_s=0.02
        )

    def apply(self, config, secrets) -> None:
        if self.fault is not None:
            raise self.fault
        self.applied.append((config, secrets))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "gw.yaml"
    path.write_text(TEXT % ("m", 1))
    return path


@pytest.fixture
def events(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("argosy"), "propagate", True)
    caplog.set_level(logging.INFO, "argosy.gateway.config")
    return lambda: [(record.message, record.fields) for record in caplog.records]


def test_a_new_file_is_put_in_force(path, events):
    reloads = Reloads(path)
    path.write_text(TEXT.replace("weight: %s", "weight: %s, api_key_env: KEY") % ("m", 2))
    assert reloads.watch.reload()
    ((config, secrets),) = reloads.applied
    assert config.models[0].backends[0].weight == 2
    assert secrets == {"KEY": "k"}
    assert reloads.watch.config is config
    assert reloads.results == ["applied"]
    assert events() == [("configuration in force", {"path": str(path), "changed": ["models"]})]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("models: [", "is not YAML"),
        ("", "is empty"),
        (TEXT % ("m", "heavy"), "must be a finite number"),
        (TEXT % ("m", 1) + "listen: {port: 5000}\n", "listen.port cannot change while the gateway runs; restart it"),
        (TEXT.replace("mode: open", "mode: open, master_key_env: OTHER") % ("m", 1), "auth.master_key_env cannot change"),
        (TEXT.replace("weight: %s", "weight: %s, api_key_env: MISSING") % ("m", 1), "MISSING is not set"),
    ],
)
def test_a_bad_file_changes_nothing_and_says_so_in_one_line(path, events, text, reason):
    reloads = Reloads(path)
    before = reloads.watch.config
    path.write_text(text)
    assert not reloads.watch.reload()
    assert reloads.watch.config is before
    assert reloads.applied == []
    assert reloads.results == ["refused"]
    assert reloads.watch.num_refused == 1
    ((message, fields),) = events()
    assert message == "configuration refused, the old one stays"
    assert reason in fields["reason"]
    assert "\n" not in fields["reason"]
    path.write_text(TEXT % ("m", 3))
    assert reloads.watch.reload()


def test_a_file_that_is_gone_or_cannot_be_applied(path, events):
    reloads = Reloads(path)
    path.unlink()
    assert not reloads.watch.reload()
    path.write_text(TEXT % ("m", 2))
    reloads.fault = ConfigError("no")
    assert not reloads.watch.reload()
    assert reloads.watch.config.models[0].backends[0].weight == 1


async def test_a_change_is_noticed_when_the_file_is_still(path):
    reloads = Reloads(path)
    task = asyncio.create_task(reloads.watch.run())
    await asyncio.sleep(0.1)
    assert reloads.results == []
    fresh = path.with_suffix(".new")
    fresh.write_text(TEXT % ("m", 7))
    os.replace(fresh, path)
    async with asyncio.timeout(20):
        while not reloads.results:
            await asyncio.sleep(0.01)
    assert reloads.applied[0][0].models[0].backends[0].weight == 7
    await asyncio.sleep(0.1)
    assert reloads.results == ["applied"]
    task.cancel()


def test_every_fixed_setting_is_there_and_refused(path):
    config = load_config(path)
    observability = config.observability
    others = {
        "listen": replace(config, listen=replace(config.listen, host="::1")),
        "auth": replace(config, auth=AuthSettings(mode="open", cache_ttl_s=1.0)),
        "store": replace(config, store=None),
        "redis": replace(config, redis=RedisSettings()),
        "observability.access_log": replace(config, observability=replace(observability, access_log=None)),
        "observability.access_log_lines": replace(config, observability=replace(observability, access_log_lines=1)),
        "observability.max_label_values": replace(config, observability=replace(observability, max_label_values=1)),
        "observability.tracing": replace(config, observability=replace(observability, tracing=TracingSettings("http://c"))),
    }
    assert set(others) == set(FIXED)
    for name, other in others.items():
        with pytest.raises(ConfigError, match=f"^{name}"):
            check_changes(config, other)
    check_changes(config, config)
    check_changes(config, replace(config, observability=replace(observability, log_level="debug")))
    assert read_secrets(config, {}) == {}
