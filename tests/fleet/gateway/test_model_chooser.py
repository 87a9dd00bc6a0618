from dataclasses import dataclass, field

import orjson
import pytest

from argosy.engine.core.clock import ManualClock
from argosy.errors import ConfigError, UnknownModel
from argosy.fleet.gateway.config_models import (
    BackendSettings,
    DegradationSettings,
    HeaderMatch,
    ModelSettings,
    RuleSettings,
)
from argosy.fleet.gateway.endpoints import ENDPOINTS, read_body
from argosy.fleet.gateway.exchange import AttemptResult, Exchange, Principal
from argosy.fleet.gateway.model_chooser import ConfiguredModels, last_user_text
from argosy.fleet.policies.routing.replica_state import LoadReport, ReplicaInfo, ReplicaState


@dataclass
class Pools:
    """Backends that hold so much of their KV pools, by model."""

    kv_used: dict[str, float] = field(default_factory=dict)

    def replicas(self, pool: str) -> list[ReplicaState]:
        replica = ReplicaState(ReplicaInfo(pool))
        replica.take_report(LoadReport(0.0, kv_used_fraction=self.kv_used.get(pool, 0.0)))
        return [replica]


def model(name: str, *, kind: str = "openai", max_model_len: int | None = None, **fields) -> ModelSettings:
    backend = BackendSettings(f"http://{name}:1", kind=kind, max_model_len=max_model_len)
    return ModelSettings(name, (backend,), **fields)


def ask(model_name: str, *, path: str = "/v1/chat/completions", headers=None, principal=None, **members) -> Exchange:
    body = orjson.dumps({"model": model_name, **members})
    exchange = Exchange(ENDPOINTS[path], "POST", path, headers or {}, body, "req", "gw-1", 0.0)
    exchange.principal = principal or Principal("k1", "org1")
    read_body(exchange)
    return exchange


def chooser(*models: ModelSettings, pools: Pools | None = None, clock: ManualClock | None = None) -> ConfiguredModels:
    return ConfiguredModels(models, pools or Pools(), (clock or ManualClock()).now_s)


def user(text: str) -> list[dict]:
    return [{"role": "system", "content": "prove"}, {"role": "user", "content": text}, {"role": "assistant", "content": "."}]


def test_every_condition_of_a_rule_is_looked_at():
    rules = (
        RuleSettings("long", min_prompt_tokens=100),
        RuleSettings("free", tiers=("free",)),
        RuleSettings("fast", header=HeaderMatch("X-Fast", "1")),
        RuleSettings("maths", keywords=("prove",)),
    )
    models = chooser(model("auto", rules=rules), *(model(name) for name in ("long", "free", "fast", "maths")))

    def pool(**fields) -> str:
        return models.choose(ask("auto", **fields)).pool

    assert pool(messages=user("hello")) == "auto"
    assert pool(messages=user("a " * 300)) == "long"
    assert pool(messages=user("hello"), principal=Principal("k1", "org1", tier="free")) == "free"
    assert pool(messages=user("hello"), headers={b"x-fast": b"1"}) == "fast"
    assert pool(messages=user("PROVE it")) == "maths"
    assert pool(messages=user("a " * 300 + "prove"), headers={b"x-fast": b"1"}) == "long", "the first that holds"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"messages": user("hello")}, "hello"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}, "b"]}]}, "a\nb"),
        ({"prompt": "once"}, "once"),
        ({"prompt": ["once", "twice"]}, "once\ntwice"),
        ({"prompt": [1, 2, 3]}, ""),
        ({"input": [{"role": "user", "content": "hi"}]}, "hi"),
        ({"input": "text"}, "text"),
        ({"messages": [{"role": "user"}]}, ""),
        ({}, ""),
    ],
)
def test_what_the_user_said_last_is_found_in_every_kind_of_request(document, text):
    assert last_user_text(document) == text


def test_a_key_sees_its_own_models_and_aliases_only():
    models = chooser(model("small", aliases=("s",)), model("big"))
    key = Principal("k1", "org1", models=frozenset({"small"}), aliases={"gpt-4o": "small"})
    assert models.visible_models(key) == ["gpt-4o", "small", "s"]
    assert models.choose(ask("s", principal=key)).pool == "small"
    with pytest.raises(UnknownModel):
        models.choose(ask("big", principal=key))


@pytest.mark.parametrize(
    ("result", "too_long", "reason"),
    [
        (AttemptResult.FIRST_BYTE_TIMEOUT, False, "timeout"),
        (AttemptResult.BUSY, False, "overload"),
        (AttemptResult.THROTTLED, False, "overload"),
        (AttemptResult.SERVER_ERROR, False, "error"),
        (AttemptResult.CONNECT_ERROR, False, "error"),
        (AttemptResult.CLIENT_ERROR, True, "context_length"),
    ],
)
def test_each_failure_falls_back_for_its_own_reason(result, too_long, reason):
    for reasons, expected in (
        ((reason,), "b"),
        (tuple({"timeout", "overload", "error", "context_length"} - {reason}), None),
    ):
        models = chooser(model("a", fallbacks=("b",), fallback_on=reasons), model("b"))
        exchange = ask("a")
        route = models.fallback(exchange, models.choose(exchange), result, context_too_long=too_long)
        assert (None if route is None else route.pool) == expected


@pytest.mark.parametrize("result", [AttemptResult.CLIENT_ERROR, AttemptResult.ABORTED, AttemptResult.OK])
def test_what_is_the_clients_doing_is_no_reason_to_fall_back(result):
    models = chooser(model("a", fallbacks=("b",)), model("b"))
    exchange = ask("a")
    assert models.fallback(exchange, models.choose(exchange), result, context_too_long=False) is None


