"""Arguments of arithmetic, checked: a number that is no number, or out of range, is one line that names it."""

from __future__ import annotations

import math

from argosy.errors import ConfigError


def positive(**values: float) -> None:
    """Raise `ConfigError` for the first of `values` that is not finite and above zero."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name} must be finite and above 0, got {value}")


def not_negative(**values: float) -> None:
    """Raise `ConfigError` for the first of `values` that is not finite and at least zero."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{name} must be finite and not negative, got {value}")


def at_least_one(**values: int) -> None:
    """Raise `ConfigError` for the first of `values` that is not a whole number of at least one."""
    for name, value in values.items():
        if not (math.isfinite(value) and value == int(value) and value >= 1):
            raise ConfigError(f"{name} must be a whole number of at least 1, got {value}")


def fraction(**values: float) -> None:
    """Raise `ConfigError` for the first of `values` outside 0..1, ends included."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name} must be between 0 and 1, got {value}")


def utilisation(**values: float) -> None:
    """Raise `ConfigError` for the first of `values` that is not above 0 and at most 1."""
    for name, value in values.items():
        if not 0 < value <= 1:
            raise ConfigError(f"{name} must be above 0 and at most 1, got {value}")
