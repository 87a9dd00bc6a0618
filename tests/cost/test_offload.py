import pytest

from argosy.cost.device import Tier
from argosy.cost.offload import activation_offload_s, offload_efficiency, optimizer_offload_time, parameter_offload_s
from argosy.cost.quantity import Dimension, Grade, Quantity
from argosy.cost.zero import Optimizer, state_bytes
from argosy.errors import ConfigError

ADAM = state_bytes(Optimizer.ADAM)


def tier(bytes_per_s: float, latency_s: float = 0.0) -> Tier:
    def quantity(value: float, dimension: Dimension) -> Quantity:
        return Quantity(value, dimension, "test", Grade.DERIVED)

    return Tier("drive", quantity(bytes_per_s, Dimension.BYTES_PER_S), quantity(latency_s, Dimension.SECONDS))


def test_host_offload_moves_two_bytes_each_way_per_parameter():
    time = optimizer_offload_time(10e9, ADAM, host_bytes_per_s=25e9)
    assert (time.to_host_s, time.to_device_s, time.tier_s) == pytest.approx((0.8, 0.8, 0.0))
    assert time.serial_s == pytest.approx(1.6)
    assert time.overlapped_s == pytest.approx(0.8)


def test_a_drive_reads_and_writes_the_state_and_is_shared():
    alone = optimizer_offload_time(1e9, ADAM, host_bytes_per_s=25e9, tier=tier(6e9))
    assert alone.tier_s == pytest.approx(2 * 12 / 6)
    shared = optimizer_offload_time(1e9, ADAM, host_bytes_per_s=25e9, tier=tier(6e9), ranks_per_tier=8)
    assert shared.tier_s == pytest.approx(8 * alone.tier_s)
    slow = optimizer_offload_time(1e9, ADAM, host_bytes_per_s=25e9, tier=tier(6e9, 0.5))
    assert slow.tier_s == pytest.approx(alone.tier_s + 1.0)


def test_parameters_stream_once_per_pass_and_checkpoints_there_and_back():
    assert parameter_offload_s(140e9, bytes_per_s=7e9) == pytest.approx(40)
    assert parameter_offload_s(140e9, bytes_per_s=7e9, passes=3) == pytest.approx(60)
    assert activation_offload_s(8e9, bytes_per_s=16e9) == pytest.approx(1)


def test_efficiency_is_one_half_where_data_takes_as_long_as_compute():
    assert offload_efficiency(100, bytes_per_s=1e12, flop_per_s=100e12) == pytest.approx(0.5)
    # Rajbhandari et al. 2021, figure 3: 70 TFLOP/s and batch 2 per device of 1024 tokens: over 60 GB/s give 50 %.
    assert offload_efficiency(1024, bytes_per_s=70e9, flop_per_s=70e12) > 0.5


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: optimizer_offload_time(-1, ADAM, host_bytes_per_s=1), "parameters"),
        (lambda: optimizer_offload_time(1, ADAM, host_bytes_per_s=0), "host_bytes_per_s"),
        (lambda: optimizer_offload_time(1, ADAM, host_bytes_per_s=1, ranks_per_tier=0), "ranks_per_tier"),
        (lambda: optimizer_offload_time(1, ADAM, host_bytes_per_s=1, tier=tier(0)), "tier_bandwidth"),
        (lambda: parameter_offload_s(1, bytes_per_s=float("nan")), "bytes_per_s"),
        (lambda: activation_offload_s(-1, bytes_per_s=1), "checkpoint_bytes"),
        (lambda: offload_efficiency(0, bytes_per_s=1, flop_per_s=1), "intensity"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
