"""The catalogue of the package: every entry loads, is plausible, has provenance, and is found by its whole name only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import date
from typing import Any

import pytest

from argosy.cost.catalogue import (
    all_devices,
    all_links,
    all_models,
    all_nodes,
    all_tiers,
    find_catalogue_model,
    find_device,
    find_link,
    find_model,
    find_node,
    find_tier,
)
from argosy.cost.device import Device, Precision
from argosy.cost.model_arithmetic import ActiveConvention, active_parameters, kv_elements_per_token, parameter_count
from argosy.cost.quantity import GB, GIB, MIB, Dimension, Grade, Quantity
from argosy.errors import ConfigError

# TFLOP/s at bf16 (fp16 for the T4), at fp8 (0: none), bytes of memory, GB/s of memory.
DEVICES = {
    "A100 SXM 40GB": (312, 0, 40 * GB, 1555),
    "A100 SXM 80GB": (312, 0, 80 * GIB, 2039),
    "A100 PCIe 80GB": (312, 0, 80 * GIB, 1935),
    "H100 SXM": (989, 1978, 80 * GIB, 3350),
    "H100 PCIe": (756.5, 1513, 80 * GIB, 2000),
    "H100 NVL": (835, 1671, 94 * GB, 3900),
    "H20": (148, 296, 96 * GB, 4000),
    "H200 SXM": (989, 1978, 141 * GIB, 4800),
    "B200 SXM": (2250, 4500, 180 * GIB, 7700),
    "B300 SXM": (2250, 4500, 275_040 * MIB, 7750),
    "GB200": (2500, 5000, 189_471 * MIB, 8000),
    "GB300": (2500, 5000, 284_208 * MIB, 8000),
    "RTX PRO 6000": (467.8, 935.6, 97_887 * MIB, 1792),
    "L40S": (362, 733, 46_068 * MIB, 864),
    "L4": (121, 242, 24 * GIB, 300),
    "A30": (165, 0, 24 * GB, 933),
    "A10": (125, 0, 24 * GB, 600),
    "T4": (65, 0, 16 * GB, 320),
    "RTX 4090": (165.2, 330.3, 24 * GB, 1008),
    "RTX 5090": (209.5, 419, 32 * GB, 1792),
    "MI300X": (1307, 2615, 192 * GB, 5300),
    "MI325X": (1307, 2615, 256 * GB, 6000),
    "MI355X": (2500, 5000, 288 * GB, 8000),
    "MI250X": (191.5, 0, 64 * GB, 1638),
    "TPU v5e": (197, 0, 16 * GB, 820),
    "TPU v5p": (459, 0, 95 * GB, 2765),
    "TPU v4": (275, 0, 32 * GB, 1228),
    "TPU v6e": (918, 0, 32 * GB, 1640),
    "Gaudi3": (1835, 1835, 128 * GB, 3675),
    "Intel B60": (98.3, 0, 24 * GB, 456),
}


@pytest.mark.parametrize("name", DEVICES)
def test_dense_peaks_memory_and_bandwidth(name: str) -> None:
    half, fp8, memory, bandwidth = DEVICES[name]
    device = find_device(name)
    peak = device.peak.get(Precision.BF16) or device.peak[Precision.FP16]
    assert peak.value == pytest.approx(half * 1e12, rel=5e-4)
    assert (device.peak[Precision.FP8].value if Precision.FP8 in device.peak else 0) == fp8 * 1e12
    assert device.memory.value == memory
    assert device.memory_bandwidth.value == bandwidth * 1e9


@pytest.mark.parametrize(
    ("name", "scale_up", "scale_out", "host"),
    [
        ("A100 SXM 80GB", 300, 25, 32),
        ("A100 PCIe 80GB", None, 25, 32),
        ("H100 SXM", 450, 50, 64),
        ("H100 PCIe", None, 50, 64),
        ("B200 SXM", 900, 100, 128),
        ("MI300X", 400, 50, 64),
        ("L40S", None, None, 32),
        ("TPU v5p", 450, None, None),
        ("Gaudi3", 300, None, 64),
    ],
)
def test_links_are_one_way_per_device(
    name: str, scale_up: float | None, scale_out: float | None, host: float | None
) -> None:
    device = find_device(name)
    found = [
        None if link is None else link.bandwidth.value / 1e9 for link in (device.scale_up, device.scale_out, device.host)
    ]
    assert found == [scale_up, scale_out, host]


@pytest.mark.parametrize(
    ("chip", "bandwidth"), [("M1", 68), ("M2 Pro", 200), ("M3 Max", 400), ("M3 Ultra", 819), ("M4 Pro", 273)]
)
def test_apple_bandwidths(chip: str, bandwidth: float) -> None:
    assert find_device(chip).memory_bandwidth.value == bandwidth * 1e9


def test_a_rack_is_one_scale_up_domain() -> None:
    assert find_device("GB200").devices_per_node == find_node("GB200 NVL72 rack").devices == 72
    assert find_device("H200").devices_per_node == find_node("HGX H200").devices == 8


@pytest.mark.parametrize(
    ("name", "bandwidth", "latency"),
    [
        ("NVLink 4", 450e9, 0.5e-6),
        ("NVLink 5", 900e9, 0.5e-6),
        ("PCIe 5", 64e9, 1e-6),
        ("InfiniBand HDR", 25e9, 7e-6),
        ("InfiniBand NDR", 50e9, 7e-6),
        ("100GbE", 12.5e9, 50e-6),
    ],
)
def test_link_constants(name: str, bandwidth: float, latency: float) -> None:
    link = find_link(name)
    assert (link.bandwidth.value, link.latency.value) == pytest.approx((bandwidth, latency))


def test_loading_a_model_takes_its_bytes_over_the_tier() -> None:
    assert 140e9 / find_tier("local SSD").bandwidth.value == pytest.approx(23.3, rel=5e-3)
    assert 140e9 / find_tier("object store").bandwidth.value == pytest.approx(280)


def quantities(value: Any, path: str) -> Iterator[tuple[str, Quantity]]:
    if isinstance(value, Quantity):
        yield path, value
    elif is_dataclass(value):
        for field in fields(value):
            yield from quantities(getattr(value, field.name), f"{path}.{field.name}")
    elif hasattr(value, "items"):
        for key, item in value.items():
            yield from quantities(item, f"{path}[{key}]")


def test_every_number_has_source_grade_and_date() -> None:
    seen = 0
    for entry in (*all_devices(), *all_nodes(), *all_links(), *all_tiers()):
        for path, quantity in quantities(entry, entry.name):
            seen += 1
            assert quantity.source, path
            assert quantity.grade in set(Grade), path
            assert date.fromisoformat(quantity.as_of) <= date(2026, 12, 31), path
            assert quantity.dimension is not Dimension.SPARSE_FLOP_PER_S, path
            assert quantity.value > 0, path
    assert seen > 500


def test_figures_from_memory_or_second_hand_say_so() -> None:
    assert find_device("H100 NVL").memory.grade is Grade.MEMORY
    assert find_device("RTX 5090").peak[Precision.BF16].grade is Grade.SECONDARY
    assert find_device("MI300X").peak[Precision.FP8].grade is Grade.MEMORY
    assert find_device("H100 SXM").peak[Precision.BF16].grade is Grade.PRIMARY


@pytest.mark.parametrize("device", all_devices(), ids=lambda device: device.name)
def test_no_device_is_outside_physics(device: Device) -> None:
    for precision, peak in device.peak.items():
        assert peak.dimension is Dimension.FLOP_PER_S
        assert 0.5 <= device.ridge_flop_per_byte(precision) <= 2500
    assert 1e-3 < device.memory.value / device.memory_bandwidth.value < 2
    for link in (device.scale_up, device.scale_out, device.host):
        assert link is None or link.bandwidth.value <= device.memory_bandwidth.value
    if device.scale_up and device.scale_out:
        assert device.scale_out.bandwidth.value <= device.scale_up.bandwidth.value
    if Precision.BF16 in device.peak and Precision.FP8 in device.peak:
        assert device.peak[Precision.FP8].value / device.peak[Precision.BF16].value == pytest.approx(
            1.0 if device.name == "Gaudi 3" else 2.0, rel=0.03
        )


@pytest.mark.parametrize("spelling", ["H100 SXM", "h100_sxm", "H100-SXM", "h100sxm5", "NVIDIA H100 80GB HBM3", "H100/SXM"])
def test_case_and_separators_do_not_matter(spelling: str) -> None:
    assert find_device(spelling).name == "H100 SXM"


@pytest.mark.parametrize("system", ["b200_sxm", "b300_sxm", "gb200", "gb300", "h100_sxm", "h200_sxm", "a100_sxm", "l40s"])
def test_names_of_systems_in_published_measurements(system: str) -> None:
    find_device(system)


@pytest.mark.parametrize("name", ["H100", "A100", "NVIDIA", "H100 SXM 80", "SXM", "", "B2OO", "TPU"])
def test_an_unknown_or_ambiguous_device_is_refused_and_never_guessed(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_device(name)
    assert f"no device is called {name!r}" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_refusal_names_near_matches() -> None:
    with pytest.raises(ConfigError, match="did you mean H100 SXM, H100 PCIe, H100 NVL"):
        find_device("H100")
    with pytest.raises(ConfigError, match=r"did you mean .*Llama-3\.1-70B"):
        find_model("llama-3.1-70")
    with pytest.raises(ConfigError, match=r"did you mean .*DGX H100"):
        find_node("DGX-H10")
    with pytest.raises(ConfigError, match=r"did you mean .*InfiniBand NDR"):
        find_link("infiniband nd")
    with pytest.raises(ConfigError, match="the catalogue has 3, among them DRAM"):
        find_tier("punched cards")


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-V3", "DeepSeek-V3"),
        ("nvidia/DeepSeek-R1-NVFP4", "DeepSeek-V3"),
        ("nvidia/DeepSeek-V3.1-NVFP4", "DeepSeek-V3"),
        ("MiniMaxAI/MiniMax-M2.5", "MiniMax-M2.5"),
        ("meta-llama/Llama-3.1-70B", "Llama-3.1-70B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("Qwen/Qwen3.5-397B-A17B", "Qwen3.5-397B-A17B"),
        ("moonshotai/Kimi-K2.5", "Kimi-K2"),
        ("Qwen/Qwen3-235B-A22B-FP8", "Qwen3-235B-A22B"),
        ("zhipuai/GLM-5", "GLM-5"),
        ("nvidia/Qwen3-32B-NVFP4", "Qwen3-32B"),
        ("smollm2-135m", "SmolLM2-135M"),
        ("gemma3-270m", "Gemma-3-270M"),
    ],
)
def test_models_by_the_names_others_give_them(alias: str, name: str) -> None:
    assert find_model(alias).name == name


def test_version_dots_count() -> None:
    assert find_model("Qwen2.5-3B") is not find_model("Qwen2.5-32B")
    with pytest.raises(ConfigError):
        find_model("Qwen25-3B")


def printed(value: float, text: str) -> bool:
    """Whether `value` prints as `text` at the digits of `text`."""
    return f"{value:.{len(text.partition('.')[2])}f}" == text


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.spec.name)
def test_counts_agree_with_published_totals(model: Any) -> None:
    published, spec = model.published, model.spec
    total = parameter_count(spec) / 1e9
    active = active_parameters(spec, ActiveConvention.WITH_INPUT_EMBEDDING) / 1e9
    assert published.parameters is not None or published.parameters_about is not None
    if published.parameters is not None:
        assert printed(total, published.parameters), total
    else:
        assert total == pytest.approx(published.parameters_about, rel=0.03)
    if published.active is not None:
        assert printed(active, published.active), active
    elif published.active_about is not None:
        assert active == pytest.approx(published.active_about, rel=0.12)
    kib = sum(count * kv_elements_per_token(layer.attention) for count, layer in spec.layers) * 2 / 1024
    assert published.kv_kib_per_token is not None
    assert printed(kib, published.kv_kib_per_token), kib
    assert model.source
    assert date.fromisoformat(model.as_of)


def test_counts_known_to_the_last_parameter() -> None:
    assert parameter_count(find_model("Gemma-3-1B")) == 999_885_952
    assert parameter_count(find_model("SmolLM2-135M")) == 134_515_008
    assert parameter_count(find_model("Gemma-3-270M")) == 268_098_176
    assert parameter_count(find_model("Llama-3.1-8B")) == 8_030_261_248
    assert parameter_count(find_model("DeepSeek-V3")) == 671_026_419_200


def test_provenance_of_a_model() -> None:
    model = find_catalogue_model("Llama-3.2-1B")
    assert model.grade is Grade.MEMORY
    assert find_catalogue_model("SmolLM2-135M").grade is Grade.PRIMARY
