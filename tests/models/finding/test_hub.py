import errno
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from argosy.errors import FetchError, ModelFileError, UnknownModel, UnsupportedModel
from argosy.models.cache import ModelCache
from argosy.models.hub import HubName, choose_files, fetch_hub_model, list_hub_models, remove_hub_model

COMMIT = "c0ffee" + "0" * 34
CHECKPOINT = {
    "config.json": b"{}",
    "tokenizer.json": b'{"t": 1}',
    "model.safetensors": bytes(range(256)) * 500,
    "README.md": b"read me",
    "pytorch_model.bin": b"pickle",
    "onnx/model.safetensors": b"another runtime's",
}


@dataclass
class FakeHub:
    """The two endpoints a download needs: a repository's list of files, and its files."""

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    status: int = 200
    requests: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    def fetched(self) -> list[str]:
        return [line.rsplit("/", 1)[-1] for line in self.requests if line.startswith("GET") and "/resolve/" in line]


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.requests.append(f"{self.command} {self.path}")
            hub.tokens.add(self.headers["Authorization"])
            path = self.path.split("?")[0].strip("/").split("/")
            repository = "/".join(path[2:4] if path[0] == "api" else path[:2])
            if hub.status != 200:
                self.answer(hub.status, {}, b"")
            elif repository in hub.gated:
                self.answer(403, {"X-Error-Code": "GatedRepo"}, b"")
            elif repository not in hub.repositories:
                self.answer(404, {"X-Error-Code": "RepoNotFound"}, b"")
            elif path[0] == "api":
                files = hub.repositories[repository]
                siblings = [{"rfilename": name, "size": len(data), "blobId": "0"} for name, data in files.items()]
                body = {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings}
                self.answer(200, {"Content-Type": "application/json"}, json.dumps(body).encode())
            else:
                assert path[2:4] == ["resolve", COMMIT]
                data = hub.repositories[repository]["/".join(path[4:])]
                etag = hashlib.sha256(data).hexdigest()
                self.answer(200, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}, data)

        def do_HEAD(self) -> None:
            self.do_GET()

        def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    return Handler


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    fake = FakeHub()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake))
    http.daemon_threads = True
    fake.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def cache(tmp_path) -> ModelCache:
    return ModelCache(tmp_path)


@pytest.mark.parametrize(
    ("name", "repository", "file"),
    [
        ("hf:org/name", "org/name", ""),
        ("hf:org/name:a.gguf", "org/name", "a.gguf"),
        ("hf:o/n:q4/a.gguf", "o/n", "q4/a.gguf"),
    ],
)
def test_hub_names(name, repository, file):
    parsed = HubName.parse(name)
    assert (parsed.repository, parsed.file, str(parsed)) == (repository, file, name)


@pytest.mark.parametrize("name", ["hf:", "hf:name", "hf:/name", "hf:org/", "hf:a/b/c", "hf:org/name:", "hf:org/name:w.bin"])
def test_malformed_hub_names(name):
    with pytest.raises(UnknownModel, match="hf:"):
        HubName.parse(name)


