"""The folder that fetched models live in: where it is, who may write, and whether a file in it is still the right one.

ROOT/models/FILE            a finished model; appears under this name only when complete and verified
ROOT/models/FILE.json       its stamp: checksum, size and modification time when it was verified
ROOT/downloads/FILE.part    bytes on their way, a prefix of the file; kept for a resume
ROOT/locks/NAME.lock        held by the process that fetches NAME
ROOT/hub/                   kept by huggingface_hub
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from argosy.errors import FetchError

Progress = Callable[[int, int | None, str], None]
"""Called with (bytes done, bytes in all or None if unknown, label)."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What was true of a file when its checksum was last computed.

    As long as size and modification time are the same the checksum is taken to be so too.
    """

    sha256: str
    size_bytes: int
    mtime_ns: int


def default_cache_dir() -> Path:
    """`$ARGOSY_HOME`, else `$XDG_CACHE_HOME/argosy`, else `~/.cache/argosy`."""
    if home := os.environ.get("ARGOSY_HOME"):
        return Path(home).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "argosy"
    return Path.home() / ".cache" / "argosy"


@dataclass(frozen=True, slots=True)
class ModelCache:
    """Paths under one cache root, and the operations on them that must be atomic."""

    root: Path

    def model_path(self, filename: str) -> Path:
        """Where the finished model file lies, or will lie."""
        return self.root / "models" / filename

    def download_path(self, filename: str) -> Path:
        """Where a file that is only needed until the model is assembled lies."""
        return self.root / "downloads" / filename

    @property
    def hub_dir(self) -> Path:
        """The folder given to huggingface_hub."""
        return self.root / "hub"

    @contextmanager
    def lock(self, name: str, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold the right to fetch `name`. `on_wait` is called once if another process has it, then this one waits.

        The lock is the operating system's: it is free again when its holder dies.
        """
        from filelock import FileLock, Timeout

        path = self.root / "locks" / f"{name}.lock"
        with writing_to(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                if on_wait is not None:
                    on_wait()
                lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def check_free_space(self, needed_bytes: int, what: str) -> None:
        """Raise `FetchError` if fewer than `needed_bytes` are free on the cache's file system."""
        free_bytes = shutil.disk_usage(_nearest_existing(self.root)).free
        if free_bytes < needed_bytes:
            raise no_space(self.root, needed_bytes, free_bytes, what)

    def is_intact(self, path: Path, *, size_bytes: int, sha256: str) -> bool:
        """Whether `path` holds exactly the wanted bytes.

        The size is looked at each time; the checksum is computed only if the stamp does not vouch for it, and the stamp is
        then rewritten (best effort: a read-only cache works too).
        """
        try:
            found = path.stat()
        except OSError:
            return False
        if found.st_size != size_bytes:
            return False
        if self._read_stamp(path) == Stamp(sha256, size_bytes, found.st_mtime_ns):
            return True
        if file_sha256(path) != sha256:
            return False
        with suppress(OSError):
            self._write_stamp(path, Stamp(sha256, size_bytes, found.st_mtime_ns))
        return True

    def publish(self, temporary: Path, final: Path, *, sha256: str) -> None:
        """Move a complete, verified file to its name in one step that survives a power cut, and stamp it."""
        final.parent.mkdir(parents=True, exist_ok=True)
        sync(temporary)
        os.replace(temporary, final)
        sync(final.parent)
        found = final.stat()
        self._write_stamp(final, Stamp(sha256, found.st_size, found.st_mtime_ns))

    def discard(self, path: Path) -> None:
        """Remove a file and its stamp, if there."""
        path.unlink(missing_ok=True)
        _stamp_path(path).unlink(missing_ok=True)

    def _read_stamp(self, path: Path) -> Stamp | None:
        try:
            return Stamp(**json.loads(_stamp_path(path).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _write_stamp(self, path: Path, stamp: Stamp) -> None:
        write_atomically(_stamp_path(path), json.dumps(asdict(stamp)).encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by a file with `content`; a reader sees the old or the whole new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    """Lower-case hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Have the operating system write a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def format_bytes(count: int) -> str:
    """A size as people write it, in powers of 1000: "98.4 MB"."""
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def no_space(folder: Path, needed_bytes: int, free_bytes: int, what: str) -> FetchError:
    """The error for a full disk."""
    return FetchError(
        f"not enough space for {what}: {needed_bytes} bytes ({format_bytes(needed_bytes)}) are needed in {folder}, "
        f"{free_bytes} bytes ({format_bytes(free_bytes)}) are free; make room or set ARGOSY_HOME to a folder on another disk"
    )


@contextmanager
def writing_to(folder: Path, *, what: str = "the model cache", needed_bytes: int = 4096) -> Iterator[None]:
    """Turn the operating system's refusals to write below `folder` into `FetchError`.

    `needed_bytes` is what had still to be written when the work inside began; it is named if the disk fills up. Reading
    from elsewhere does not belong inside.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free_bytes = shutil.disk_usage(_nearest_existing(folder)).free
            raise no_space(folder, needed_bytes, free_bytes, what) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise FetchError(
                f"cannot write to the model cache {folder} ({error.strerror}); set ARGOSY_HOME to a folder you may write to"
            ) from error
        raise


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _nearest_existing(path: Path) -> Path:
    return next(candidate for candidate in (path, *path.absolute().parents) if candidate.exists())
