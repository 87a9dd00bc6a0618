import socket

import pytest

from argosy.cli import serve_command
from argosy.cli.flags import parse_size
from argosy.cli.main import run
from argosy.cli.serve_command import how_to_talk, is_loopback
from argosy.errors import ConfigError


@pytest.fixture
def settings(monkeypatch):
    """What `serve` would run with."""
    seen = []
    monkeypatch.setattr(serve_command, "run", lambda engine_args, config: seen.append((engine_args, config)) or 0)
    return seen


def test_every_flag_arrives_where_it_belongs(settings, tmp_path):
    keys, template = tmp_path / "keys", tmp_path / "template"
    keys.write_text("k2\n\n  k3  \n")
    template.write_text("{{ messages }}")
    flags = {
        "host": "::1", "port": 1234, "served-model-name": "a", "max-body-size": "1MiB", "max-prompts": 5,
        "max-concurrent-requests": 6, "drain-timeout": 7, "timeout-keep-alive": 8, "ping-interval": 9, "max-model-len": 10,
        "max-num-seqs": 11, "max-num-batched-tokens": 120, "max-waiting": 13, "kv-cache-memory": "1GiB", "block-size": 4,
        "prefill-share": 0.25, "watermark": 0.125, "max-preemptions": 14, "scheduling-policy": "priority",
        "eviction-policy": "size", "seed": 15, "dtype": "bfloat16", "kv-cache-dtype": "float16", "device": "cuda",
        "threads": 16, "chat-template": template, "download-dir": tmp_path, "log-level": "error", "log-format": "json",
        "api-key": "k1", "api-key-file": keys,
    }  # fmt: skip
    switches = ["--no-docs", "--no-enable-prefix-caching", "--deterministic", "--offline", "--log-prompts"]
    arguments = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    assert run(["serve", "m.gguf", *arguments, *switches, "--served-model-name", "b"]) == 0
    [(engine, server)] = settings
    assert engine.model == "m.gguf"
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_waiting", "block_size", "prefill_share",
                 "watermark", "max_preemptions", "scheduling_policy", "eviction_policy", "seed", "dtype", "kv_cache_dtype",
                 "device", "threads"):  # fmt: skip
        assert getattr(engine, name) == flags[name.replace("_", "-")], name
    assert engine.kv_cache_memory_bytes == 2**30
    assert engine.chat_template == "{{ messages }}"
    assert engine.cache_dir == tmp_path
    assert (engine.enable_prefix_caching, engine.deterministic, engine.offline) == (False, True, True)
    assert (server.host, server.port, server.served_model_names) == ("::1", 1234, ("a", "b"))
    assert (server.max_body_bytes, server.max_prompts, server.max_concurrent_requests) == (2**20, 5, 6)
    assert (server.drain_timeout_s, server.keep_alive_timeout_s, server.ping_interval_s) == (7, 8, 9)
    assert (server.log_level, server.log_format, server.log_prompts, server.docs) == ("error", "json", True, False)
    assert len(server.api_key_digests) == 3


def test_blocks_instead_of_memory(settings):
    assert run(["serve", "m", "--num-gpu-blocks-override", "99"]) == 0
    assert settings[0][0].num_blocks_override == 99


def test_an_empty_key_file_does_not_open_the_door(settings, tmp_path, capsys):
    (tmp_path / "keys").write_text("\n")
    assert run(["serve", "m", "--api-key-file", str(tmp_path / "keys")]) == 2
    assert "has no key in it" in capsys.readouterr().err
    assert settings == []


def test_a_port_in_use_is_found_before_the_model_is_looked_for(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["serve", "no-such-model", "--port", str(port)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"argosy: error: cannot listen on 127.0.0.1:{port}")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "warned"),
    [(["--host", "0.0.0.0"], True), (["--host", "0.0.0.0", "--api-key", "k"], False), (["--host", "localhost"], False)],
)
def test_an_open_door_is_warned_of(capsys, flags, warned):
    assert run(["serve", "no-such-model", "--port", "0", *flags]) == 2
    assert ("argosy: warning: 0.0.0.0 can be reached by others" in capsys.readouterr().err) == warned


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.5.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("host", False),
    ],
)
def test_which_hosts_only_this_machine_reaches(host, loopback):
    assert is_loopback(host) == loopback


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1048576", 2**20),
        ("2GiB", 2**31),
        ("2gi", 2**31),
        ("500MB", 500_000_000),
        ("1.5 G", 1_500_000_000),
        ("7b", 7),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text, size_bytes):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "2Q", "-1", "GiB", "1e9", "0", "0.1", "2 i", "1,5G"])
def test_what_is_no_size(text):
    with pytest.raises(ConfigError, match="size"):
        parse_size(text)


def test_how_to_talk_names_model_and_key():
    text = how_to_talk("http://127.0.0.1:8000", "m", needs_key=False)
    assert '"model": "m"' in text
    assert "Authorization" not in text
    text = how_to_talk("http://127.0.0.1:8000", "m", needs_key=True)
    assert "Authorization: Bearer $KEY" in text
    assert "--api-key $KEY" in text
