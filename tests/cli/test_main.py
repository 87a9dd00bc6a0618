import dataclasses
import inspect
import json
import re
import subprocess
import sys

import pytest

from argosy import __version__
from argosy.cli import main as main_module
from argosy.cli.chat_command import chat
from argosy.cli.flags import in_flags
from argosy.cli.main import run
from argosy.cli.serve_command import serve
from argosy.engine.args import EngineArgs
from argosy.errors import EngineUnavailable
from argosy.server.config import ServerConfig


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ARGOSY_HOME", str(tmp_path))
    return tmp_path


def outcome(capsys, *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["serve", "--help"], ["chat", "-h"], ["models", "--help"]])
def test_help_teaches_with_examples(capsys, arguments):
    code, out, err = outcome(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "Examples:" in out
    assert "argosy " in out


def test_help_and_completion_load_no_heavy_package():
    code = (
        "import sys; from argosy.cli.main import run; run(['serve', '--help']); "
        "heavy = {'torch', 'numpy', 'fastapi', 'starlette', 'uvicorn', 'httpx', 'tokenizers', 'gguf', 'prompt_toolkit'}; "
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "loaded: []", done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["srve"], "did you mean 'serve'"),
        (["serve"], "missing argument 'model'"),
        (["serve", "m", "--prot", "1"], "--port"),
        (["serve", "m", "--port", "x"], "--port"),
        (["serve", "m", "--port", "70000"], "port must be within"),
        (["serve", "m", "--prefill-share", "2"], "--prefill-share must be within"),
        (["serve", "m", "--kv-cache-memory", "2Q"], "'2q' is not a size"),
        (["serve", "m", "--kv-cache-memory", "1GiB", "--num-gpu-blocks-override", "8"], "not both"),
        (["serve", "m", "--num-gpu-blocks-override", "0"], "--num-gpu-blocks-override must be at least 1"),
        (["serve", "m", "--timeout-keep-alive", "0"], "--timeout-keep-alive must be at least 1"),
        (["serve", "m", "--drain-timeout", "-1"], "--drain-timeout must not be negative"),
        (
            ["serve", "m", "--max-num-batched-tokens", "4"],
            "--max-num-seqs (64) must not exceed --max-num-batched-tokens (4)",
        ),
        (["serve", "m", "--scheduling-policy", "lifo"], "fcfs or priority"),
        (["serve", "m", "--log-level", "loud"], "--log-level takes"),
        (["serve", "m", "--api-key", " "], "must not be blank"),
        (["serve", "m", "--api-key-file", "/none"], "--api-key-file: cannot read /none: no such file"),
        (["serve", "m", "--chat-template", "/none"], "--chat-template: cannot read /none"),
        (["serve", "smolm2-135m", "--port", "0"], "did you mean smollm2-135m?"),
        (["serve", "./none.gguf", "--port", "0"], "no model file or folder at ./none.gguf"),
        (["chat"], "name a model, or a server with --url"),
        (["chat", "m", "--temperature", "-1"], "temperature"),
        (["chat", "m", "--api-key", "k"], "--api-key is for --url"),
        (["chat", "--url", "http://127.0.0.1:9", "--threads", "2"], "give no engine options"),
        (["models", "fetch", "smolm2"], "did you mean smollm2-135m?"),
        (["models", "rm", "./m.gguf"], "unknown model"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, arguments, message):
    code, out, err = outcome(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err.lower()
    lines = err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("argosy: error: ")


def test_a_failure_is_one_line_and_exit_code_1(capsys):
    code, out, err = outcome(capsys, "chat", "--url", "http://127.0.0.1:9")
    assert (code, out) == (1, "")
    assert err.startswith("argosy: error: no server answers at http://127.0.0.1:9")
    assert len(err.splitlines()) == 1
    code, _, err = outcome(capsys, "chat", "smollm2-135m", "--offline")
    assert code == 1
    assert "not in the cache" in err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, ""),
        (EngineUnavailable("it\ndied"), 1, "argosy: error: it died\n"),
        (FileNotFoundError(2, "No such file or directory", "/x"), 1, "argosy: error: /x: No such file or directory\n"),
        (
            ModuleNotFoundError("no", name="torch"),
            1,
            "argosy: error: this command needs the package 'torch': pip install 'argosy[serve]'\n",
        ),
    ],
)
def test_what_commands_raise_becomes_a_line_and_a_code(capsys, monkeypatch, error, code, line):
    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(main_module, "app", fail)
    assert outcome(capsys, "serve", "m") == (code, "", line)


