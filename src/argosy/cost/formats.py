"""Formats of weights and KV, and which of them a device supports: a format is a storage type and an arithmetic."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from argosy.cost.device import Device, Precision
from argosy.cost.parallel import Precisions
from argosy.errors import ConfigError


class WeightFormat(enum.StrEnum):
    """How matrices are stored and multiplied. Weight-only formats multiply in 16 bit after unpacking."""

    BASE = "16-bit"
    FP8 = "fp8"
    FP8_WEIGHT_ONLY = "fp8 weight-only"
    INT8 = "int8"
    INT8_WEIGHT_ONLY = "int8 weight-only"
    INT4_WEIGHT_ONLY = "int4 weight-only"
    FP4 = "fp4"

    @property
    def stored(self) -> Precision | None:
        """Element type in memory; None where it is the device's base type."""
        return {
            "16-bit": None,
            "fp8": Precision.FP8,
            "fp8 weight-only": Precision.FP8,
            "int8": Precision.INT8,
            "int8 weight-only": Precision.INT8,
            "int4 weight-only": Precision.INT4,
            "fp4": Precision.FP4,
        }[self.value]

    @property
    def weight_only(self) -> bool:
        """Whether activations stay in 16 bit."""
        return self.value.endswith("weight-only")

    @property
    def scale_bytes_per_element(self) -> float:
        """Scales per element: one fp16 per group of 128 in int4, one fp8 per 16 in fp4, negligible rows otherwise."""
        return {"int4 weight-only": 2.0 / 128, "fp4": 1.0 / 16}.get(self.value, 0.0)


WEIGHT_FORMATS: Mapping[str, WeightFormat] = MappingProxyType(
    {
        "bf16": WeightFormat.BASE,
        "fp16": WeightFormat.BASE,
        "int4": WeightFormat.INT4_WEIGHT_ONLY,
        **{form.value.replace(" ", "-"): form for form in WeightFormat},
    }
)
"""Formats by the names that people write."""


def base_precision(device: Device) -> Precision:
    """The widest-used type that the device computes in natively: bf16, else fp16, else fp32.

    Raises:
        ConfigError: it has none of them.
    """
    for precision in (Precision.BF16, Precision.FP16, Precision.FP32):
        if precision in device.peak:
            return precision
    raise ConfigError(f"{device.name} has no bf16, fp16 or fp32 arithmetic to run a model in")


def supported_weights(device: Device) -> tuple[WeightFormat, ...]:
    """Formats that `device` supports, natively where it can, weight-only where it lacks the arithmetic."""
    formats = [WeightFormat.BASE]
    formats.append(WeightFormat.FP8 if Precision.FP8 in device.peak else WeightFormat.FP8_WEIGHT_ONLY)
    formats.append(WeightFormat.INT8 if Precision.INT8 in device.peak else WeightFormat.INT8_WEIGHT_ONLY)
    formats.append(WeightFormat.INT4_WEIGHT_ONLY)
    if Precision.FP4 in device.peak:
        formats.append(WeightFormat.FP4)
    return tuple(formats)


def supported_kv(device: Device) -> tuple[Precision, ...]:
    """KV types that `device` supports: its base type, and one byte where it has arithmetic for it."""
    one_byte = next((p for p in (Precision.FP8, Precision.INT8) if p in device.peak), None)
    base = base_precision(device)
    return (base,) if one_byte is None else (base, one_byte)


def kv_type(device: Device, wanted: Precision) -> Precision:
    """The KV type for `device`; any 16-bit one stands for its base type."""
    return base_precision(device) if wanted in (Precision.BF16, Precision.FP16) else wanted


def check_supported(device: Device, weights: WeightFormat) -> None:
    """Raise `ConfigError` unless the device has the arithmetic that `weights` needs."""
    stored = weights.stored
    if stored is not None and not weights.weight_only and stored not in device.peak:
        known = ", ".join(supported_weights(device))
        raise ConfigError(f"{device.name} has no {stored} arithmetic for {weights} weights; it supports {known}")


def precisions_for(device: Device, weights: WeightFormat, kv: Precision) -> Precisions:
    """The element types of a deployment on `device`.

    Raises:
        ConfigError: the device lacks the arithmetic.
    """
    check_supported(device, weights)
    base, stored = base_precision(device), weights.stored
    return Precisions(
        weights=stored or base,
        compute=base if stored is None or weights.weight_only else stored,
        kv=kv,
        activations=base,
        embeddings=base,
        scale_bytes_per_element=weights.scale_bytes_per_element,
    )
