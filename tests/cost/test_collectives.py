import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.catalogue import find_device, find_node
from argosy.cost.collectives import Algorithm, Topology, collective_time, cost_lines
from argosy.cost.device import Link
from argosy.cost.op import Collective, CollectiveKind
from argosy.cost.quantity import Dimension, Grade, Quantity
from argosy.errors import ConfigError


def link(gigabytes_per_s, microseconds):
    return Link(
        "test",
        Quantity(gigabytes_per_s * 1e9, Dimension.BYTES_PER_S, "test", Grade.PRIMARY),
        Quantity(microseconds * 1e-6, Dimension.SECONDS, "test", Grade.PRIMARY),
    )


def one_node(gigabytes_per_s, microseconds, devices=64):
    return Topology(link(gigabytes_per_s, microseconds), None, devices)


TWO_LEVELS = Topology(link(450, 1), link(50, 7), 8)


@pytest.mark.parametrize(
    ("gigabytes_per_s", "microseconds", "bandwidth_ms", "total_ms"),
    [(900, 0.5, 0.0156, 0.0226), (64, 1, 0.2188, 0.2328), (25, 7, 0.5600, 0.6580), (12.5, 50, 1.1200, 1.8200)],
    ids=["NVLink", "PCIe 5", "InfiniBand HDR", "100 GbE"],
)
def test_ring_all_reduce_of_8_megabytes_over_8_ranks(gigabytes_per_s, microseconds, bandwidth_ms, total_ms):
    reduce = Collective(CollectiveKind.ALL_REDUCE, 8e6, 8, "tensor")
    time = collective_time(reduce, one_node(gigabytes_per_s, microseconds), Algorithm.RING)
    assert time.bandwidth_s * 1e3 == pytest.approx(bandwidth_ms, abs=5e-5)
    assert time.seconds * 1e3 == pytest.approx(total_ms, abs=5e-5)


def seconds(kind, ranks, payload, algorithm=None, topology=None):
    return collective_time(Collective(kind, payload, ranks, "x"), topology or one_node(100, 2), algorithm).seconds


def test_closed_forms_on_one_link():
    alpha, beta, n, m = 2e-6, 100e9, 8, 5e7
    kinds = CollectiveKind
    assert seconds(kinds.POINT_TO_POINT, 2, m) == pytest.approx(alpha + m / beta)
    assert seconds(kinds.ALL_TO_ALL, n, m) == pytest.approx((n - 1) * (alpha + m / (n * beta)))
    assert seconds(kinds.ALL_REDUCE, n, m, Algorithm.NAIVE) == pytest.approx(2 * (n - 1) * (alpha + m / beta))
    assert seconds(kinds.ALL_REDUCE, n, m, Algorithm.TREE) == pytest.approx(2 * 3 * alpha + 2 * m / beta)
    assert seconds(kinds.ALL_REDUCE, n, m, Algorithm.DIRECT) == pytest.approx(alpha + 7 * m / beta)
    assert seconds(kinds.ALL_GATHER, n, m, Algorithm.RING) == pytest.approx(7 * alpha + 7 / 8 * m / beta)
    assert seconds(kinds.REDUCE_SCATTER, n, m, Algorithm.RING) == seconds(kinds.ALL_GATHER, n, m, Algorithm.RING)
    assert seconds(kinds.BROADCAST, n, m, Algorithm.NAIVE) == pytest.approx((n - 1) * (alpha + m / beta))
    assert seconds(kinds.BROADCAST, n, m, Algorithm.TREE) == pytest.approx(3 * alpha + m / beta)


def test_the_fastest_algorithm_is_taken_and_named():
    small = collective_time(Collective(CollectiveKind.ALL_REDUCE, 1e3, 8, "tensor"), one_node(450, 1))
    large = collective_time(Collective(CollectiveKind.ALL_REDUCE, 1e9, 8, "tensor"), one_node(450, 1))
    assert (small.algorithm, large.algorithm) == (Algorithm.DIRECT, Algorithm.RING)


