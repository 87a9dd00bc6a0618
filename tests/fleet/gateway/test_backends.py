import math
from collections import Counter
from random import Random

import pytest

from argosy.errors import ConfigError
from argosy.fleet.gateway.backend_pool import PoolState
from argosy.fleet.gateway.backends import BackendPools, PoolLimits
from argosy.fleet.gateway.config_models import BackendSettings
from argosy.fleet.gateway.engine_metrics import EngineReport
from argosy.fleet.gateway.exchange import AttemptResult, Endpoint, Exchange, Principal
from argosy.fleet.gateway.stages import Route, Upstream
from argosy.fleet.gateway.upstream import UpstreamPool
from argosy.fleet.policies.breaker import BreakerConfig, BreakerState
from argosy.fleet.policies.health_state import HealthPhase
from argosy.fleet.policies.outcomes import Outcome, RequestDropped
from argosy.fleet.policies.routing.named import make_policy

CHAT = Endpoint("/v1/chat/completions", "chat")
ROUTE = Route("m")


def exchange(number: int = 0, *, tenant: str = "t", key: str = "", prompt_tokens: int = 10) -> Exchange:
    made = Exchange(CHAT, "POST", "/v1/chat/completions", {}, b"{}", "r", f"e{number}", 0.0)
    made.principal = Principal("k", tenant)
    made.affinity_key = key
    made.prompt_tokens = prompt_tokens
    return made


