"""What people write on the command line of `argosy plan`: counts, times, rates, targets, devices with prices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from argosy.errors import ConfigError

_NUMBER = r"([0-9][0-9_,]{0,30}(?:\.[0-9]{1,30})?|\.[0-9]{1,30})"
_COUNT_UNITS = {
    "": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30
}  # fmt: skip
_SECONDS: dict[str, Fraction | int] = {
    "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6), "ms": Fraction(1, 1000),
    "s": 1, "sec": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800
}  # fmt: skip
_PER = {"s": 1, "sec": 1, "min": 60, "h": 3600, "d": 86_400}
_DEFAULT_PERCENTILE = 99.0


@dataclass(frozen=True, slots=True)
class LatencyTarget:
    """`percentile` percent of requests within `seconds`."""

    seconds: float
    percentile: float


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """A device or node by name, how many devices there are at most, and its price per device and hour if stated."""

    name: str
    count: int | None
    low_usd_per_h: float | None
    high_usd_per_h: float | None


class Degrees(tuple[int, ...]):
    """Values to try. A class of its own, since an option of type tuple takes several arguments."""

    __slots__ = ()


def _split(text: str) -> tuple[Fraction, str] | None:
    """The number and the unit in lower case, or None."""
    match = re.fullmatch(rf"\s*{_NUMBER}\s*([A-Za-zµ]*)\s*", text)
    return None if match is None else (Fraction(match[1].replace(",", "").replace("_", "")), match[2].lower())


def parse_count(text: str | int) -> int:
    """A whole number of at least 1: "512", "8k" = 8000, "8Ki" = 8192, "1.5B", "2T". A default comes as a number.

    Raises:
        ConfigError: not such a text, not whole, or below 1.
    """
    if isinstance(text, int):
        return text
    found = _split(text)
    if found is None or found[1] not in _COUNT_UNITS:
        raise ConfigError(f"{text!r} is not a count; write it like 512, 8k (8000), 8Ki (8192), 70B or 2T")
    value = found[0] * _COUNT_UNITS[found[1]]
    if value.denominator != 1 or value < 1:
        raise ConfigError(f"{text!r} must be a whole number of at least 1")
    return int(value)


def parse_seconds(text: str | float) -> float:
    """Seconds of a time with its unit: "50ms", "2s", "1.5h", "45d".

    Raises:
        ConfigError: not such a text, without a unit, or zero.
    """
    if isinstance(text, int | float):
        return float(text)
    found = _split(text)
    if found is None or found[1] not in _SECONDS:
        raise ConfigError(f"{text!r} is not a time; write a number and us, ms, s, min, h, d or w, such as 50ms, 2s or 45d")
    if found[0] == 0:
        raise ConfigError(f"{text!r} must be above 0")
    return float(found[0] * _SECONDS[found[1]])


def parse_rate(text: str | float) -> float:
    """Requests per second: "5", "5/s", "300/min", "20k/h", "1.5M/d".

    Raises:
        ConfigError: not such a text, or zero.
    """
    if isinstance(text, int | float):
        return float(text)
    number, slash, per = text.partition("/")
    found = _split(number)
    if found is None or found[1] not in _COUNT_UNITS or (per.strip().lower() if slash else "s") not in _PER:
        raise ConfigError(f"{text!r} is not a rate; write it like 5 (a second), 300/min, 20k/h or 1M/d")
    if found[0] == 0:
        raise ConfigError(f"{text!r} must be above 0")
    return float(found[0] * _COUNT_UNITS[found[1]] / _PER[per.strip().lower() if slash else "s"])


def parse_target(text: str | LatencyTarget) -> LatencyTarget:
    """A latency and the percentile of requests that keep it: "2s@p95", "50ms@p99.9"; without one, 99.

    Raises:
        ConfigError: not such a text, or a percentile outside 0 to 100.
    """
    if isinstance(text, LatencyTarget):
        return text
    time, at, rank = text.partition("@")
    match = re.fullmatch(r"\s*[pP](\d+(?:\.\d+)?)\s*", rank) if at else None
    if at and match is None:
        raise ConfigError(f"{text!r} is not a target; write it like 2s@p95 (95 % of requests within 2 s) or 50ms")
    percentile = _DEFAULT_PERCENTILE if match is None else float(match[1])
    if not 0 < percentile < 100:
        raise ConfigError(f"{text!r}: a percentile is above 0 and below 100")
    return LatencyTarget(parse_seconds(time), percentile)


def parse_share(text: str | float) -> float:
    """A share between 0 and 1: "0.6" or "60%".

    Raises:
        ConfigError: not such a text, or outside 0 to 1.
    """
    if isinstance(text, int | float):
        return float(text)
    match = re.fullmatch(rf"\s*{_NUMBER}\s*(%?)\s*", text)
    if match is None:
        raise ConfigError(f"{text!r} is not a share; write it like 0.6 or 60%")
    value = float(match[1].replace(",", "").replace("_", "")) / (100.0 if match[2] else 1.0)
    if not 0 <= value <= 1:
        raise ConfigError(f"{text!r} must be between 0 and 1, or 0% and 100%")
    return value


def parse_device(text: str | DeviceChoice) -> DeviceChoice:
    """NAME, NAME:COUNT, NAME@PRICE or NAME:COUNT@LOW-HIGH, prices in dollars per device and hour.

    Raises:
        ConfigError: no name, a count that is none, or a price that is none.
    """
    if isinstance(text, DeviceChoice):
        return text
    rest, at, price = text.partition("@")
    name, colon, count = rest.rpartition(":") if ":" in rest else (rest, "", "")
    if not name.strip():
        raise ConfigError(f"{text!r} names no device; write it like h100-sxm:16 or h100-sxm:16@2.5-4")
    match = re.fullmatch(rf"\s*\$?{_NUMBER}(?:\s*[-–]\s*\$?{_NUMBER})?\s*", price) if at else None
    if at and match is None:
        raise ConfigError(f"{text!r}: a price is dollars per device and hour, such as @2.5 or @2.5-4")
    low = None if match is None else float(match[1].replace(",", ""))
    high = low if match is None or match[2] is None else float(match[2].replace(",", ""))
    if low is not None and high is not None and high < low:
        raise ConfigError(f"{text!r}: the first price must not be above the second")
    return DeviceChoice(name.strip(), parse_count(count) if colon else None, low, high)


def parse_degrees(text: str) -> Degrees:
    """Values to try, separated by commas: "2,4,8".

    Raises:
        ConfigError: a part is no whole number of at least 1.
    """
    return Degrees(parse_count(part) for part in text.split(","))