def test_across_nodes_large_all_reduces_are_hierarchical():
    m, up, out = 1e9, 450e9, 50e9
    time = collective_time(Collective(CollectiveKind.ALL_REDUCE, m, 16, "data"), TWO_LEVELS)
    expected = 2 * (7 * 1e-6 + 7 / 8 * m / up) + 2 * (1 * 7e-6 + 1 / 2 * m / 8 / out)
    assert time.algorithm is Algorithm.HIERARCHICAL
    assert time.seconds == pytest.approx(expected)


def test_all_to_all_across_nodes_pays_each_link_for_its_peers():
    m = 16e6
    time = seconds(CollectiveKind.ALL_TO_ALL, 16, m, topology=TWO_LEVELS)
    assert time == pytest.approx(7 * (1e-6 + m / 16 / 450e9) + 8 * (7e-6 + m / 16 / 50e9))


def test_stride_puts_neighbours_on_other_nodes():
    near = collective_time(Collective(CollectiveKind.POINT_TO_POINT, 1e6, 2, "pipeline", 4), TWO_LEVELS)
    far = collective_time(Collective(CollectiveKind.POINT_TO_POINT, 1e6, 2, "pipeline", 8), TWO_LEVELS)
    assert near.seconds == pytest.approx(1e-6 + 1e6 / 450e9)
    assert far.seconds == pytest.approx(7e-6 + 1e6 / 50e9)


@given(
    kind=st.sampled_from(list(CollectiveKind)),
    ranks=st.integers(2, 64),
    stride=st.sampled_from([1, 2, 4, 8, 16]),
    payload=st.floats(0, 1e10),
)
def test_no_algorithm_beats_the_links(kind, ranks, stride, payload):
    collective = Collective(kind, payload, ranks, "x", stride)
    times = [collective_time(collective, TWO_LEVELS, line.algorithm) for line in cost_lines(kind, ranks, stride, TWO_LEVELS)]
    least = payload / ranks / 450e9
    assert all(time.seconds >= least and time.seconds >= 1e-6 for time in times)
    assert collective_time(collective, TWO_LEVELS).seconds == min(time.seconds for time in times)


def test_one_rank_is_free():
    assert seconds(CollectiveKind.ALL_REDUCE, 1, 1e9) == 0


def test_ranks_without_a_link_are_refused():
    with pytest.raises(ConfigError, match="16 devices need a scale-out link"):
        seconds(CollectiveKind.ALL_REDUCE, 16, 1.0, topology=Topology(link(450, 1), None, 8))
    with pytest.raises(ConfigError, match="scale-up"):
        seconds(CollectiveKind.ALL_REDUCE, 2, 1.0, topology=Topology(None, None, 8))


def test_an_algorithm_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(ConfigError, match=r"no tree all-gather over 8 ranks here; there is ring, direct"):
        seconds(CollectiveKind.ALL_GATHER, 8, 1.0, Algorithm.TREE)


@pytest.mark.parametrize("payload", [-1.0, math.nan, math.inf])
def test_impossible_payloads(payload):
    with pytest.raises(ConfigError, match="payload"):
        seconds(CollectiveKind.ALL_REDUCE, 8, payload)


@pytest.mark.parametrize("efficiency", [0.0, 1.1, math.nan])
def test_impossible_link_efficiencies(efficiency):
    with pytest.raises(ConfigError, match="link efficiency"):
        collective_time(Collective(CollectiveKind.ALL_REDUCE, 1.0, 8, "x"), one_node(1, 1), link_efficiency=efficiency)


def test_topology_of_devices():
    assert Topology.of(find_device("H100 SXM")).direct
    pcie = Topology.of(find_device("L40S"))
    assert pcie.scale_up == find_device("L40S").host
    assert not pcie.direct
    assert not Topology.of(find_device("TPU v5p")).direct


def test_devices_of_a_node_share_its_rails():
    node = find_node("DGX H100")
    assert Topology.of_node(node).scale_out.bandwidth.value == pytest.approx(
        node.device.scale_out.bandwidth.value * min(1.0, node.rails / node.devices)
    )
