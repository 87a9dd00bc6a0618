import pytest

from argosy.cost.catalogue import find_device, find_model
from argosy.cost.collectives import Topology
from argosy.cost.deployment import Deployment
from argosy.cost.disaggregation import disaggregated
from argosy.cost.efficiency import Constants
from argosy.cost.parallel import ParallelPlan
from argosy.cost.serving_memory import serving_memory
from argosy.cost.serving_time import ClosedLoop, prefill_time
from argosy.cost.step_time_model import StepTimeModel
from argosy.errors import ConfigError

H100 = find_device("H100 SXM")
MODEL = StepTimeModel(Deployment(find_model("Llama-3.1-70B"), ParallelPlan(tensor=4)), H100, Topology.of(H100), Constants())
MEMORY = serving_memory(MODEL.deployment, H100)


def pools(load, prefill_workers=1, decode_workers=1, **options):
    settings = {"chunk_tokens": 8192, "transfer_s": 0.01} | options
    return disaggregated(MODEL, prefill_workers, MODEL, decode_workers, load, **settings)


def test_one_client_passes_prefill_transfer_and_decode_alone():
    estimate = pools(ClosedLoop(4096, 512, 1))
    prompt = prefill_time(MODEL, 4096, chunk_tokens=8192).latency_s
    assert estimate.ttft_s == pytest.approx(prompt + 0.01, rel=0.02)
    assert estimate.tpot_s == pytest.approx(float(MODEL.decode(1, 4352).latency_s[0]), rel=0.01)


@pytest.mark.parametrize("clients", [1, 16, 100, 2000])
@pytest.mark.parametrize(("prefill_workers", "decode_workers"), [(1, 1), (1, 4), (4, 1)])
def test_requests_in_flight_add_up_to_the_clients(clients, prefill_workers, decode_workers):
    estimate = pools(ClosedLoop(4096, 512, clients), prefill_workers, decode_workers, decode_memory=MEMORY)
    assert estimate.requests_per_s * estimate.request_s == pytest.approx(clients, rel=1e-3)
    assert estimate.request_s == pytest.approx(estimate.ttft_s + 511 * estimate.tpot_s)
    assert estimate.prefill_utilisation <= 1
    assert estimate.decoding <= MEMORY.admissible_concurrency(4096 + 512)


def test_the_slower_pool_sets_the_rate():
    load = ClosedLoop(4096, 64, 200)
    one, two = pools(load, 1, 2), pools(load, 2, 2)
    prompt = prefill_time(MODEL, 4096, chunk_tokens=8192)
    assert one.requests_per_s == pytest.approx(1 / prompt.occupancy_s, rel=0.02)
    assert two.requests_per_s == pytest.approx(2 * one.requests_per_s, rel=0.05)


def test_a_decode_pool_short_of_cache_makes_requests_wait():
    load = ClosedLoop(1024, 4000, 2000)
    estimate = pools(load, 8, 1, decode_memory=MEMORY)
    assert estimate.decoding == pytest.approx(MEMORY.admissible_concurrency(5024))
    assert estimate.admission_wait_s > 100 * estimate.transfer_s


def test_decoding_is_not_disturbed_by_prompts():
    load = ClosedLoop(4096, 512, 32)
    estimate = pools(load, 4, 1)
    assert estimate.tpot_s == pytest.approx(float(MODEL.decode(estimate.decoding, 4352).latency_s[0]), rel=0.01)


def test_one_output_token_needs_no_decode_pool():
    estimate = pools(ClosedLoop(4096, 1, 8))
    assert estimate.tpot_s is None
    assert estimate.decoding == 0
    assert estimate.requests_per_s * estimate.request_s == pytest.approx(8, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefill_workers": 0}, "prefill_workers"),
        ({"decode_workers": 0}, "decode_workers"),
        ({"transfer_s": -1.0}, "transfer_s"),
    ],
)
def test_impossible_pools(options, message):
    with pytest.raises(ConfigError, match=message):
        pools(ClosedLoop(100, 100, 1), **options)
