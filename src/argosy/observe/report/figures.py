"""Figures as text, alike on every terminal and page: three significant digits and a unit."""

from __future__ import annotations

import math

UNKNOWN = "–"
_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_COUNT = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_TIME = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_GIB = 2**30


def significant(value: float, digits: int = 3) -> str:
    """`value` with so many significant digits, without exponent and with thousands separated: 0.0123, 1.2, 12,300."""
    if not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    text = f"{rounded:,.{max(0, decimals)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float, scales: tuple[tuple[float, str], ...], unit: str) -> str:
    # Rounding first, so that 999.9 k is 1 M and not 1,000 k.
    rounded = float(f"{value:.3g}")
    for factor, prefix in scales:
        if abs(rounded) >= factor:
            return f"{significant(value / factor)} {prefix}{unit}".rstrip()
    return f"{significant(value)} {unit}".rstrip()


def si(value: float | None, unit: str) -> str:
    """With an SI prefix, powers of 1000: 989 TFLOP/s, 3.35 TB/s."""
    return UNKNOWN if value is None or not math.isfinite(value) else _scaled(value, _SI, unit)


def count(value: float | None) -> str:
    """A number of things: 70.6 B, 15 T, 512."""
    return UNKNOWN if value is None or not math.isfinite(value) else _scaled(value, _COUNT, "").replace("  ", " ")


def gib(value_bytes: float | None) -> str:
    """Bytes in GiB: 74.5 GiB."""
    return UNKNOWN if value_bytes is None else f"{significant(value_bytes / _GIB)} GiB"


def seconds(value_s: float | None) -> str:
    """A time in the unit that fits: 45 d, 2.5 h, 1.2 s, 23.4 ms."""
    if value_s is None or not math.isfinite(value_s):
        return UNKNOWN
    rounded = float(f"{value_s:.3g}")
    for factor, unit in _TIME:
        # Minutes, hours and days are easier to read from two of them on.
        if abs(rounded) >= (2 * factor if factor >= 60 else factor):
            return f"{significant(value_s / factor)} {unit}"
    return "0 s" if value_s == 0 else f"{significant(value_s / 1e-6)} µs"


def usd(value: float | None) -> str:
    """Dollars: $0.012, $0.35, $12.30, $1,230, $169k, $3.1M."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if abs(float(f"{value:.3g}")) >= (10 * factor if unit == "k" else factor):
            return f"${significant(value / factor)}{unit}"
    if value == 0 or abs(value) >= 1000:
        return f"${value:,.0f}"
    return f"${significant(value, 2)}" if abs(value) < 0.1 else f"${value:.2f}"


def usd_range(low: float, high: float) -> str:
    """A span of dollars: $12.30–18.90; one figure where both ends are written alike."""
    first, last = usd(low), usd(high)
    return first if first == last else f"{first}–{last.removeprefix('$')}"


def share(value: float | None) -> str:
    """A share as a percentage: 87 %, 0.4 %, <0.1 %; what is left of rounding is 0 %."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    percent = 100.0 * value
    if abs(percent) < 0.05:
        return "0 %" if abs(percent) < 1e-6 else "<0.1 %"
    return f"{percent:.0f} %" if abs(percent) >= 9.95 else f"{significant(percent, 2)} %"
