"""Configuration files that are ready to run."""

from __future__ import annotations

from importlib import resources

from argosy.errors import ConfigError
from argosy.settings.schema import nearest

_SUFFIX = ".yaml"


def example_names() -> list[str]:
    """The names of all examples."""
    return sorted(
        one.name.removesuffix(_SUFFIX) for one in resources.files(__name__).iterdir() if one.name.endswith(_SUFFIX)
    )


def example_text(name: str) -> str:
    """The configuration of that name, as a file would hold it.

    Raises:
        ConfigError: there is none; the nearest one is named.
    """
    names = example_names()
    if name not in names:
        raise ConfigError(f"there is no example {name!r}: {nearest(name, names)}")
    return (resources.files(__name__) / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
