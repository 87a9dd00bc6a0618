"""Devices, nodes and clusters as values."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest

from argosy.cost.catalogue import find_device, find_node
from argosy.cost.device import Cluster, Peaks, Precision
from argosy.errors import ConfigError


def test_bytes_per_element() -> None:
    sizes = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp4": 0.5, "int4": 0.5}
    assert {precision.value: precision.bytes_per_element for precision in Precision} == sizes


def test_ridge_point_of_an_h100() -> None:
    assert find_device("H100 SXM").ridge_flop_per_byte(Precision.BF16) == pytest.approx(295.2, rel=5e-4)


def test_arithmetic_that_a_device_lacks_is_refused_with_what_it_has() -> None:
    with pytest.raises(ConfigError, match="T4 has no bf16 arithmetic; it has fp16, fp32, int8"):
        find_device("T4").peak_flop_per_s(Precision.BF16)


def test_a_device_is_a_key_and_survives_copies() -> None:
    device = find_device("B200")
    assert {device: 1}[pickle.loads(pickle.dumps(device))] == 1
    assert copy.deepcopy(device) == device


def test_peaks_do_not_follow_the_mapping_they_were_made_from() -> None:
    source = dict(find_device("B200").peak)
    peaks = Peaks(source)
    source.clear()
    assert len(peaks) == 4
    assert peaks == Peaks(dict(peaks))
    assert "fp8" in repr(peaks)


def test_the_link_a_group_of_devices_crosses() -> None:
    cluster = Cluster(find_node("DGX H100"), nodes=4)
    assert cluster.devices == 32
    assert cluster.link_between(1) is None
    within, between = cluster.link_between(8), cluster.link_between(9)
    assert within is not None
    assert between is not None
    assert (within.name, between.name) == ("NVLink 4", "InfiniBand NDR")
    with pytest.raises(ConfigError, match="33 devices asked of a cluster of 32"):
        cluster.link_between(33)


def test_a_node_offers_all_its_rails() -> None:
    assert find_node("DGX H100").scale_out_bytes_per_s == 8 * 50e9


def test_clusters_that_cannot_be() -> None:
    node = find_node("DGX H100")
    with pytest.raises(ConfigError, match="at least one node"):
        Cluster(node, 0)
    alone = replace(node, rails=0)
    with pytest.raises(ConfigError, match="no network between nodes"):
        Cluster(alone, 2)
    assert Cluster(alone, 1).devices == 8
