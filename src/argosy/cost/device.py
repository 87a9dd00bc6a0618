"""What a device, a link, a node and a cluster are to the cost model."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from argosy.cost.quantity import Quantity
from argosy.errors import ConfigError


class Precision(enum.StrEnum):
    """Element types that weights, KV, activations and arithmetic come in."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT8 = "int8"
    FP4 = "fp4"
    INT4 = "int4"

    @property
    def bytes_per_element(self) -> float:
        """Bytes of one element without scales."""
        return {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}.get(self.value, 0.5)


class Peaks(Mapping[Precision, Quantity]):
    """Dense peak per precision; immutable and hashable, so that a device can be a key."""

    def __init__(self, peaks: Mapping[Precision, Quantity]) -> None:
        self._peaks = dict(peaks)

    def __getitem__(self, precision: Precision) -> Quantity:
        return self._peaks[precision]

    def __iter__(self) -> Iterator[Precision]:
        return iter(self._peaks)

    def __len__(self) -> int:
        return len(self._peaks)

    def __hash__(self) -> int:
        return hash(frozenset(self._peaks.items()))

    def __repr__(self) -> str:
        return f"Peaks({self._peaks})"


@dataclass(frozen=True, slots=True)
class Link:
    """A connection, one way, per device: latency α in seconds and bandwidth β in bytes/s."""

    name: str
    bandwidth: Quantity
    latency: Quantity


@dataclass(frozen=True, slots=True)
class Tier:
    """A place where bytes lie: memory, disk or object store. `capacity` is None where it has no limit of its own."""

    name: str
    bandwidth: Quantity
    latency: Quantity
    capacity: Quantity | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator or host processor as sold. Peaks are dense.

    Attributes:
        peak: dense arithmetic peak per precision; a precision that is absent is not supported natively. Kept as `Peaks`.
        memory, memory_bandwidth: of the device's own memory.
        scale_up: link to its peers in the node (NVLink, Infinity Fabric, ICI), or None.
        scale_out: link between nodes, per device, or None.
        host: link to the host (PCIe), or None.
        power: board power.
        devices_per_node: how many share one scale-up domain.
    """

    name: str
    aliases: tuple[str, ...]
    kind: str
    peak: Mapping[Precision, Quantity]
    memory: Quantity
    memory_bandwidth: Quantity
    scale_up: Link | None
    scale_out: Link | None
    host: Link | None
    power: Quantity | None
    devices_per_node: int
    notes: str = ""

    def __post_init__(self) -> None:
        """Take a copy of `peak` that nobody can change."""
        object.__setattr__(self, "peak", Peaks(self.peak))

    def peak_flop_per_s(self, precision: Precision) -> float:
        """Dense peak at `precision` in FLOP/s.

        Raises:
            ConfigError: the device has no arithmetic in it; names those it has.
        """
        if precision not in self.peak:
            known = ", ".join(sorted(self.peak))
            raise ConfigError(f"{self.name} has no {precision} arithmetic; it has {known}")
        return self.peak[precision].value

    def ridge_flop_per_byte(self, precision: Precision) -> float:
        """Arithmetic intensity at which compute and memory take equally long (roofline; Williams et al. 2009)."""
        return self.peak_flop_per_s(precision) / self.memory_bandwidth.value


@dataclass(frozen=True, slots=True)
class Node:
    """A server as sold.

    Attributes:
        devices: how many of `device` it holds, all in one scale-up domain.
        rails: network ports for traffic between nodes; each is a `device.scale_out` link.
        host_memory, local_storage: what weights and KV can be parked in, or None where the seller decides.
        power: of the whole node at most, or None.
    """

    name: str
    aliases: tuple[str, ...]
    device: Device
    devices: int
    rails: int
    host_memory: Quantity | None
    local_storage: Quantity | None
    power: Quantity | None

    @property
    def scale_out_bytes_per_s(self) -> float:
        """One-way bandwidth of all rails together; 0 without a network."""
        return 0.0 if self.device.scale_out is None else self.rails * self.device.scale_out.bandwidth.value


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` equal nodes whose rails all reach each other at full bandwidth (a rail-optimised fat tree)."""

    node: Node
    nodes: int

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an empty cluster, or nodes without a network between them."""
        if self.nodes < 1:
            raise ConfigError(f"a cluster has at least one node, got {self.nodes}")
        if self.nodes > 1 and (self.node.rails < 1 or self.node.device.scale_out is None):
            raise ConfigError(f"{self.node.name} has no network between nodes; use one node or another kind")

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.nodes * self.node.devices

    def link_between(self, devices: int) -> Link | None:
        """The slowest link that a group of `devices` neighbours crosses; None for one device, or where none is known.

        Raises:
            ConfigError: more devices than the cluster has.
        """
        if devices > self.devices:
            raise ConfigError(f"{devices} devices asked of a cluster of {self.devices}")
        if devices <= 1:
            return None
        if devices <= self.node.devices:
            return self.node.device.scale_up or self.node.device.host
        return self.node.device.scale_out
