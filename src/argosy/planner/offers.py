"""Devices that a plan may use: what, how many, connected how, at what price."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.catalogue import find_device, find_node
from argosy.cost.collectives import Topology
from argosy.cost.device import Device, Link
from argosy.cost.prices import PriceRange, Term, price_range
from argosy.cost.quantity import Grade
from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DeviceOffer:
    """A candidate device as asked for.

    Attributes:
        device: catalogue name or `Device`; with `node`, the name of the node instead and `device` is left "".
        count: most devices there are, or None for as many as wanted.
        low_usd_per_h, high_usd_per_h: price of one device; None takes the catalogue's range for `term` and `region`.
    """

    device: str | Device = ""
    count: int | None = None
    low_usd_per_h: float | None = None
    high_usd_per_h: float | None = None
    node: str = ""
    term: Term = Term.ON_DEMAND
    region: str | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an offer that names nothing, or counts nothing."""
        if bool(self.device) == bool(self.node):
            raise ConfigError("an offer names either a device or a node")
        if self.count is not None and self.count < 1:
            raise ConfigError(f"count of {self.device or self.node} must be at least 1, got {self.count}")
        if (self.low_usd_per_h is None) != (self.high_usd_per_h is None):
            raise ConfigError("state both low_usd_per_h and high_usd_per_h, or neither")


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer looked up: `limit` devices at most."""

    device: Device
    topology: Topology
    price: PriceRange
    limit: int | None

    @property
    def usd_per_h(self) -> float:
        """Middle of the price range, by which plans are ranked."""
        return (self.price.low_usd_per_h + self.price.high_usd_per_h) / 2

    def most_devices(self, cap: int | None = None) -> float:
        """Devices at most under a further cap; infinite without limits."""
        return min(float("inf") if limit is None else limit for limit in (self.limit, cap))

    def link_between(self, devices: int) -> Link | None:
        """The link that `devices` neighbours meet over, or None."""
        return self.topology.scale_up if devices <= self.topology.devices_per_node else self.topology.scale_out


def resolve(offer: DeviceOffer) -> Offer:
    """Look an offer up in the catalogue.

    Raises:
        ConfigError: an unknown device, node or region; no price is known and none is stated; an impossible range.
    """
    if offer.node:
        node = find_node(offer.node)
        device, topology = node.device, Topology.of_node(node)
    else:
        device = offer.device if isinstance(offer.device, Device) else find_device(offer.device)
        topology = Topology.of(device)
    if offer.low_usd_per_h is None or offer.high_usd_per_h is None:
        price = price_range(device, term=offer.term, region=offer.region)
    else:
        price = PriceRange(offer.low_usd_per_h, offer.high_usd_per_h, Grade.PRIMARY, "")
    return Offer(device, topology, price, offer.count)