class Watched:
    """A watcher that only notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def added(self, settings, upstream, model):
        self.calls.append(("added", f"{settings.name} as {model}"))

    def removed(self, backend_id):
        self.calls.append(("removed", backend_id))

    def suspect(self, backend_id):
        self.calls.append(("suspect", backend_id))

    def wake(self, backend_id):
        self.calls.append(("wake", backend_id))


def make_pools(*weights: float, policy: str = "least_load", kind: str = "openai", **fields) -> BackendPools:
    limits = fields.pop("limits", PoolLimits())
    by_conversation = fields.pop("by_conversation", False)
    pools = BackendPools(lambda s: Upstream(s.name, UpstreamPool(s.url)), Random(7), limits, **fields)
    pools.set_pool("m", make_policy(policy), by_conversation=by_conversation)
    for number, weight in enumerate(weights):
        pools.add("m", BackendSettings(f"http://h{number}:1", name=f"b{number}", weight=weight, kind=kind))
    return pools


def call(pools: BackendPools, now_s: float = 0.0, result: AttemptResult = AttemptResult.OK, **fields) -> str:
    """One call from its pick to its end."""
    retry_after_s = fields.pop("retry_after_s", None)
    placement = pools.pick(exchange(**fields), ROUTE, frozenset(), now_s)
    if result is AttemptResult.OK:
        placement.first_byte(now_s)
    placement.finish(result, now_s, latency_s=0.1, retry_after_s=retry_after_s)
    return placement.upstream.backend_id


def phases(pools: BackendPools) -> dict[str, HealthPhase]:
    return {status.backend_id: status.phase for status in pools.statuses(0.0)}


@pytest.mark.parametrize("policy", ["weighted_random", "weighted_round_robin"])
@pytest.mark.parametrize("weights", [(90, 10), (1, 3), (0, 100), (2, 3, 5), (0.1, 0.2)])
def test_requests_go_by_weight_and_exactly_none_to_weight_zero(policy, weights):
    pools, num = make_pools(*weights, policy=policy), 10_000
    counts = Counter(call(pools, 0.001 * n) for n in range(num))
    for number, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(counts[f"b{number}"] - num * share) <= 3.0 * math.sqrt(num * share * (1.0 - share))


def test_conversations_go_by_weight_stay_and_follow_a_change_of_weight():
    pools, num = make_pools(90, 10, by_conversation=True), 3000
    first = {n: call(pools, key=f"c{n}") for n in range(num)}
    assert first == {n: call(pools, key=f"c{n}") for n in range(num)}
    assert abs(Counter(first.values())["b1"] - num * 0.1) <= 3.0 * math.sqrt(num * 0.09)
    pools.set_weight("b1", 0)
    assert {call(pools, key=f"c{n}") for n in range(num)} == {"b0"}
    pools.set_weight("b1", 10)
    assert first == {n: call(pools, key=f"c{n}") for n in range(num)}


def test_a_hundred_at_once_are_spread_evenly():
    pools = make_pools(*[1.0] * 8)
    held = [pools.pick(exchange(n), ROUTE, frozenset(), 0.0) for n in range(100)]
    loads = Counter(placement.upstream.backend_id for placement in held).values()
    assert max(loads) - min(loads) <= 2
    pools.check_invariants()
    for placement in held:
        placement.finish(AttemptResult.ABORTED, 1.0, latency_s=1.0, retry_after_s=None)
        placement.finish(AttemptResult.OK, 1.0, latency_s=1.0, retry_after_s=None)
    assert all(status.in_flight == 0 for status in pools.statuses(1.0))
    assert all(replica.booked.requests == 0 for replica in pools.replicas("m"))


@pytest.mark.parametrize(
    "result",
    [
        AttemptResult.SERVER_ERROR,
        AttemptResult.CONNECT_ERROR,
        AttemptResult.FIRST_BYTE_TIMEOUT,
        AttemptResult.IDLE_TIMEOUT,
        AttemptResult.CUT,
    ],
)
def test_failures_open_the_breaker_and_then_nothing_goes_there_but_one_probe(result):
    pools = make_pools(1.0)
    for _ in range(5):
        call(pools, 0.0, result)
    with pytest.raises(RequestDropped) as dropped:
        call(pools, 10.0)
    assert dropped.value.outcome is Outcome.REJECTED_NO_BACKEND
    assert dropped.value.retry_after_s == 20.0
    assert pools.state("m", 10.0) is PoolState.AWAY
    probe = pools.pick(exchange(), ROUTE, frozenset(), 30.0)
    with pytest.raises(RequestDropped):
        call(pools, 30.0)
    probe.first_byte(31.0)
    call(pools, 31.0)
    assert next(iter(pools.statuses(31.0))).breaker is BreakerState.CLOSED
    probe.finish(AttemptResult.OK, 99.0, latency_s=69.0, retry_after_s=None)


@pytest.mark.parametrize("name", ["m", "{0.__class__}", "n" * 200])
def test_a_refusal_names_the_model_bounded_and_no_backend(name):
    pools = make_pools(1.0)
    pools.set_pool(name, make_policy("least_load"))
    for pool in {name, "m"}:
        message = pools.refusal(pool, 0.0).message
        assert f"model {pool[:80]!r}" in message
        assert len(message) < 200
        assert "b0" not in message
    assert pools.refusal("gone", 0.0).message == "model 'gone' has no backends"
    with pytest.raises(RequestDropped, match="model 'gone' has no backends"):
        pools.pick(exchange(), Route("gone"), frozenset(), 0.0)


def test_every_change_of_a_breaker_is_one_line_of_the_log(caplog):
    pools = make_pools(1.0)
    with caplog.at_level("INFO", "argosy.gateway"):
        for _ in range(5):
            call(pools, 0.0, AttemptResult.SERVER_ERROR)
        for _ in range(20):
            pools.state("m", 10.0)
        call(pools, 30.0)
        call(pools, 31.0)
        call(pools, 32.0)
    lines = [record for record in caplog.records if record.message == "breaker"]
    told = [(record.levelname, record.fields["state"]) for record in lines]
    assert told == [("WARNING", "open"), ("INFO", "half_open"), ("INFO", "closed")]
    assert {record.fields["model"] for record in lines} == {"m"}


@pytest.mark.parametrize("result", [AttemptResult.CLIENT_ERROR, AttemptResult.ABORTED, AttemptResult.BUSY])
def test_bad_and_impatient_clients_take_no_backend_down(result):
    pools = make_pools(1.0)
    for _ in range(200):
        call(pools, 0.0, result)
    assert call(pools) == "b0"


def test_a_stream_that_breaks_counts_though_it_began_well():
    pools = make_pools(1.0)
    held = [pools.pick(exchange(), ROUTE, frozenset(), 0.0) for _ in range(6)]
    for placement in held:
        placement.first_byte(0.0)
    for placement in held[:3]:
        assert pools.state("m", 0.0) is PoolState.SERVING
        placement.finish(AttemptResult.CUT, 1.0, latency_s=1.0, retry_after_s=None)
    assert pools.state("m", 1.0) is PoolState.AWAY
    for placement in held[3:]:
        placement.finish(AttemptResult.OK, 1.0, latency_s=1.0, retry_after_s=None)


def test_429_is_a_pause_and_the_rest_of_the_pool_serves_meanwhile():
    pools = make_pools(1.0, 1.0)
    throttled = call(pools, 0.0, AttemptResult.THROTTLED, retry_after_s=7.0)
    assert {call(pools, 1.0) for _ in range(20)} == {"b0", "b1"} - {throttled}
    assert {call(pools, 7.0) for _ in range(20)} == {"b0", "b1"}
    alone = make_pools(1.0)
    call(alone, 0.0, AttemptResult.THROTTLED, retry_after_s=7.0)
    with pytest.raises(RequestDropped) as dropped:
        call(alone, 2.0)
    assert dropped.value.http_status == 429
    assert dropped.value.retry_after_s == 5.0
    assert not alone.will_serve("m", 1.9)
    assert alone.will_serve("m", 2.0), "a short pause is waited for"
    alone.add("m", BackendSettings("http://down:1", name="down", kind="vllm"))
    alone.set_phase("down", HealthPhase.DOWN)
    assert alone.refusal("m", 2.0).http_status == 429
    alone.drain("b0")
    assert alone.refusal("m", 2.0).http_status == 503
    assert not alone.will_serve("m", 2.0)


def test_a_full_backend_is_429_and_a_tenants_share_leaves_room_for_the_others():
    pools = make_pools(1.0, limits=PoolLimits(max_in_flight=4, tenant_share=0.5))
    held = [pools.pick(exchange(tenant="loud"), ROUTE, frozenset(), 0.0) for _ in range(2)]
    with pytest.raises(RequestDropped) as dropped:
        call(pools, tenant="loud")
    assert dropped.value.outcome is Outcome.REJECTED_CAPACITY
    held += [pools.pick(exchange(tenant="calm"), ROUTE, frozenset(), 0.0) for _ in range(2)]
    assert pools.state("m", 0.0) is PoolState.FULL
    with pytest.raises(RequestDropped, match="at its limit") as dropped:
        call(pools, tenant="third")
    assert dropped.value.http_status == 429
    held.pop(0).finish(AttemptResult.OK, 0.0, latency_s=0.1, retry_after_s=None)
    call(pools, tenant="third")
    for placement in held:
        placement.finish(AttemptResult.OK, 0.0, latency_s=0.1, retry_after_s=None)


def test_a_hung_backend_fills_its_own_bulkhead_only():
    pools = make_pools(1.0, 1.0, policy="round_robin", limits=PoolLimits(max_in_flight=3))
    held = [pools.pick(exchange(), ROUTE, frozenset(), 0.0) for _ in range(6)]
    free = [placement for placement in held if placement.upstream.backend_id == "b1"]
    for placement in free:
        placement.finish(AttemptResult.OK, 0.0, latency_s=0.1, retry_after_s=None)
    assert {call(pools) for _ in range(20)} == {"b1"}
    for placement in held:
        placement.finish(AttemptResult.ABORTED, 0.0, latency_s=0.1, retry_after_s=None)


def test_backends_set_apart_for_a_tenant():
    pools = make_pools(1.0, 1.0)
    pools.add("m", BackendSettings("http://own:1", name="own", tenants=("gold",)))
    assert {call(pools, tenant="gold") for _ in range(30)} == {"own"}
    assert {call(pools, tenant="other") for _ in range(30)} == {"b0", "b1"}
    pools.drain("own")
    with pytest.raises(RequestDropped):
        call(pools, tenant="gold")
    pools.remove("own")
    assert call(pools, tenant="gold") in {"b0", "b1"}


def test_a_drained_backend_gets_nothing_and_a_removed_one_finishes_what_it_has():
    gone = []
    pools = make_pools(1.0, 1.0, on_gone=lambda upstream: gone.append(upstream.backend_id))
    pools.drain("b0")
    assert {call(pools) for _ in range(10)} == {"b1"}
    pools.drain("b0", draining=False)
    assert {call(pools) for _ in range(10)} == {"b0", "b1"}
    held = pools.pick(exchange(), ROUTE, frozenset({"b0"}), 0.0)
    assert held.upstream.backend_id == "b1"
    pools.remove("b1")
    pools.remove("b0")
    assert gone == ["b0"]
    pools.add("m", BackendSettings("http://other:1", name="b1"))
    assert pools.num_leaving == 1
    held.first_byte(1.0)
    held.finish(AttemptResult.OK, 1.0, latency_s=1.0, retry_after_s=None)
    assert gone == ["b0", "b1"]
    assert pools.num_leaving == 0
    assert [status.in_flight for status in pools.statuses(1.0)] == [0]


def test_another_policy_or_split_does_not_lose_what_is_in_flight():
    pools = make_pools(1.0)
    held = pools.pick(exchange(), ROUTE, frozenset(), 0.0)
    pools.set_pool("m", make_policy("round_robin"))
    assert pools.replicas("m")[0].booked.requests == 1
    held.finish(AttemptResult.OK, 1.0, latency_s=1.0, retry_after_s=None)
    assert pools.replicas("m")[0].booked.requests == 0


def test_reconciling_keeps_what_is_unchanged_but_for_its_weight():
    pools = make_pools(1.0, 1.0, 1.0)
    for _ in range(20):
        if pools.state("m", 0.0) is PoolState.SERVING:
            call(pools, 0.0, AttemptResult.SERVER_ERROR)
    wanted = [
        BackendSettings("http://h0:1", name="b0", weight=5.0),
        BackendSettings("http://elsewhere:1", name="b1"),
        BackendSettings("http://h3:1", name="b3"),
    ]
    assert pools.reconcile("m", wanted) == (["b1", "b2"], ["b1", "b3"])
    states = {status.backend_id: (status.weight, status.breaker) for status in pools.statuses(0.0)}
    assert states == {
        "b0": (5.0, BreakerState.OPEN),
        "b1": (1.0, BreakerState.CLOSED),
        "b3": (1.0, BreakerState.CLOSED),
    }
    assert pools.settings["b0"].weight == 5.0
    pools.set_pool("n", make_policy("least_load"))
    with pytest.raises(ConfigError, match="'b3' exists already in pool 'm'"):
        pools.reconcile("n", wanted[2:])
    pools.remove_pool("m")
    assert list(pools.statuses(0.0)) == []


def test_a_probed_backend_takes_requests_when_a_probe_says_so():
    changed = []
    pools = make_pools(1.0, kind="vllm", on_change=changed.append)
    assert phases(pools) == {"b0": HealthPhase.UNKNOWN}
    assert pools.state("m", 0.0) is PoolState.LOADING
    for phase, state in (
        (HealthPhase.LOADING, PoolState.LOADING),
        (HealthPhase.READY, PoolState.SERVING),
        (HealthPhase.UNREADY, PoolState.EMPTY),
        (HealthPhase.DOWN, PoolState.EMPTY),
    ):
        changed.clear()
        pools.set_phase("b0", phase)
        assert changed == ["m"]
        assert pools.state("m", 0.0) is state
        if state is not PoolState.SERVING:
            with pytest.raises(RequestDropped) as dropped:
                call(pools)
            assert dropped.value.http_status == 503
    pools.set_phase("nobody", HealthPhase.READY)
    assert pools.state("nowhere", 0.0) is PoolState.EMPTY


def test_errors_while_a_model_loads_are_no_failures():
    pools = make_pools(1.0, kind="llama_cpp")
    pools.set_phase("b0", HealthPhase.READY)
    held = [pools.pick(exchange(), ROUTE, frozenset(), 0.0) for _ in range(20)]
    pools.set_phase("b0", HealthPhase.LOADING)
    for placement in held:
        placement.finish(AttemptResult.SERVER_ERROR, 1.0, latency_s=1.0, retry_after_s=None)
    pools.set_phase("b0", HealthPhase.READY)
    assert call(pools, 2.0) == "b0"


def test_a_model_not_in_memory_is_loaded_once_for_whoever_waits():
    watched = Watched()
    pools = make_pools(1.0, 1.0, kind="ollama", watcher=watched)
    assert watched.calls == [("added", "b0 as m"), ("added", "b1 as m")]
    pools.set_phase("b0", HealthPhase.ASLEEP)
    pools.set_phase("b1", HealthPhase.ASLEEP)
    watched.calls.clear()
    assert pools.state("m", 0.0) is PoolState.LOADING
    assert watched.calls == [], "looking does not wake anyone"
    assert all(pools.will_serve("m", 0.0) for _ in range(50))
    assert watched.calls == [("wake", "b0")]
    pools.set_phase("b0", HealthPhase.READY)
    assert not pools.will_serve("m", 0.0), "there is no need to wait"
    assert call(pools) == "b0"


def test_a_refused_connection_has_the_backend_looked_at():
    watched = Watched()
    pools = make_pools(1.0, watcher=watched)
    call(pools, 0.0, AttemptResult.CONNECT_ERROR)
    call(pools, 0.0, AttemptResult.CUT)
    pools.remove("b0")
    assert watched.calls == [("added", "b0 as m"), ("suspect", "b0"), ("removed", "b0")]


def test_reports_of_load_are_taken_in_and_forgotten():
    pools = make_pools(1.0)
    pools.take_report("b0", EngineReport(3, 2, 0.5, block_tokens=16, num_blocks=100, adapters=frozenset("a")), 1.0)
    replica = pools.replicas("m")[0]
    assert (replica.num_requests, replica.kv_fraction, replica.num_tokens) == (5, 0.5, 800)
    assert replica.info.kv_capacity_tokens == 1600
    assert replica.holds_adapter("a")
    status = next(iter(pools.statuses(4.0)))
    assert status.report_age_s == 3.0
    pools.take_report("b0", None, 5.0)
    assert replica.num_requests == 0
    pools.take_report("gone", EngineReport(1, 1), 5.0)


def test_an_estimate_longer_than_every_context_goes_to_the_longest():
    pools = make_pools()
    pools.add("m", BackendSettings("http://a:1", name="short", max_model_len=100))
    pools.add("m", BackendSettings("http://b:1", name="long", max_model_len=1000))
    assert {call(pools, prompt_tokens=5000) for _ in range(10)} == {"long"}
    assert {call(pools, prompt_tokens=99) for _ in range(10)} == {"short", "long"}


def test_calls_that_are_never_finished_are_found():
    pools = make_pools(1.0)
    lost = pools.pick(exchange(), ROUTE, frozenset(), 0.0)
    alive = pools.pick(exchange(), ROUTE, frozenset(), 0.0)
    alive.keep_alive(100.0)
    assert pools.reap(101.0, 60.0) == 1
    assert pools.replicas("m")[0].booked.requests == 1
    for placement in (lost, alive):
        placement.finish(AttemptResult.ABORTED, 102.0, latency_s=1.0, retry_after_s=None)
    assert pools.replicas("m")[0].booked.requests == 0


def test_names_that_are_taken_or_unknown_are_refused():
    pools = make_pools(1.0)
    with pytest.raises(ConfigError, match="'b0' exists already"):
        pools.add("m", BackendSettings("http://x:1", name="b0"))
    with pytest.raises(ConfigError, match="no pool 'x'"):
        pools.add("x", BackendSettings("http://x:1", name="new"))
    for change in (pools.remove, pools.drain, lambda name: pools.set_weight(name, 1.0)):
        with pytest.raises(ConfigError, match="no backend 'x'"):
            change("x")
    with pytest.raises(ConfigError, match="weight"):
        pools.set_weight("b0", math.nan)
    with pytest.raises(RequestDropped):
        pools.pick(exchange(), Route("x"), frozenset(), 0.0)


def test_the_breaker_is_as_configured():
    pools = make_pools(1.0, limits=PoolLimits(breaker=BreakerConfig(min_requests=2, open_s=3.0)))
    for _ in range(2):
        call(pools, 0.0, AttemptResult.CUT)
    assert pools.state("m", 2.9) is PoolState.AWAY
    assert pools.state("m", 3.0) is PoolState.SERVING