def test_a_checkpoint_comes_without_what_is_not_needed(hub, cache):
    hub.repositories["org/name"], seen = CHECKPOINT, []
    model = fetch_hub_model("hf:org/name", cache, endpoint=hub.url, progress=lambda *event: seen.append(event))
    assert sorted(hub.fetched()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (model.path / "model.safetensors").read_bytes() == CHECKPOINT["model.safetensors"]
    assert model.commit == COMMIT
    total = sum(len(CHECKPOINT[name]) for name in hub.fetched())
    assert model.size_bytes == total
    assert seen[-1] == (total, total, "hf:org/name")


def test_once_fetched_the_network_is_not_asked(hub, cache):
    hub.repositories["org/name"] = CHECKPOINT
    first = fetch_hub_model("hf:org/name", cache, endpoint=hub.url)
    hub.requests.clear()
    assert fetch_hub_model("hf:org/name", cache, endpoint=hub.url) == first
    assert fetch_hub_model("hf:org/name", cache, endpoint=hub.url, offline=True) == first
    assert hub.requests == []


def test_a_truncated_file_is_fetched_again(hub, cache):
    hub.repositories["org/name"] = CHECKPOINT
    path = fetch_hub_model("hf:org/name", cache, endpoint=hub.url).path / "model.safetensors"
    path.resolve().unlink()
    with pytest.raises(FetchError, match="offline"):
        fetch_hub_model("hf:org/name", cache, endpoint=hub.url, offline=True)
    fetch_hub_model("hf:org/name", cache, endpoint=hub.url)
    assert path.read_bytes() == CHECKPOINT["model.safetensors"]


def test_one_gguf_file_needs_no_name_and_a_named_one_is_taken(hub, cache):
    hub.repositories["org/one"] = {"a.gguf": b"GGUF1", "README.md": b""}
    hub.repositories["org/two"] = {"a.gguf": b"GGUF1", "sub/b.gguf": b"GGUF22"}
    assert fetch_hub_model("hf:org/one", cache, endpoint=hub.url).path.read_bytes() == b"GGUF1"
    named = fetch_hub_model("hf:org/two:sub/b.gguf", cache, endpoint=hub.url)
    assert named.path.read_bytes() == b"GGUF22"
    assert named.path.name == "b.gguf"
    with pytest.raises(UnknownModel, match=r"several GGUF files; name one as hf:org/two:FILE; .* a\.gguf, sub/b\.gguf"):
        fetch_hub_model("hf:org/two", cache, endpoint=hub.url)
    with pytest.raises(UnknownModel, match=r"has no file 'c\.gguf'; its GGUF files are a\.gguf"):
        fetch_hub_model("hf:org/two:c.gguf", cache, endpoint=hub.url)


def test_the_librarys_token_is_sent(hub, cache, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.repositories["org/one"] = {"a.gguf": b"GGUF1"}
    fetch_hub_model("hf:org/one", cache, endpoint=hub.url)
    assert hub.tokens == {"Bearer hf_secret"}


def test_what_the_hub_refuses_is_one_clear_line(hub, cache):
    hub.gated.add("org/gated")
    with pytest.raises(FetchError, match="hf:org/gated is gated"):
        fetch_hub_model("hf:org/gated", cache, endpoint=hub.url)
    with pytest.raises(UnknownModel, match="the hub has no repository 'org/none'"):
        fetch_hub_model("hf:org/none", cache, endpoint=hub.url)
    with pytest.raises(UnknownModel, match="the hub has no repository"):
        fetch_hub_model("hf:org/na me", cache, endpoint=hub.url)
    hub.status = 418
    with pytest.raises(FetchError, match="the hub answered 418"):
        fetch_hub_model("hf:org/name", cache, endpoint=hub.url)


def test_no_network_is_said_so(cache):
    with pytest.raises(FetchError, match="cannot reach the hub for hf:org/name, and it is not in the cache") as caught:
        fetch_hub_model("hf:org/name", cache, endpoint="http://127.0.0.1:9")
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_noticed_beforehand_and_under_way(hub, cache, monkeypatch):
    import shutil

    import huggingface_hub

    hub.repositories["org/name"] = CHECKPOINT
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 0, 10))
        with pytest.raises(FetchError, match=r"for model hf:org/name: 1280\d\d bytes .* 10 bytes .* free"):
            fetch_hub_model("hf:org/name", cache, endpoint=hub.url)
    assert hub.fetched() == []

    def full(*_arguments: object, **_options: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", full)
    with pytest.raises(FetchError, match="not enough space for hf:org/name"):
        fetch_hub_model("hf:org/name", cache, endpoint=hub.url)


def test_models_are_listed_and_removed_without_harming_others(hub, cache):
    hub.repositories["org/two"] = {"a.gguf": b"GGUF1", "b.gguf": b"GGUF22"}
    kept = fetch_hub_model("hf:org/two:a.gguf", cache, endpoint=hub.url)
    fetch_hub_model("hf:org/two:b.gguf", cache, endpoint=hub.url)
    assert [model.name for model in list_hub_models(cache)] == ["hf:org/two:a.gguf", "hf:org/two:b.gguf"]
    assert remove_hub_model("hf:org/two:b.gguf", cache) == 6
    assert list_hub_models(cache) == [kept]
    assert kept.path.read_bytes() == b"GGUF1"
    assert remove_hub_model("hf:org/two:a.gguf", cache) == 5
    assert remove_hub_model("hf:org/two:a.gguf", cache) == 0
    assert [path.name for path in cache.hub_dir.iterdir() if "two" in path.name] == []


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]


@pytest.mark.parametrize(
    ("available", "chosen"),
    [
        ([*SHARDS, "consolidated.safetensors", "config.json"], [*SHARDS, "config.json"]),
        (["weights.safetensors", "tokenizer.model", "a.gguf"], ["weights.safetensors", "tokenizer.model"]),
        (["sub/model.safetensors", "a.gguf"], ["a.gguf"]),
        (
            ["model.safetensors", "chat_template.jinja", "merges.txt", "x.png"],
            ["model.safetensors", "chat_template.jinja", "merges.txt"],
        ),
    ],
)
def test_which_files_make_a_model(available, chosen):
    assert sorted(choose_files(HubName("o/n", ""), available)) == sorted(chosen)


def test_what_makes_no_model():
    with pytest.raises(UnsupportedModel, match="can run code"):
        choose_files(HubName("o/n", ""), ["pytorch_model.bin", "config.json"])
    with pytest.raises(ModelFileError, match="neither safetensors nor GGUF"):
        choose_files(HubName("o/n", ""), ["README.md"])
    with pytest.raises(UnsupportedModel, match="split GGUF"):
        choose_files(HubName("o/n", "a-00001-of-00003.gguf"), ["a-00001-of-00003.gguf"])
