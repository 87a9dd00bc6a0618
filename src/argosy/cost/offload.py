"""What keeping training state outside device memory costs: bytes moved per step and seconds per link.

Source: Ren et al. 2021, "ZeRO-Offload", section 4 (gradients go out, updated parameters come back: 4 bytes per parameter
with 16-bit elements); Rajbhandari et al. 2021, "ZeRO-Infinity", sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.checks import at_least_one, not_negative, positive
from argosy.cost.device import Tier
from argosy.cost.zero import StateBytes


@dataclass(frozen=True, slots=True)
class OffloadTime:
    """Seconds of one optimizer step's transfers.

    Attributes:
        to_host_s, to_device_s: gradients out and parameters in over the host link, which runs both ways at once.
        tier_s: optimizer state read from and written back to its tier, 0 where it stays in host memory.
    """

    to_host_s: float
    to_device_s: float
    tier_s: float

    @property
    def serial_s(self) -> float:
        """Without any overlap."""
        return self.to_host_s + self.to_device_s + self.tier_s

    @property
    def overlapped_s(self) -> float:
        """With all streams at once: the slowest."""
        return max(self.to_host_s, self.to_device_s, self.tier_s)


def optimizer_offload_time(
    parameters: float,
    state: StateBytes,
    *,
    host_bytes_per_s: float,
    tier: Tier | None = None,
    ranks_per_tier: int = 1,
) -> OffloadTime:
    """Transfers of an optimizer step whose state is in host memory, or in `tier` (NVMe) behind it.

    Args:
        parameters: of this device's shard.
        host_bytes_per_s: one way, of this device.
        tier: where the optimizer state lies, read once and written once a step; None keeps it in host memory.
        ranks_per_tier: devices that share the tier's bandwidth.

    Raises:
        ConfigError: a size or rate that cannot be.
    """
    not_negative(parameters=parameters)
    positive(host_bytes_per_s=host_bytes_per_s)
    at_least_one(ranks_per_tier=ranks_per_tier)
    tier_s = 0.0
    if tier is not None:
        positive(tier_bandwidth=tier.bandwidth.value)
        tier_s = 2 * tier.latency.value + 2 * parameters * state.optimizer * ranks_per_tier / tier.bandwidth.value
    return OffloadTime(
        to_host_s=parameters * state.gradient / host_bytes_per_s,
        to_device_s=parameters * state.parameter / host_bytes_per_s,
        tier_s=tier_s,
    )


def parameter_offload_s(parameter_bytes: float, *, bytes_per_s: float, passes: int = 2) -> float:
    """Seconds to stream parameters from a tier once per pass: forward and backward, three with recomputation.

    Source: Rajbhandari et al. 2021, section 4.1.

    Raises:
        ConfigError: a size, rate or count that cannot be.
    """
    not_negative(parameter_bytes=parameter_bytes)
    positive(bytes_per_s=bytes_per_s)
    at_least_one(passes=passes)
    return passes * parameter_bytes / bytes_per_s


def activation_offload_s(checkpoint_bytes: float, *, bytes_per_s: float) -> float:
    """Seconds to write activation checkpoints out in the forward pass and read them back in the backward pass.

    Raises:
        ConfigError: a size or rate that cannot be.
    """
    not_negative(checkpoint_bytes=checkpoint_bytes)
    positive(bytes_per_s=bytes_per_s)
    return 2 * checkpoint_bytes / bytes_per_s


def offload_efficiency(intensity_flop_per_byte: float, *, bytes_per_s: float, flop_per_s: float) -> float:
    """Share of peak left when data moves without overlap: ait*bw / (ait*bw + peak) (Rajbhandari et al. 2021, equation 6).

    Raises:
        ConfigError: a value that is not finite and above 0.
    """
    positive(intensity_flop_per_byte=intensity_flop_per_byte, bytes_per_s=bytes_per_s, flop_per_s=flop_per_s)
    fed = intensity_flop_per_byte * bytes_per_s
    return fed / (fed + flop_per_s)
