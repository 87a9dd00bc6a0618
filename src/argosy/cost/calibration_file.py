"""Calibrations on disk: those that come with the package, and which constants a device and an engine get from them."""

from __future__ import annotations

import datetime
import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

from argosy.cost.calibration import SHARED_PARAMETERS, constants_of
from argosy.cost.efficiency import Constants, FittedRange
from argosy.cost.quantity import Grade
from argosy.errors import ConfigError

_FILE = "calibrations.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted constants with where they are from and how far they reach.

    Attributes:
        source: what was measured, as a reader can find it.
        as_of: ISO date of the fit; rows, configurations: how many were fitted to.
        devices: by catalogue name; engines: that were measured.
        values: see `argosy.cost.calibration.constants_of`; at_bound: names of those that ended at a bound.
        held_out_median, held_out_mean: relative error of TPOT or step time on configurations that were not fitted to.
        fitted: ranges of what was measured.
    """

    name: str
    source: str
    as_of: str
    rows: int
    configurations: int
    devices: tuple[str, ...]
    engines: tuple[str, ...]
    values: Mapping[str, float]
    at_bound: tuple[str, ...]
    held_out_median: float
    held_out_mean: float
    fitted: Mapping[str, FittedRange]

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a calibration that says less than it must, or constants that cannot be."""
        if not self.source:
            raise ConfigError(f"calibration {self.name!r} needs a source")
        try:
            datetime.date.fromisoformat(self.as_of)
        except ValueError:
            raise ConfigError(f"calibration {self.name!r}: as_of must be an ISO date, got {self.as_of!r}") from None
        known = {*SHARED_PARAMETERS, *(f"step_s:{engine}" for engine in self.engines)}
        for name, value in self.values.items():
            if name not in known:
                raise ConfigError(f"calibration {self.name!r}: unknown constant {name!r}")
            if not math.isfinite(value):
                raise ConfigError(f"calibration {self.name!r}: {name} must be finite, got {value}")
        for engine in self.engines:
            self.constants(engine)

    def covers(self, device: str, engine: str) -> bool:
        """Whether this engine was measured, and this device."""
        return device in self.devices and engine in self.engines

    def constants(self, engine: str, *, grade: Grade = Grade.FITTED) -> Constants:
        """Constants of `engine`, with their provenance.

        Raises:
            ConfigError: `engine` was not measured.
        """
        return constants_of(self.values, engine).replace(
            source=f"{self.source}; fitted to {self.rows} rows of {self.configurations} configurations",
            grade=grade,
            as_of=self.as_of,
            rows=self.rows,
            held_out_error=self.held_out_median,
            fitted=self.fitted,
        )


def calibrations_text(calibrations: Sequence[Calibration]) -> str:
    """JSON that `parse_calibrations` reads back."""
    return json.dumps([asdict(one) for one in calibrations], indent=1) + "\n"


def parse_calibrations(text: str) -> tuple[Calibration, ...]:
    """Read `calibrations_text`.

    Raises:
        ConfigError: not JSON, or an entry with a field missing, unknown or of the wrong kind.
    """
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"calibrations are not JSON: {error}") from None
    if not isinstance(entries, list):
        raise ConfigError("calibrations must be a list")
    return tuple(_calibration(entry) for entry in entries)


def _calibration(entry: Any) -> Calibration:
    fields = Calibration.__dataclass_fields__
    if not isinstance(entry, dict) or set(entry) != set(fields):
        wrong = sorted(set(fields) ^ set(entry)) if isinstance(entry, dict) else ["everything"]
        raise ConfigError(f"calibration entry: missing or unknown {', '.join(wrong)}")
    lists = {name: tuple(entry[name]) for name in ("devices", "engines", "at_bound")}
    try:
        ranges = {name: FittedRange(**limits) for name, limits in entry["fitted"].items()}
        return Calibration(**{**entry, **lists, "fitted": ranges})
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"calibration {entry['name']!r}: {error}") from None


@functools.cache
def packaged_calibrations() -> tuple[Calibration, ...]:
    """The calibrations that come with the package."""
    return parse_calibrations((resources.files("argosy.cost") / "data" / _FILE).read_text(encoding="utf-8"))


def constants_for(device: str, engine: str, *, calibrations: Sequence[Calibration] | None = None) -> Constants:
    """The best constants there are for an engine on a device.

    Fitted ones where both were measured; those of the same engine on other devices, graded second-hand, where only the
    engine was; the common ones of `Constants` otherwise. Of several calibrations the latest in the list counts.

    Args:
        calibrations: None for those of the package.
    """
    known = packaged_calibrations() if calibrations is None else calibrations
    for one in reversed(known):
        if one.covers(device, engine):
            return one.constants(engine)
    for one in reversed(known):
        if engine in one.engines:
            carried = one.constants(engine, grade=Grade.SECONDARY)
            return carried.replace(source=f"{carried.source}; {device} was not measured", held_out_error=None)
    return Constants()
