"""Where Numba keeps what it compiles of this package.

Numba compiles a cached function again when its own file has changed, but not when a function or intrinsic that it calls from
another file has. So the folder's name is a digest of the whole package: another version has another folder.

    ROOT/numba/DIGEST/…        ROOT is argosy's cache folder
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from numba import config

from argosy.models.cache import default_cache_dir

UNUSED_DAYS = 30
"""Folders of other versions are removed when they have not been used for so long."""


def place_numba_cache(package_dir: Path, root: Path | None = None) -> Path:
    """Point Numba's cache at the folder of this version of `package_dir`, and return it.

    Must come before the first function is decorated. Concerns every function that the process decorates later. If the
    folder cannot be written, a temporary one is used: code runs, but is compiled at every start.
    """
    parent = (default_cache_dir() if root is None else root) / "numba"
    folder = parent / package_digest(package_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        _remove_unused(parent)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="argosy-numba-"))
    config.CACHE_DIR = str(folder)
    return folder


def package_digest(package_dir: Path) -> str:
    """Hex digest of the names and contents of all Python files under `package_dir`."""
    digest = hashlib.sha256()
    for file in sorted(package_dir.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(package_dir).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _remove_unused(parent: Path) -> None:
    oldest_s = time.time() - UNUSED_DAYS * 24 * 3600
    for folder in parent.iterdir():
        if folder.stat().st_mtime < oldest_s:
            shutil.rmtree(folder, ignore_errors=True)
