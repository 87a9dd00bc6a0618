"""Reading catalogue files: the errors that shipped catalogues of others contain are each refused."""

from __future__ import annotations

import re

import pytest

from argosy.cost.catalogue import catalogue_text
from argosy.cost.catalogue_devices import load_devices, load_links
from argosy.cost.catalogue_names import Directory
from argosy.cost.device import Device, Node
from argosy.errors import ConfigError

SHIPPED = catalogue_text("devices.toml")


def load(text: str) -> tuple[Directory[Device], Directory[Node]]:
    return load_devices(text, load_links(catalogue_text("links.toml"))[0])


def edited(device: str, old: str, new: str) -> str:
    """The shipped file with one edit inside the entry of `device`."""
    start = SHIPPED.index(f'name = "{device}"')
    end = SHIPPED.find("[[", start)
    entry = SHIPPED[start:end]
    assert entry.count(old) == 1, (device, old)
    return SHIPPED[:start] + entry.replace(old, new) + SHIPPED[end:]


@pytest.mark.parametrize(
    ("device", "old", "new", "message"),
    [
        ("H100 SXM", 'bf16 = "989 TFLOP/s"', 'bf16 = "1979 TFLOP/s"', "given as dense is the sparse peak itself"),
        ("GH200 96GB", 'bf16 = "989 TFLOP/s"', 'bf16 = "1979 TFLOP/s"', "given as dense is the sparse peak itself"),
        ("H100 SXM", 'bf16 = "989 TFLOP/s"', 'bf16 = "1979 TFLOP/s sparse"', "in sparse FLOP/s, expected FLOP/s"),
        ("L40S", 'fp8 = "733 TFLOP/s"', 'fp8 = "1466 TFLOP/s"', "fp8 .* given as dense is the sparse peak itself"),
        ("Gaudi 3", 'bf16 = "1835 TFLOP/s"', 'bf16 = "3670 TFLOP/s"', "Gaudi 3"),
        ("Jetson AGX Orin 64GB", 'int8 = "85 TFLOP/s"', 'int8 = "275 TFLOP/s"', "int8 275 TFLOP/s given as dense"),
        ("RTX 4090", 'bf16 = "165.2 TFLOP/s"', 'bf16 = "330.3 TFLOP/s"', "RTX 4090"),
        ("MI355X", 'fp4 = { value = "10000 TFLOP/s"', 'fp4 = { value = "20100 TFLOP/s"', "fp4 runs at 4.02 x fp8"),
        ("A30", 'int8 = "330 TFLOP/s"', 'int8 = "661 TFLOP/s"', "int8"),
    ],
)
def test_a_sparse_or_doubled_peak_is_not_taken_for_a_dense_one(device: str, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(edited(device, old, new))
    assert device in caught.value.message


def test_doubling_every_peak_alike_is_caught_by_the_clock() -> None:
    """A file that doubles dense and sparse numbers together agrees with itself, not with cores x rate x clock."""
    start = SHIPPED.index('name = "H100 SXM"')
    end = SHIPPED.find("[[", start)
    doubled = re.sub(
        r'"([0-9.]+) TFLOP/s', lambda match: f'"{float(match[1]) * 2:g} TFLOP/s', SHIPPED[start:end].replace("1979", "1978")
    )
    with pytest.raises(ConfigError, match="H100 SXM: bf16 1978 TFLOP/s is stated, cores x rate x clock give 989"):
        load(SHIPPED[:start] + doubled + SHIPPED[end:])


def test_a_peak_read_with_binary_tera_is_caught_by_the_clock() -> None:
    """989 x 2^40 is 10 % above 989e12, with the sparse peak equally wrong."""
    start = SHIPPED.index('name = "H100 SXM"')
    end = SHIPPED.find("[[", start)
    binary = re.sub(
        r'"([0-9.]+) TFLOP/s', lambda match: f'"{float(match[1]) * 2**40 / 1e12:.1f} TFLOP/s', SHIPPED[start:end]
    )
    with pytest.raises(ConfigError, match="cores x rate x clock"):
        load(SHIPPED[:start] + binary + SHIPPED[end:])


def test_hardware_with_sparsity_must_state_both_peaks() -> None:
    start = SHIPPED.index('name = "L4"')
    end = SHIPPED.find("[[", start)
    entry = SHIPPED[start:end]
    without = entry[: entry.index("[device.sparse_peak]")]
    with pytest.raises(ConfigError, match="L4 has 2:4 sparsity: state a sparse peak too"):
        load(SHIPPED[:start] + without + SHIPPED[end:])


@pytest.mark.parametrize(
    ("device", "old", "new", "message"),
    [
        ("B200 SXM", 'memory_bandwidth = "7700 GB/s"', 'memory_bandwidth = "7.7 GB/s"', "ridge point"),
        ("B200 SXM", 'memory = "180 GiB"', 'memory = "180 MiB"', "seconds to read all memory"),
        ("B200 SXM", 'memory = "180 GiB"', 'memory = "180 GB/s"', "expected B"),
        ("B200 SXM", 'memory = "180 GiB"', "memory = 180", "has no unit"),
        ("B200 SXM", 'power = "1000 W"', 'power = "1000 KW"', "power in W"),
        ("B200 SXM", 'scale_up = "NVLink 5"', 'scale_up = "NVLink 9"', "no link is called 'NVLink 9'; did you mean"),
        ("B200 SXM", 'source = "aic"', 'source = "rumour"', "no source 'rumour'"),
        ("B200 SXM", 'sparsity = "2:4"', 'sparsity = "some"', "sparsity must be '2:4' or 'none'"),
        (
            "B200 SXM",
            "devices_per_node = 8",
            "devices_per_node = 0",
            "devices_per_node must be a whole number of at least 1, got 0",
        ),
        ("B200 SXM", "devices_per_node = 8", "devices_per_nodes = 8", "devices_per_node"),
        ("B200 SXM", 'fp8 = "4500 TFLOP/s"', 'fp7 = "4500 TFLOP/s"', "'fp7' that nothing reads"),
        ("B200 SXM", 'kind = "gpu"', 'kind = "gpu"\ncolour = "green"', "'colour' that nothing reads"),
        ("B200 SXM", 'aliases = ["B200"', 'aliases = [8, "B200"', "aliases a list of texts"),
        ("A30", 'precision = "bf16"', 'precision = "bf61"', "'bf61' is not a precision"),
        ("A30", "cores = 56", 'cores = "56"', "cores must be a whole number"),
        ("H200 SXM", 'aliases = ["H200"', 'aliases = ["b200"', "belongs to both"),
        ("L4", 'host = "PCIe 4 x16"', 'host = "NVLink 5"', "faster than its memory"),
    ],
)
def test_entries_that_are_wrong_are_refused_by_name(device: str, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(edited(device, old, new))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sources", "not TOML"),
        ("", "no 'sources'"),
        ('[sources]\n[[gpu]]\nname = "x"', "'gpu' that nothing reads"),
        ('[sources.x]\ntext = "x"\ngrade = "gospel"\nas_of = "2026-01-01"', "grade out of measured, primary"),
        ('[sources.x]\ntext = "x"\ngrade = "primary"\nas_of = "last week"', "ISO date"),
        ('[sources.x]\ntext = "x"\ngrade = "primary"', "no 'as_of'"),
    ],
)
def test_files_that_are_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(text)


LINK = """
[sources.x]
text = "x"
grade = "primary"
as_of = "2026-01-01"
[[link]]
name = "wire"
aliases = []
source = "x"
bandwidth = "1 GB/s"
latency = "1 us"
"""


def test_a_link_with_one_source_for_both_numbers() -> None:
    links, tiers = load_links(LINK)
    assert links.find("WIRE").bandwidth.value == 1e9
    assert len(tiers) == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"1 GB/s"', '"0 GB/s"', "above zero"),
        ('"1 us"', '"1 GB/s"', "expected s"),
        ('source = "x"\n', "", "no source ''"),
        ("aliases = []\n", "", "no 'aliases'"),
        ('"1 us"', '"1 us"\ncapacity = "1 GB"', "'capacity' that nothing reads"),
    ],
)
def test_links_that_are_wrong(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_links(LINK.replace(old, new, 1) if old != '"1 us"' else LINK.replace(old, new))