def test_our_own_bugs_are_not_dressed_up(monkeypatch):
    def fail(*_arguments: object, **_options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(main_module, "app", fail)
    with pytest.raises(ZeroDivisionError):
        run(["serve", "m"])


def test_version(capsys):
    assert outcome(capsys, "--version") == (0, f"argosy {__version__}\n", "")
    assert f"argosy           {__version__}\n" in outcome(capsys, "version")[1]
    assert json.loads(outcome(capsys, "version", "--json")[1])["argosy"] == __version__


def test_models_are_listed_for_people_and_for_scripts(capsys, own_cache):
    code, out, _ = outcome(capsys, "models")
    assert code == 0
    assert re.search(r"smollm2-135m .*98\.4 MB", out)
    listed = json.loads(outcome(capsys, "models", "--json")[1])
    assert [(model["name"], model["cached"]) for model in listed] == [("smollm2-135m", False), ("gemma3-270m", False)]
    assert listed[0]["path"] == str(own_cache / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")


def test_fetching_what_is_here_prints_its_path(capsys, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    assert outcome(capsys, "models", "fetch", str(path)) == (0, f"{path}: {path}\n", "")
    [found] = json.loads(outcome(capsys, "models", "fetch", str(path), "--json")[1])
    assert (found["kind"], found["size_bytes"]) == ("gguf", 4)


def test_removing_frees_and_removing_again_says_so(capsys, own_cache):
    path = own_cache / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir()
    path.write_bytes(bytes(2000))
    assert outcome(capsys, "models", "rm", "smollm2-135m") == (0, "smollm2-135m: 2.0 kB freed\n", "")
    assert not path.exists()
    assert outcome(capsys, "models", "rm", "smollm2-135m") == (0, "smollm2-135m: was not in the cache\n", "")


def test_a_reader_that_leaves_early_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m argosy models --json | head -c 1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_closed_standard_streams_are_no_error():
    done = subprocess.run(f"exec <&- >&-; {sys.executable} -m argosy models", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(f"exec 2>&-; {sys.executable} -m argosy serve ./none", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")


ENGINE_FLAGS = {
    "kv_cache_memory_bytes": "kv_cache_memory",
    "num_blocks_override": "num_gpu_blocks_override",
    "cache_dir": "download_dir",
}
SERVER_FLAGS = {
    "api_keys": "api_key",
    "served_model_names": "served_model_name",
    "max_body_bytes": "max_body_size",
    "drain_timeout_s": "drain_timeout",
    "keep_alive_timeout_s": "timeout_keep_alive",
    "ping_interval_s": "ping_interval",
}
WITHOUT_FLAG = {
    "body_timeout_s",
    "header_timeout_s",
    "inference_check_timeout_s",
    "inference_check_ttl_s",
    "inference_entropy_band",
    "api_key_digests",
}


def test_every_setting_has_a_flag_with_its_default():
    flags = inspect.signature(serve).parameters
    engine, server = EngineArgs(model="m"), ServerConfig()
    expected = {ENGINE_FLAGS.get(f.name, f.name): getattr(engine, f.name) for f in dataclasses.fields(engine)}
    expected |= {
        SERVER_FLAGS.get(f.name, f.name): getattr(server, f.name)
        for f in dataclasses.fields(server)
        if f.name not in WITHOUT_FLAG
    }
    expected |= {"api_key": None, "api_key_file": None, "served_model_name": None, "model": inspect.Parameter.empty}
    assert {name: flag.default for name, flag in flags.items()} == expected


def test_chat_has_no_flag_of_its_own_for_what_serve_has():
    common = {"model", "api_key", "seed"}
    engine_flags = set(inspect.signature(chat).parameters) & set(inspect.signature(serve).parameters) - common
    for name in engine_flags:
        assert inspect.signature(chat).parameters[name].annotation == inspect.signature(serve).parameters[name].annotation


def test_every_setting_is_called_by_a_flag_that_exists(capsys):
    _, out, _ = outcome(capsys, "serve", "--help")
    engine_names = {f.name for f in dataclasses.fields(EngineArgs)}
    server_names = {f.name for f in dataclasses.fields(ServerConfig)} - WITHOUT_FLAG - {"api_keys", "served_model_names"}
    for name in engine_names | server_names:
        if "_" in name:
            assert re.search(rf"{in_flags(name)}\b", out), name
    assert in_flags("the model's block_size_x and --block_size stay") == "the model's block_size_x and --block_size stay"