def test_a_chain_of_fallbacks_ends():
    models = chooser(model("a", fallbacks=("b",)), model("b", fallbacks=("a", "c")), model("c", fallbacks=("a",)))
    exchange = ask("a")
    route, pools = models.choose(exchange), []
    while route is not None:
        pools.append(route.pool)
        route = models.fallback(exchange, route, AttemptResult.BUSY, context_too_long=False)
    assert pools == ["a", "b", "c"]


def test_a_prompt_too_long_goes_where_it_fits():
    models = chooser(
        model("a", fallbacks=("same", "long"), max_model_len=100),
        model("same", max_model_len=100),
        model("long", max_model_len=1000),
    )
    exchange = ask("a")
    route = models.fallback(exchange, models.choose(exchange), AttemptResult.CLIENT_ERROR, context_too_long=True)
    assert route is not None
    assert route.pool == "long"


# --- degradation -----------------------------------------------------------------------------------------------------

SHORTER = DegradationSettings(shorter_context_above=0.8, max_output_tokens=64)


def degraded(members: dict, **fields):
    """Edits, bound and header of a request to a model whose answers are cut to 64 tokens."""
    exchange = ask("m", **fields, **members)
    route = chooser(model("m", degradation=SHORTER), pools=Pools({"m": 0.9})).choose(exchange)
    return route.edits, exchange.max_output_tokens, exchange.response_headers.get("x-argosy-degraded")


@pytest.mark.parametrize(
    ("members", "edits", "bound"),
    [
        ({}, {"max_tokens": b"64"}, 64),
        ({"max_tokens": 100}, {"max_tokens": b"64"}, 64),
        ({"max_completion_tokens": 100}, {"max_completion_tokens": b"64"}, 64),
        ({"max_tokens": 100, "max_completion_tokens": 50}, {"max_tokens": b"64"}, 64),
    ],
)
def test_under_pressure_answers_are_cut_and_the_client_is_told(members, edits, bound):
    assert degraded(members) == (edits, bound, "shorter_context")


@pytest.mark.parametrize("members", [{"max_tokens": 10}, {"min_tokens": 100, "max_tokens": 200}])
def test_an_answer_that_is_short_enough_or_must_be_long_is_left_alone(members):
    assert degraded(members) == ({}, members["max_tokens"], None)


def test_the_bound_is_written_as_the_endpoint_has_it():
    assert degraded({"input": "x"}, path="/v1/responses")[0] == {"max_output_tokens": b"64"}
    assert degraded({"prompt": "x"}, path="/v1/completions")[0] == {"max_tokens": b"64"}
    assert degraded({"input": "x"}, path="/v1/embeddings") == ({}, None, None)


def test_a_model_that_did_not_ask_for_it_gives_up_nothing():
    exchange = ask("m", max_tokens=100)
    assert chooser(model("m"), pools=Pools({"m": 1.0})).choose(exchange).edits == {}


def test_a_smaller_model_stands_in_and_gives_up_what_is_its_own():
    pools = Pools({"big": 0.99})
    small = DegradationSettings(shorter_context_above=0.8, max_output_tokens=64)
    models = chooser(
        model("big", degradation=DegradationSettings(smaller_model_above=0.9, smaller_model="s")),
        model("small", aliases=("s",), degradation=small),
        pools=pools,
    )
    exchange = ask("big", max_tokens=100)
    assert models.choose(exchange).pool == "small"
    assert exchange.response_headers["x-argosy-degraded"] == "smaller_model"
    pools.kv_used["small"] = 0.9
    exchange = ask("big", max_tokens=100)
    assert models.choose(exchange).edits == {"max_tokens": b"64"}
    assert exchange.response_headers["x-argosy-degraded"] == "shorter_context,smaller_model"


def test_models_that_stand_in_for_each_other_do_so_once():
    def gives_way_to(other: str) -> DegradationSettings:
        return DegradationSettings(smaller_model_above=0.9, smaller_model=other)

    models = chooser(
        model("a", degradation=gives_way_to("b")),
        model("b", degradation=gives_way_to("a")),
        pools=Pools({"a": 1.0, "b": 1.0}),
    )
    assert models.choose(ask("a")).pool == "b"


def test_pressure_that_falls_a_little_changes_nothing_until_it_has_been_low_for_a_while():
    pools, clock = Pools({"m": 0.81}), ManualClock()
    models = chooser(model("m", degradation=SHORTER), pools=pools, clock=clock)

    def is_cut() -> bool:
        return bool(models.choose(ask("m")).edits)

    assert is_cut()
    pools.kv_used["m"] = 0.78
    clock.advance(60.0)
    assert is_cut()
    pools.kv_used["m"] = 0.5
    assert is_cut()
    clock.advance(5.0)
    assert not is_cut()
    assert models.active("m") == frozenset()


def test_only_an_engine_that_takes_the_length_of_drafts_from_the_request_is_asked_not_to_speculate():
    no_drafts = DegradationSettings(no_speculation_above=0.8)
    exchange = ask("m")
    route = chooser(model("m", kind="llama_cpp", degradation=no_drafts), pools=Pools({"m": 0.9})).choose(exchange)
    assert route.edits == {"speculative.n_max": b"0"}
    assert exchange.response_headers["x-argosy-degraded"] == "no_speculation"
    with pytest.raises(ConfigError, match="kind 'vllm'"):
        chooser(model("m", kind="vllm", degradation=no_drafts))
