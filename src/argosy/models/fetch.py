"""Download one file over HTTP(S), or from a file: address, so that no interruption costs the bytes already here.

Bytes are appended to `TARGET.part`, which therefore is a prefix of the file at every moment, whenever the process dies. What
they are a prefix of (address, validator, size) is noted in `TARGET.part.json`. A resume asks for the rest with `Range` and
`If-Range` (RFC 9110, sections 13.1.5 and 14.2), so that a file that changed meanwhile comes whole. In the end the checksum
decides.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx

from argosy import __version__
from argosy.errors import FetchError
from argosy.models.cache import Progress, file_sha256, sync, write_atomically, writing_to

CHUNK_BYTES = 1 << 18
RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
TIMEOUT = httpx.Timeout(30.0, connect=15.0)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts` in a row that gain no byte end the download; between them the wait doubles from `base_delay_s`."""

    attempts: int = 5
    base_delay_s: float = 0.5
    max_delay_s: float = 20.0

    def delay_s(self, failures: int) -> float:
        """Wait after the `failures`-th failure in a row, 1-based."""
        return min(self.max_delay_s, self.base_delay_s * 2.0 ** (failures - 1))


@dataclass(frozen=True, slots=True)
class _PartNote:
    """What the bytes in the `.part` file are a prefix of; `validator` is a strong ETag, a Last-Modified date or ""."""

    source: str
    validator: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Stream:
    """An answer: bytes from `offset` on, of a file of `size_bytes` if the server tells."""

    offset: int
    size_bytes: int | None
    validator: str
    chunks: Iterator[bytes]


