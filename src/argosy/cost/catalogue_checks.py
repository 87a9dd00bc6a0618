"""Checks that catch what catalogues usually get wrong: sparse or doubled peaks as dense, binary units as decimal ones.

None of them needs to know the right number. A data sheet's sparse peak is twice its dense one; 8-bit arithmetic runs at one
or two times the 16-bit rate; cores x operations per clock x clock is the peak; and no device leaves what is plausible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from argosy.cost.device import Device, Precision
from argosy.cost.quantity import Quantity
from argosy.errors import ConfigError

TOLERANCE = 0.03
RIDGE_FLOP_PER_BYTE = (5.0, 1500.0)
MEMORY_SWEEP_S = (1e-3, 2.0)
POWER_W = (1.0, 3000.0)

# Peak of the first over peak of the second, as tensor hardware has been built so far.
_RATIOS: tuple[tuple[Precision, Precision, tuple[float, ...]], ...] = (
    (Precision.FP8, Precision.BF16, (1.0, 2.0)),
    (Precision.BF16, Precision.TF32, (2.0,)),
    (Precision.BF16, Precision.FP16, (1.0,)),
    (Precision.FP4, Precision.FP8, (2.0, 3.0)),
)
_HALF_RATE_RATIOS = {(Precision.FP4, Precision.FP8): (4.0,)}


@dataclass(frozen=True, slots=True)
class RateCheck:
    """One dense peak recomputed: `cores` x `per_clock` operations (multiply and add are two) x `clock_hz`."""

    precision: Precision
    cores: int
    per_clock: int
    clock_hz: float

    @property
    def flop_per_s(self) -> float:
        """The peak that follows."""
        return self.cores * self.per_clock * self.clock_hz


def check_peaks(
    device: Device,
    sparse_peak: Mapping[Precision, Quantity],
    rate: RateCheck | None,
    *,
    has_sparsity: bool,
    half_rate_accumulate: bool,
) -> None:
    """Refuse peaks that contradict each other, the sparse ones or the clock.

    Args:
        has_sparsity: the hardware doubles its rate for 2:4 sparse matrices, so that its data sheet prints two peaks.
        half_rate_accumulate: 16 and 8 bits with fp32 accumulation run at half the rate of the units, 4 bits do not.

    Raises:
        ConfigError: says which peak and why.
    """
    if has_sparsity and not sparse_peak:
        raise ConfigError(
            f"{device.name} has 2:4 sparsity: state a sparse peak too, so that the dense one can be told from it"
        )
    for precision, sparse in sparse_peak.items():
        dense = device.peak_flop_per_s(precision)
        if not _near(sparse.value, 2.0 * dense):
            kind = "the sparse peak itself" if _near(sparse.value, dense) else "not half the sparse peak"
            raise ConfigError(
                f"{device.name}: {precision} {_tera(dense)} given as dense is {kind} ({_tera(sparse.value)} sparse)"
            )
    for upper, lower, allowed in _RATIOS:
        if upper in device.peak and lower in device.peak:
            ratio = device.peak[upper].value / device.peak[lower].value
            if half_rate_accumulate:
                allowed = (*allowed, *_HALF_RATE_RATIOS.get((upper, lower), ()))
            if not any(_near(ratio, wanted, 0.05) for wanted in allowed):
                known = " or ".join(f"{wanted:g}" for wanted in allowed)
                raise ConfigError(f"{device.name}: {upper} runs at {ratio:.2f} x {lower}; dense hardware has {known}")
    half = device.peak.get(Precision.BF16) or device.peak.get(Precision.FP16)
    if half and Precision.INT8 in device.peak and device.peak[Precision.INT8].value > 2.0 * half.value * (1 + TOLERANCE):
        raise ConfigError(f"{device.name}: int8 at more than twice the 16-bit peak is a sparse number")
    if rate is not None and not _near(device.peak_flop_per_s(rate.precision), rate.flop_per_s):
        stated, made = _tera(device.peak_flop_per_s(rate.precision)), _tera(rate.flop_per_s)
        raise ConfigError(f"{device.name}: {rate.precision} {stated} is stated, cores x rate x clock give {made}")


def check_plausible(device: Device) -> None:
    """Refuse a device outside what has been built: ridge point, time to read all memory, links against memory, power.

    Raises:
        ConfigError: says what is implausible.
    """
    bandwidth = device.memory_bandwidth.value
    fastest_half = max(
        (device.peak[p].value for p in (Precision.BF16, Precision.FP16, Precision.INT8, Precision.FP32) if p in device.peak),
        default=0.0,
    )
    _within(device.name, "ridge point in FLOP/byte", fastest_half / bandwidth, RIDGE_FLOP_PER_BYTE)
    _within(device.name, "seconds to read all memory", device.memory.value / bandwidth, MEMORY_SWEEP_S)
    for link in (device.scale_up, device.scale_out, device.host):
        if link is not None and link.bandwidth.value > bandwidth:
            raise ConfigError(f"{device.name}: link {link.name} is faster than its memory")
    if device.power is not None:
        _within(device.name, "power in W", device.power.value, POWER_W)


def _near(value: float, wanted: float, tolerance: float = TOLERANCE) -> bool:
    return abs(value - wanted) <= tolerance * wanted


def _tera(value: float) -> str:
    return f"{value / 1e12:.4g} TFLOP/s"


def _within(name: str, what: str, value: float, bounds: tuple[float, float]) -> None:
    if not bounds[0] <= value <= bounds[1]:
        raise ConfigError(f"{name}: {what} is {value:.3g}, outside the plausible {bounds[0]:g} to {bounds[1]:g}")
