"""Times of collectives in the α-β model: every algorithm is a line, latency + payload x seconds per byte.

N ranks, M payload bytes, α latency and β bandwidth of a link (Hockney 1994; Thakur et al. 2005; Patarasuk & Yuan 2009):

| | all-reduce | all-gather, reduce-scatter | broadcast |
|---|---|---|---|
| naive | 2(N-1)(α + M/β) | | (N-1)(α + M/β) |
| ring | 2(N-1)α + 2(N-1)/N M/β | (N-1)α + (N-1)/N M/β | (N-1)α + M/β |
| tree | 2⌈log₂N⌉α + 2M/β | | ⌈log₂N⌉α + M/β |
| direct | α + (N-1)M/β | α + (N-1)/N M/β | |

All-to-all is (N-1)(α + M/(Nβ)), M being what one rank sends; point to point α + M/β. Trees are pipelined. Direct sends to
all peers of a switched domain at once. Across nodes, hierarchical algorithms use the scale-up links of all devices of a node
and then the scale-out link of each; a flat ring or tree runs at the pace of the slower link.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import dataclass
from typing import NamedTuple

from argosy.cost.device import Device, Link, Node
from argosy.cost.op import Collective, CollectiveKind
from argosy.cost.quantity import Grade
from argosy.errors import ConfigError


class Algorithm(enum.StrEnum):
    """How a collective is carried out."""

    NAIVE = "naive"
    RING = "ring"
    TREE = "tree"
    DIRECT = "direct"
    HIERARCHICAL = "hierarchical"
    PAIRWISE = "pairwise"


class CostLine(NamedTuple):
    """Time of one algorithm: `latency_s` + payload bytes x `s_per_byte`."""

    algorithm: Algorithm
    latency_s: float
    s_per_byte: float


class CollectiveTime(NamedTuple):
    """Time of one collective and the algorithm it is of."""

    seconds: float
    algorithm: Algorithm
    latency_s: float
    bandwidth_s: float


@dataclass(frozen=True, slots=True)
class Topology:
    """What connects devices: `scale_up` within nodes of `devices_per_node`, `scale_out` between them, or None.

    `direct` says that scale-up peers reach each other at full bandwidth through a switch.
    """

    scale_up: Link | None
    scale_out: Link | None
    devices_per_node: int
    direct: bool = True

    @classmethod
    def of(cls, device: Device) -> Topology:
        """The topology of nodes of `device`.

        Devices without a link of their own meet over PCIe; those and TPUs, which form a torus, have no switch.
        """
        switched = device.scale_up is not None and device.kind != "tpu"
        return cls(device.scale_up or device.host, device.scale_out, device.devices_per_node, switched)

    @classmethod
    def of_node(cls, node: Node) -> Topology:
        """The topology of such nodes; where devices outnumber rails they share them."""
        inside = cls.of(node.device)
        out = inside.scale_out
        if out is not None and node.rails < node.devices:
            share = node.rails / node.devices
            slower = dataclasses.replace(out.bandwidth, value=out.bandwidth.value * share, grade=Grade.DERIVED)
            out = dataclasses.replace(out, bandwidth=slower) if node.rails else None
        return cls(inside.scale_up, out, node.devices, inside.direct)


def cost_lines(kind: CollectiveKind, ranks: int, stride: int, topology: Topology) -> tuple[CostLine, ...]:
    """The algorithms there are for a collective of `ranks` devices that lie `stride` devices apart.

    Raises:
        ConfigError: the ranks are not connected.
    """
    if ranks < 1 or stride < 1:
        raise ConfigError(f"a collective needs ranks and stride of at least 1, got {ranks} and {stride}")
    if ranks == 1:
        return (CostLine(Algorithm.DIRECT, 0.0, 0.0),)
    in_node = min(ranks, max(1, topology.devices_per_node // stride))
    if in_node == ranks:
        link = _needed(topology.scale_up, "scale-up", ranks)
        return _flat_lines(kind, ranks, link.latency.value, 1.0 / link.bandwidth.value, direct=topology.direct)
    scale_out = _needed(topology.scale_out, "scale-out", ranks)
    if in_node == 1:
        return _flat_lines(kind, ranks, scale_out.latency.value, 1.0 / scale_out.bandwidth.value, direct=False)
    scale_up = _needed(topology.scale_up, "scale-up", ranks)
    latency = max(scale_up.latency.value, scale_out.latency.value)
    pace = 1.0 / min(scale_up.bandwidth.value, scale_out.bandwidth.value)
    flat = _flat_lines(kind, ranks, latency, pace, direct=False)
    if kind in (CollectiveKind.POINT_TO_POINT, CollectiveKind.BROADCAST):
        return flat
    hierarchical = _hierarchical_line(kind, ranks, in_node, scale_up, scale_out)
    return (hierarchical,) if kind is CollectiveKind.ALL_TO_ALL else (*flat, hierarchical)


def collective_time(
    collective: Collective, topology: Topology, algorithm: Algorithm | None = None, *, link_efficiency: float = 1.0
) -> CollectiveTime:
    """Time of `collective` by `algorithm`, or by the fastest (None); `link_efficiency` of β is reached.

    Raises:
        ConfigError: the algorithm does not exist for this collective, the ranks are not connected, the payload is negative.
    """
    if not (math.isfinite(collective.payload_bytes) and collective.payload_bytes >= 0):
        raise ConfigError(f"a collective's payload must be finite and not negative, got {collective.payload_bytes}")
    if not 0 < link_efficiency <= 1:
        raise ConfigError(f"link efficiency must be above 0 and at most 1, got {link_efficiency}")
    lines = cost_lines(collective.kind, collective.ranks, collective.stride, topology)
    if algorithm is not None:
        lines = tuple(line for line in lines if line.algorithm is algorithm) or _refuse(algorithm, collective, lines)
    times = [
        CollectiveTime(line.latency_s + bandwidth_s, line.algorithm, line.latency_s, bandwidth_s)
        for line in lines
        for bandwidth_s in (collective.payload_bytes * line.s_per_byte / link_efficiency,)
    ]
    return min(times, key=lambda time: time.seconds)


def _refuse(algorithm: Algorithm, collective: Collective, lines: tuple[CostLine, ...]) -> tuple[CostLine, ...]:
    known = ", ".join(line.algorithm for line in lines)
    raise ConfigError(f"there is no {algorithm} {collective.kind} over {collective.ranks} ranks here; there is {known}")


def _needed(link: Link | None, what: str, ranks: int) -> Link:
    if link is None:
        raise ConfigError(f"{ranks} devices need a {what} link and there is none; use fewer devices or name a link")
    return link


def _flat_lines(kind: CollectiveKind, ranks: int, latency: float, pace: float, *, direct: bool) -> tuple[CostLine, ...]:
    """Algorithms over links that are all alike: `latency` α and `pace` 1/β."""
    others, part = ranks - 1, (ranks - 1) / ranks
    depth = math.ceil(math.log2(ranks))
    line = CostLine
    if kind is CollectiveKind.ALL_REDUCE:
        lines = [
            line(Algorithm.RING, 2 * others * latency, 2 * part * pace),
            line(Algorithm.TREE, 2 * depth * latency, 2 * pace),
            line(Algorithm.NAIVE, 2 * others * latency, 2 * others * pace),
        ]
        return (*lines, line(Algorithm.DIRECT, latency, others * pace)) if direct else tuple(lines)
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        ring = line(Algorithm.RING, others * latency, part * pace)
        return (ring, line(Algorithm.DIRECT, latency, part * pace)) if direct else (ring,)
    if kind is CollectiveKind.ALL_TO_ALL:
        return (line(Algorithm.PAIRWISE, others * latency, part * pace),)
    if kind is CollectiveKind.POINT_TO_POINT:
        return (line(Algorithm.DIRECT, latency, pace),)
    return (
        line(Algorithm.TREE, depth * latency, pace),
        line(Algorithm.RING, others * latency, pace),
        line(Algorithm.NAIVE, others * latency, others * pace),
    )


def _hierarchical_line(kind: CollectiveKind, ranks: int, in_node: int, scale_up: Link, scale_out: Link) -> CostLine:
    """Within nodes of `in_node` ranks, and between nodes for each device's part of the payload; one after the other.

    All-reduce is a reduce-scatter in the node, an all-reduce between nodes of M/n, and an all-gather in the node.
    An all-to-all sends to the ranks of its own node over scale-up and to the others over scale-out.
    """
    nodes = math.ceil(ranks / in_node)
    up_latency, up_pace = scale_up.latency.value, 1.0 / scale_up.bandwidth.value
    out_latency, out_pace = scale_out.latency.value, 1.0 / scale_out.bandwidth.value
    if kind is CollectiveKind.ALL_TO_ALL:
        inside, outside = in_node - 1, ranks - in_node
        latency = inside * up_latency + outside * out_latency
        return CostLine(Algorithm.HIERARCHICAL, latency, (inside * up_pace + outside * out_pace) / ranks)
    latency = (in_node - 1) * up_latency + (nodes - 1) * out_latency
    pace = (in_node - 1) / in_node * up_pace + (nodes - 1) / nodes / in_node * out_pace
    passes = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    return CostLine(Algorithm.HIERARCHICAL, passes * latency, passes * pace)
