"""Values with unit, source, date and grade: what a catalogue holds, and what a figure made from it may claim.

GB is 10^9 bytes and GiB 2^30; FLOP/s is always dense unless the unit says sparse, and the two never convert silently.
Arithmetic is done on plain floats whose names carry SI units (`_s`, `_bytes`, `_flops`); a `Quantity` is what those floats
are read from.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from argosy.errors import ConfigError

GB = 10**9
GIB = 2**30
MIB = 2**20
TERA = 10**12


class Grade(enum.StrEnum):
    """How far a value may be trusted, best first. A figure made from several values has the worst of their grades."""

    MEASURED = "measured"
    PRIMARY = "primary"
    FITTED = "fitted"
    DERIVED = "derived"
    SECONDARY = "secondary"
    MEMORY = "from memory"


class Dimension(enum.StrEnum):
    """What a quantity is of, in the SI unit its `value` is held in."""

    BYTES = "B"
    BYTES_PER_S = "B/s"
    FLOP_PER_S = "FLOP/s"
    SPARSE_FLOP_PER_S = "sparse FLOP/s"
    WATTS = "W"
    SECONDS = "s"
    USD_PER_HOUR = "$/h"
    RATIO = ""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A finite, non-negative value in the SI unit of its dimension, and where it is from.

    Attributes:
        source: a publication, data sheet, program or measurement a reader can find.
        as_of: ISO date the entry was compiled from its source or the measurement made, or "" where none is known.
    """

    value: float
    dimension: Dimension
    source: str
    grade: Grade
    as_of: str = ""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a value that no catalogue may hold."""
        if not math.isfinite(self.value) or self.value < 0:
            raise ConfigError(f"a catalogue value must be finite and not negative, got {self.value} from {self.source!r}")
        if not self.source:
            raise ConfigError(f"a catalogue value needs a source, {self.value} {self.dimension} has none")


_SCALE = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "µ": 1e-6,
    "m": 1e-3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
}
_FORM = re.compile(
    r"\s*(?P<number>[0-9][0-9_,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*(?P<prefix>[KMGTP]i?|[nuµm](?=s))?"
    r"(?P<unit>B/s|b/s|B|FLOP/s|OP/s|W|s|\$/h)?(?P<sparse>\s+sparse)?\s*"
)
_DIMENSION = {
    "B": Dimension.BYTES,
    "B/s": Dimension.BYTES_PER_S,
    "b/s": Dimension.BYTES_PER_S,
    "FLOP/s": Dimension.FLOP_PER_S,
    "OP/s": Dimension.FLOP_PER_S,
    "W": Dimension.WATTS,
    "s": Dimension.SECONDS,
    "$/h": Dimension.USD_PER_HOUR,
    None: Dimension.RATIO,
}


def parse_quantity(text: str, *, source: str, grade: Grade, as_of: str = "") -> Quantity:
    """Read a number and its unit.

    Known forms: "80 GiB", "3.35 TB/s", "400 Gb/s" (bits), "989 TFLOP/s", "1979 TFLOP/s sparse", "700 W", "5 us", "4.02 $/h"
    and a plain ratio.

    Raises:
        ConfigError: no number, an unknown unit, or a prefix that the unit does not take (GiFLOP/s, Ms).
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a quantity; write a number and a unit such as 80 GiB, 3350 GB/s or 989 TFLOP/s")
    unit, prefix = match["unit"], match["prefix"] or ""
    dimension = _DIMENSION[unit]
    if prefix.endswith("i") and dimension not in (Dimension.BYTES, Dimension.BYTES_PER_S):
        raise ConfigError(f"{text!r}: binary prefixes are for bytes only")
    if prefix and dimension in (Dimension.USD_PER_HOUR, Dimension.RATIO):
        raise ConfigError(f"{text!r}: prefix {prefix!r} has no unit that takes it")
    if dimension is Dimension.SECONDS and prefix not in ("", "n", "u", "µ", "m"):
        raise ConfigError(f"{text!r}: write seconds with no prefix or with n, u, m")
    if match["sparse"]:
        if dimension is not Dimension.FLOP_PER_S:
            raise ConfigError(f"{text!r}: only FLOP/s can be sparse")
        dimension = Dimension.SPARSE_FLOP_PER_S
    number = float(match["number"].replace(",", "").replace("_", ""))
    value = number * _SCALE[prefix] / (8 if unit == "b/s" else 1)
    return Quantity(value, dimension, source, grade, as_of)


def worst_grade(grades: Iterable[Grade]) -> Grade:
    """The grade of a figure made from values of these grades; `DERIVED` at best, since something was computed."""
    order = list(Grade)
    return max((*grades, Grade.DERIVED), key=order.index)
