"""A file server on loopback that can be told to misbehave, and tiny wheels to serve from it."""

from __future__ import annotations

import hashlib
import io
import random
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from argosy.models.catalogue import KnownModel, WheelPart
from argosy.models.package_index import WheelLocation


@dataclass
class FileServer:
    """Serves `files`. `statuses` answers the next requests; `cuts` ends the next bodies after as many bytes."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    content_types: dict[str, str] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    ranges_work: bool = True
    chunk_delay_s: float = 0.0
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    if_ranges: list[str | None] = field(default_factory=list)
    body_bytes_sent: int = 0

    def add(self, path: str, content: bytes, content_type: str = "application/octet-stream") -> str:
        self.files[path] = content
        self.content_types[path] = content_type
        self.etags[path] = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        return self.url + path

    def gets(self, path: str) -> list[str | None]:
        """The Range header of each GET of `path`."""
        return [asked for got, asked in self.requests if got == path]


def _handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            server.requests.append((path, self.headers["Range"]))
            server.if_ranges.append(self.headers["If-Range"])
            status = server.statuses.pop(0) if server.statuses else 200
            if status != 200 or path not in server.files:
                self.answer(status if status != 200 else 404, {}, b"")
                return
            content = server.files[path]
            headers = {"Content-Type": server.content_types[path]}
            if etag := server.etags[path]:
                headers["ETag"] = etag
            asked = self.headers["Range"] if server.ranges_work else None
            if asked and self.headers["If-Range"] in (None, etag):
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                if start >= len(content):
                    self.answer(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
                    return
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
                self.answer(206, headers, content[start:])
                return
            self.answer(200, headers, content)

        def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            cut = server.cuts.pop(0) if server.cuts and status < 300 else len(body)
            try:
                for at in range(0, min(cut, len(body)), 1 << 16):
                    chunk = body[at : min(at + (1 << 16), cut)]
                    self.wfile.write(chunk)
                    server.body_bytes_sent += len(chunk)
                    time.sleep(server.chunk_delay_s)
            except (BrokenPipeError, ConnectionResetError):
                cut = -1
            if cut < len(body):
                self.close_connection = True

        def log_message(self, *_arguments: object) -> None:
            pass

    return Handler


@pytest.fixture
def file_server() -> Iterator[FileServer]:
    server = FileServer()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    http.shutdown()
    http.server_close()
    thread.join()


def _wheel(distribution: str, version: str, members: dict[str, bytes]) -> bytes:
    folder = f"{distribution.replace('-', '_')}-{version}.dist-info"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        archive.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{folder}/RECORD", "")
    return content.getvalue()


@pytest.fixture
def make_wheel() -> Callable[[str, str, dict[str, bytes]], bytes]:
    return _wheel


@dataclass
class TinyModel:
    """A catalogue entry of two parts, and what the index serves for it."""

    known: KnownModel
    content: bytes
    wheels: dict[str, bytes]

    def serve_from(self, server: FileServer) -> StaticSource:
        source = StaticSource({})
        for distribution, wheel in self.wheels.items():
            url = server.add(f"/files/{distribution}.whl", wheel)
            source.locations[distribution] = WheelLocation(url, hashlib.sha256(wheel).hexdigest())
        return source


@dataclass
class StaticSource:
    """A wheel source that knows its answers and has no second way of fetching."""

    locations: dict[str, WheelLocation]
    located: list[str] = field(default_factory=list)
    fallback: bytes | None = None

    def locate(self, part: WheelPart) -> WheelLocation:
        self.located.append(part.distribution)
        return self.locations[part.distribution]

    def download(self, part: WheelPart, folder: Path) -> Path:
        from argosy.errors import FetchError

        if self.fallback is None:
            raise FetchError("no other way")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "got.whl").write_bytes(self.fallback)
        return folder / "got.whl"


@pytest.fixture
def tiny_model() -> TinyModel:
    content = b"GGUF" + random.Random(5).randbytes(400_000)
    pieces = {"tiny-part1": content[:150_000], "tiny-part2": content[150_000:]}
    wheels = {name: _wheel(name, "1.0", {f"{name[-5:]}/data.bin": piece}) for name, piece in pieces.items()}
    known = KnownModel(
        name="tiny-lm",
        description="random bytes",
        licence="none",
        filename="tiny.gguf",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        download_bytes=sum(map(len, wheels.values())),
        parts=tuple(WheelPart(name, "1.0", f"{name[-5:]}/data.bin") for name in wheels),
    )
    return TinyModel(known, content, wheels)
