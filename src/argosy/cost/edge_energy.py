"""Energy and bandwidth of devices that run on a battery."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.checks import not_negative, positive
from argosy.errors import ConfigError

_HOUR_S = 3600.0


def battery_share(power_w: float, seconds: float, battery_wh: float) -> float:
    """Power x time / capacity; above 1 means that the battery does not last.

    Raises:
        ConfigError: an input that cannot be.
    """
    not_negative(power_w=power_w, seconds=seconds)
    positive(battery_wh=battery_wh)
    return power_w * seconds / (battery_wh * _HOUR_S)


def seconds_on_battery(power_w: float, battery_wh: float, share: float = 1.0) -> float:
    """How long `share` of the battery lasts at `power_w`.

    Raises:
        ConfigError: an input that is not above 0, or a share above 1.
    """
    positive(power_w=power_w, battery_wh=battery_wh, share=share)
    if share > 1:
        raise ConfigError(f"share must be at most 1, got {share}")
    return share * battery_wh * _HOUR_S / power_w


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of ranges, from the least to the most."""

    low: float
    high: float


def bandwidth_ratio(server_bytes_per_s: float, edge_low_bytes_per_s: float, edge_high_bytes_per_s: float) -> Ratio:
    """How many times faster a server's memory is: decoding of one sequence is slower by as much on the edge device.

    Raises:
        ConfigError: a rate that is not above 0, or a range from high to low.
    """
    positive(server=server_bytes_per_s, edge_low=edge_low_bytes_per_s, edge_high=edge_high_bytes_per_s)
    if edge_low_bytes_per_s > edge_high_bytes_per_s:
        raise ConfigError(f"edge bandwidth goes from low to high, got {edge_low_bytes_per_s} to {edge_high_bytes_per_s}")
    return Ratio(server_bytes_per_s / edge_high_bytes_per_s, server_bytes_per_s / edge_low_bytes_per_s)
