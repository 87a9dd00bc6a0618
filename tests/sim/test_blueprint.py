import dataclasses

import pytest

from argosy.cost.catalogue import find_model
from argosy.errors import ConfigError
from argosy.sim.blueprint import blueprint_of
from argosy.sim.config.engine import EngineSettings
from argosy.sim.config.replicas import ParallelismSettings, ReplicaGroup, SpeculationSettings
from argosy.sim.event_loop import EventLoop

GROUP = ReplicaGroup(device="H100 SXM", engine=EngineSettings(max_num_seqs=64))
MODEL = find_model("Llama-3.1-8B")


def made(model=MODEL, draft=None, **changes):
    return blueprint_of(dataclasses.replace(GROUP, **changes), model, draft)


def test_kv_takes_what_the_memory_leaves():
    blueprint = made()
    kv_bytes = 2 * 2 * 32 * 8 * 128  # K and V, bf16, 32 layers of 8 heads of 128
    room = 80e9 * 2**30 / 10**9 - 8.03e9 * 2  # an H100 has 80 GiB; weights in bf16
    assert 0.75 * room < blueprint.kv_tokens * kv_bytes < 0.9 * room
    assert blueprint.scheduler.max_model_len == MODEL.max_positions
    assert blueprint.scheduler.kv_dtype == "bf16"
    assert blueprint.info("x").kv_capacity_tokens == blueprint.kv_tokens


def test_what_changes_the_room_for_kv():
    blocks = made().scheduler.num_blocks
    assert made(kv="fp8").scheduler.num_blocks == pytest.approx(2 * blocks, abs=1)
    assert made(weights="fp8").scheduler.num_blocks > blocks
    assert made(kv_fraction=0.45).scheduler.num_blocks == pytest.approx(blocks / 2, abs=1)
    assert made(memory_fraction=0.5).scheduler.num_blocks < blocks / 2
    assert made(engine=EngineSettings(block_size=32)).scheduler.num_blocks == pytest.approx(blocks / 2, abs=1)
    assert made(engine=EngineSettings(num_blocks=77)).scheduler.num_blocks == 77
    spread = made(parallelism=ParallelismSettings(data=2))
    assert spread.scheduler.num_blocks == pytest.approx(2 * blocks, rel=0.02)
    speculating = made(draft=find_model("Llama-3.2-1B"), speculation=SpeculationSettings(2, 0.5, "Llama-3.2-1B"))
    assert speculating.scheduler.num_blocks < 0.85 * blocks


def test_prices_and_power_come_from_the_catalogue_unless_given():
    ours = made(parallelism=ParallelismSettings(tensor=2))
    assert ours.cost.devices == 2
    assert 1.0 < ours.cost.usd_per_device_hour < 15.0
    assert ours.cost.watts_per_device == 700.0
    assert ours.usd_per_hour == 2 * ours.cost.usd_per_device_hour
    given = made(usd_per_device_hour=2.5, watts_per_device=400.0, weight=3.0, region="eu")
    assert (given.cost.usd_per_device_hour, given.cost.watts_per_device) == (2.5, 400.0)
    info = given.info("x")
    assert (info.usd_per_hour, info.weight, info.region) == (2.5, 3.0, "eu")


@pytest.mark.parametrize(
    ("changes", "message", "param"),
    [
        ({"device": "h100"}, "no device is called 'h100'", None),
        ({"device": "", "node": "dgx-h1000"}, "dgx-h1000", None),
        ({"weights": "fp9"}, "weights 'fp9' is unknown: did you mean fp", "weights"),
        ({"kv": "bf61"}, "kv 'bf61' is unknown: did you mean bf16?", "kv"),
        ({"step_times": "vlm"}, "step_times 'vlm' were not measured: did you mean vllm?", "step_times"),
        ({"weights": "fp4"}, "H100 SXM has no fp4 arithmetic", None),
        ({"parallelism": ParallelismSettings(tensor=3)}, "3", None),
    ],
)
def test_what_no_replica_can_be(changes, message, param):
    with pytest.raises(ConfigError, match=message) as caught:
        made(**changes)
    assert caught.value.param == param


def test_a_model_that_does_not_fit_says_by_how_much():
    with pytest.raises(ConfigError, match=r"out of memory by .* GiB on each device"):
        made(find_model("Llama-3.1-70B"))


def test_a_node_has_its_own_network():
    assert made(device="", node="DGX H100").pricer.model.device.name == "H100 SXM"


def test_the_link_of_kv_is_that_of_the_devices_unless_given():
    blueprint = made(parallelism=ParallelismSettings(tensor=2))
    out = blueprint.pricer.model.topology.scale_out
    link = blueprint.kv_link()
    assert (link.bytes_per_s, link.latency_s) == (2 * out.bandwidth.value, out.latency.value)
    assert link.kv_bytes_per_token == 2 * 2 * 32 * 8 * 128
    assert blueprint.kv_link(1e9, 0.5).transfer_s(1000) == 0.5 + 1000 * link.kv_bytes_per_token / 1e9
    lonely = made(device="RTX 4090")
    assert lonely.pricer.model.topology.scale_out is None
    with pytest.raises(ConfigError, match=r"kv_transfer needs bytes_per_s: .* has no link between nodes"):
        lonely.kv_link()


def test_replicas_share_the_pricer_and_nothing_else():
    blueprint, loop = made(), EventLoop()
    first, second = (blueprint.make(name, loop, seed=0) for name in ("a", "b"))
    assert first.scheduler is not second.scheduler
    assert first.scheduler.config == second.scheduler.config == blueprint.scheduler