class _Interrupted(Exception):
    """The attempt failed in a way that another one may not. `restart`: the bytes kept are of no use."""

    def __init__(self, reason: str, *, restart: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.restart = restart
        self.retry_after_s = retry_after_s


def download(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
    retry: RetryPolicy = RetryPolicy(),
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Fetch `url` into `target`, resuming what an earlier call left; nothing is done if `target` is there and right.

    The caller holds the lock on `target`. `target` appears only when complete and, with `sha256`, verified. `progress` gets
    the file's name as its label.

    Raises:
        FetchError: the server refuses, no attempt gains a byte any more, the disk is full, or the checksum differs. Except
            in the last case the bytes so far are kept.
    """
    if target.exists() and (sha256 is None or file_sha256(target) == sha256):
        return
    with writing_to(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    part = _Part(target, source=sha256 or url)
    resumed = part.size_bytes > 0
    _fill(part, url, progress, retry, sleep)
    if sha256 is not None and resumed and file_sha256(part.path) != sha256:
        part.clear()  # the earlier bytes may be at fault: once more, from the start
        _fill(part, url, progress, retry, sleep)
    if sha256 is not None and (found := file_sha256(part.path)) != sha256:
        part.clear()
        raise FetchError(f"{target.name} from {_shown(url)} has the wrong checksum: sha256 {found}, expected {sha256}")
    with writing_to(target.parent, what=target.name):
        part.finish()


class _Part:
    """The `.part` file and its note. Opening it drops bytes that belong to another source."""

    def __init__(self, target: Path, source: str) -> None:
        self.target = target
        self.path = target.with_name(target.name + ".part")
        self._note_path = target.with_name(target.name + ".part.json")
        self.note = self._read_note() or _PartNote(source, "", None)
        if self.note.source != source or not self._note_path.exists():
            self.note = _PartNote(source, "", None)
            self.clear()

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def begin(self, stream: _Stream) -> None:
        """Make the file ready for the stream's first byte: cut to its offset, and noted as a prefix of what it sends."""
        with writing_to(self.path.parent, what=self.target.name):
            self.note = _PartNote(self.note.source, stream.validator or self.note.validator, stream.size_bytes)
            if stream.offset == 0:
                self.path.unlink(missing_ok=True)
            write_atomically(self._note_path, json.dumps(asdict(self.note)).encode())

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        self._note_path.unlink(missing_ok=True)

    def finish(self) -> None:
        sync(self.path)
        os.replace(self.path, self.target)
        sync(self.target.parent)
        self._note_path.unlink(missing_ok=True)

    def _read_note(self) -> _PartNote | None:
        try:
            return _PartNote(**json.loads(self._note_path.read_text()))
        except (OSError, ValueError, TypeError):
            return None


def _fill(part: _Part, url: str, progress: Progress | None, retry: RetryPolicy, sleep: Callable[[float], None]) -> None:
    """Attempt until the part holds the whole file."""
    failures, most_bytes = 0, part.size_bytes
    while True:
        try:
            with _open(url, part) as stream:
                part.begin(stream)
                _append(part, stream, progress)
            return
        except _Interrupted as interruption:
            reached = part.size_bytes
            # Measured against the most ever held: a server that always cuts at the same byte must not hold us for ever.
            failures = 1 if reached > most_bytes else failures + 1
            most_bytes = max(most_bytes, reached)
            if interruption.restart:
                part.clear()
            if failures >= retry.attempts:
                kept = f"; {part.size_bytes} bytes are kept and the next try goes on from there" if part.size_bytes else ""
                raise FetchError(f"cannot fetch {_shown(url)}: {interruption}{kept}") from interruption
            sleep(min(retry.max_delay_s, max(interruption.retry_after_s, retry.delay_s(failures))))


def _append(part: _Part, stream: _Stream, progress: Progress | None) -> None:
    done, size = stream.offset, stream.size_bytes
    with writing_to(part.path.parent):
        descriptor = os.open(part.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if progress is not None:
            progress(done, size, part.target.name)
        for chunk in stream.chunks:
            left = size - done if size is not None else len(chunk)
            with writing_to(part.path.parent, what=part.target.name, needed_bytes=left):
                write_all(descriptor, chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, size, part.target.name)
    finally:
        os.close(descriptor)
    if size is not None and done != size:
        raise _Interrupted(f"the connection ended at byte {done} of {size}", restart=done > size)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte to an open file; unbuffered, so that a full disk is noticed here and nowhere else."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextmanager
def _open(url: str, part: _Part) -> Iterator[_Stream]:
    """Ask for what the part lacks."""
    if urlsplit(url).scheme == "file":
        with _open_file(url, part.size_bytes) as stream:
            yield stream
        return
    offset = part.size_bytes
    headers = {"Accept-Encoding": "identity", "User-Agent": f"argosy/{__version__}"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
        if part.note.validator:
            headers["If-Range"] = part.note.validator
    try:
        with (
            httpx.Client(follow_redirects=True, timeout=TIMEOUT, verify=_tls_context()) as client,
            client.stream("GET", url, headers=headers) as response,
        ):
            yield _read_answer(response, offset, part.note, url)
    except httpx.TransportError as error:
        raise _Interrupted(f"{str(error) or type(error).__name__}") from error
    except (httpx.InvalidURL, httpx.TooManyRedirects) as error:
        raise FetchError(f"cannot fetch {_shown(url)}: {error}") from error


def _read_answer(response: httpx.Response, offset: int, note: _PartNote, url: str) -> _Stream:
    status = response.status_code
    # iter_raw() without a size passes on what arrives; with one it holds back, and loses at a cut, up to that many bytes.
    if status == 206 and offset:
        sent = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        size = int(sent[2]) if sent and sent[2] != "*" else note.size_bytes
        if sent is None or int(sent[1]) != offset or (note.size_bytes is not None and size != note.size_bytes):
            raise _Interrupted("the server resumed at another place than asked", restart=True)
        return _Stream(offset, size, _validator(response), response.iter_raw())
    if status == 200:
        length = response.headers.get("Content-Length", "")
        size = int(length) if length.isdigit() else None
        return _Stream(0, size, _validator(response), response.iter_raw())
    if status == 416 and offset:
        if response.headers.get("Content-Range") == f"bytes */{offset}":
            return _Stream(offset, offset, "", iter(()))
        raise _Interrupted("the file is shorter than what is here", restart=True)
    if status in RETRYABLE_STATUSES:
        after = response.headers.get("Retry-After", "")
        raise _Interrupted(f"the server answered {status}", retry_after_s=float(after) if after.isdigit() else 0.0)
    raise FetchError(f"cannot fetch {_shown(url)}: the server answered {status} {response.reason_phrase}".rstrip())


@contextmanager
def _open_file(url: str, offset: int) -> Iterator[_Stream]:
    path = Path(url2pathname(urlsplit(url).path))
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = offset if offset <= size else 0
            file.seek(start)
            yield _Stream(start, size, "", iter(lambda: file.read(CHUNK_BYTES), b""))
    except FileNotFoundError as error:
        raise FetchError(f"cannot fetch {path}: no such file") from error


def _validator(response: httpx.Response) -> str:
    """What If-Range may carry: a strong ETag or a date; a weak ETag does not promise equal bytes."""
    etag = str(response.headers.get("ETag", ""))
    if etag and not etag.startswith("W/"):
        return etag
    return str(response.headers.get("Last-Modified", ""))


def _tls_context() -> ssl.SSLContext:
    """Trust the bundled certificates and the operating system's too, where a company's proxy has its own."""
    context = httpx.create_ssl_context()
    context.load_default_certs()
    return context


def _shown(url: str) -> str:
    """The address without credentials or query, for messages."""
    split = urlsplit(url)
    if split.scheme == "file":
        return split.path
    return f"{split.scheme}://{split.hostname or ''}{f':{split.port}' if split.port else ''}{split.path}"
