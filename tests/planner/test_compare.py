import json

import pytest

from argosy.cost.formats import WeightFormat
from argosy.errors import ConfigError
from argosy.planner.compare import compare
from argosy.planner.offers import DeviceOffer


def offer(name: str, usd: float = 2.0, count: int | None = None) -> DeviceOffer:
    return DeviceOffer(name, low_usd_per_h=usd, high_usd_per_h=usd, count=count)


def test_each_device_is_taken_as_few_times_as_hold_the_model():
    found = compare(
        "Llama-3.1-70B", [offer("H100 SXM"), offer("MI300X"), offer("L4")], prompt_tokens=1000, output_tokens=200
    )
    by_name = {row.device: row for row in found.devices}
    assert (by_name["H100 SXM"].devices, by_name["MI300X"].devices, by_name["L4"].devices) == (2, 1, 8)
    prices = [row.usd_per_million_tokens.middle for row in found.devices]
    assert prices == sorted(prices)
    for row in found.devices:
        assert row.tpot_full_s >= row.tpot_alone_s
        assert row.usd_per_h.middle == 2.0 * row.devices


def test_devices_that_cannot_run_it_come_last_with_the_reason():
    found = compare(
        "Llama-3.1-70B", [offer("T4"), offer("H200 SXM"), offer("L4", count=2)], prompt_tokens=100, output_tokens=10
    )
    assert found.devices[0].device == "H200 SXM"
    for row in found.devices[1:]:
        assert row.devices is None
        assert "out of memory by" in row.why_not
    json.dumps(found.to_json())


def test_a_format_that_one_device_lacks_is_said_there():
    fp8 = compare(
        "Llama-3.1-8B",
        [offer("A100 SXM 80GB"), offer("H100 SXM")],
        prompt_tokens=10,
        output_tokens=10,
        weights=WeightFormat.FP8,
    )
    assert [row.why_not == "" for row in fp8.devices] == [True, False]
    assert "no fp8" in fp8.devices[1].why_not


@pytest.mark.parametrize(("prompt", "output"), [(0, 10), (10, 0)])
def test_lengths_below_a_token_are_refused(prompt: int, output: int):
    with pytest.raises(ConfigError, match="at least 1"):
        compare("Llama-3.1-8B", [offer("H100 SXM")], prompt_tokens=prompt, output_tokens=output)


def test_no_devices_are_refused():
    with pytest.raises(ConfigError, match="at least one"):
        compare("Llama-3.1-8B", [], prompt_tokens=10, output_tokens=10)
