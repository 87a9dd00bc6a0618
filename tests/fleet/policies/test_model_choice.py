import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError, UnknownModel
from argosy.fleet.policies.model_choice import FallbackReason, ModelCard, ModelCatalogue, ModelRequest, Rule, RulePicker

ERROR, OVERLOAD, TIMEOUT, TOO_LONG = (
    FallbackReason.ERROR,
    FallbackReason.OVERLOAD,
    FallbackReason.TIMEOUT,
    FallbackReason.CONTEXT_LENGTH,
)


def chosen(catalogue: ModelCatalogue, model: str, **fields) -> str:
    return catalogue.choose(ModelRequest(model, **fields)).name


def test_names_and_aliases_lead_to_a_model_and_a_keys_own_aliases_come_first():
    catalogue = ModelCatalogue([ModelCard("small", ("gpt", "tiny")), ModelCard("big")])
    assert [chosen(catalogue, name) for name in ("small", "gpt", "tiny", "big")] == ["small", "small", "small", "big"]
    assert chosen(catalogue, "gpt", aliases={"gpt": "big"}) == "big"


@pytest.mark.parametrize("model", ["none", ""])
def test_a_model_that_there_is_not_is_refused(model):
    with pytest.raises(UnknownModel, match="does not exist or this key may not use it"):
        chosen(ModelCatalogue([ModelCard("small")]), model)


def test_a_model_that_a_key_may_not_use_is_refused_as_if_it_did_not_exist():
    catalogue = ModelCatalogue([ModelCard("small", ("s",)), ModelCard("big", ("b",))])
    assert chosen(catalogue, "s", allowed=frozenset({"small"})) == "small"
    assert chosen(catalogue, "s", allowed=frozenset({"s"})) == "small"
    for name in ("big", "b"):
        with pytest.raises(UnknownModel, match="does not exist or this key may not use it"):
            chosen(catalogue, name, allowed=frozenset({"small"}))
    assert catalogue.visible(frozenset({"small", "b"})) == ["small", "s", "b"]
    assert catalogue.visible(None) == ["small", "s", "big", "b"]


@pytest.mark.parametrize(
    ("rule", "fields", "holds"),
    [
        (Rule("x", min_prompt_tokens=100), {"prompt_tokens": 100}, True),
        (Rule("x", min_prompt_tokens=100), {"prompt_tokens": 99}, False),
        (Rule("x", max_prompt_tokens=100), {"prompt_tokens": 100}, True),
        (Rule("x", max_prompt_tokens=100), {"prompt_tokens": 101}, False),
        (Rule("x", tiers=frozenset({"free"})), {"tier": "free"}, True),
        (Rule("x", tiers=frozenset({"free"})), {"tier": "gold"}, False),
        (Rule("x", header=("X-Fast", "yes")), {"headers": {"x-fast": "yes"}}, True),
        (Rule("x", header=("X-Fast", "yes")), {"headers": {"x-fast": "no"}}, False),
        (Rule("x", header=("x-fast", None)), {"headers": {"x-fast": ""}}, True),
        (Rule("x", header=("x-fast", None)), {}, False),
        (Rule("x", keywords=("Prove", "theorem")), {"text": "please PROVE it"}, True),
        (Rule("x", keywords=("STRASSE",)), {"text": "die Straße"}, True),
        (Rule("x", keywords=("prove",)), {"text": "just say it"}, False),
        (Rule("x", keywords=("prove",), tiers=frozenset({"gold"})), {"text": "prove it", "tier": "free"}, False),
    ],
)
def test_a_rule_holds_if_all_its_conditions_do(rule, fields, holds):
    assert rule.holds(ModelRequest("m", **fields)) is holds


def test_the_first_rule_that_holds_decides_and_those_of_its_model_follow():
    catalogue = ModelCatalogue(
        [
            ModelCard("auto", rules=(Rule("code", keywords=("def ",)), Rule("small", max_prompt_tokens=10), Rule("big"))),
            ModelCard("code", rules=(Rule("big", min_prompt_tokens=100),)),
            ModelCard("small"),
            ModelCard("big"),
        ]
    )
    assert chosen(catalogue, "auto", prompt_tokens=5) == "small"
    assert chosen(catalogue, "auto", prompt_tokens=50) == "big"
    assert chosen(catalogue, "auto", prompt_tokens=5, text="def f") == "code"
    assert chosen(catalogue, "auto", prompt_tokens=100, text="def f") == "big"
    assert catalogue.looks_at_text
    assert catalogue.looks_at_length


def test_rules_that_lead_in_a_circle_end():
    cards = [ModelCard(name, rules=(Rule(to),)) for name, to in (("a", "b"), ("b", "c"), ("c", "a"))]
    assert chosen(ModelCatalogue(cards), "a") == "c"
    assert chosen(ModelCatalogue(cards), "b") == "a"
    assert not ModelCatalogue(cards).looks_at_text


def test_another_picker_may_come_before_the_rules():
    class Classifier:
        def pick(self, request, card):
            return {"hard": "big", "odd": "no such model"}.get(request.text)

    cards = [ModelCard("auto", rules=(Rule("small"),)), ModelCard("small"), ModelCard("big")]
    catalogue = ModelCatalogue(cards, (Classifier(), RulePicker()))
    assert chosen(catalogue, "auto", text="hard") == "big"
    assert chosen(catalogue, "auto", text="easy") == "small"
    assert chosen(catalogue, "auto", text="odd") == "small"


def chain(catalogue: ModelCatalogue, first: str, *reasons: FallbackReason, prompt_tokens: int = 0) -> list[str]:
    tried = [first]
    for reason in reasons:
        card = catalogue.fallback(tried, reason, prompt_tokens)
        if card is None:
            break
        tried.append(card.name)
    return tried


def test_fallbacks_come_in_order_those_of_the_last_model_first():
    catalogue = ModelCatalogue(
        [ModelCard("a", fallbacks=("b", "c")), ModelCard("b", ("bee",), fallbacks=("d",)), ModelCard("c"), ModelCard("d")]
    )
    assert chain(catalogue, "a", ERROR, ERROR, ERROR, ERROR) == ["a", "b", "d", "c"]


def test_models_that_fall_back_on_each_other_are_each_tried_once():
    catalogue = ModelCatalogue([ModelCard("a", ("x",), fallbacks=("b",)), ModelCard("b", fallbacks=("x", "a"))])
    assert chain(catalogue, "a", *[ERROR] * 9) == ["a", "b"]
    assert chain(catalogue, "b", *[ERROR] * 9) == ["b", "a"]


def test_a_model_falls_back_for_its_reasons_only():
    cards = [
        ModelCard("a", fallbacks=("b",), fallback_on=frozenset({TIMEOUT})),
        ModelCard("b", fallbacks=("c",)),
        ModelCard("c"),
    ]
    catalogue = ModelCatalogue(cards)
    assert chain(catalogue, "a", OVERLOAD) == ["a"]
    assert chain(catalogue, "a", TIMEOUT, OVERLOAD) == ["a", "b", "c"]


def test_after_a_context_that_was_too_short_only_longer_ones_are_tried():
    cards = [
        ModelCard("a", fallbacks=("same", "long", "unknown"), max_model_len=4096),
        ModelCard("same", max_model_len=4096),
        ModelCard("long", max_model_len=32768),
        ModelCard("unknown"),
    ]
    catalogue = ModelCatalogue(cards)
    assert chain(catalogue, "a", TOO_LONG, TOO_LONG) == ["a", "long", "unknown"]
    assert chain(catalogue, "a", TOO_LONG, prompt_tokens=32768) == ["a", "unknown"]
    assert chain(catalogue, "a", ERROR, prompt_tokens=10_000) == ["a", "long"]


def test_a_request_falls_back_so_many_times_and_no_more():
    cards = [ModelCard(f"m{i}", fallbacks=(f"m{i + 1}",)) for i in range(9)] + [ModelCard("m9")]
    assert len(chain(ModelCatalogue(cards, max_fallbacks=3), "m0", *[ERROR] * 9)) == 4


@given(
    fallbacks=st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=6, max_size=6),
    rules=st.lists(st.none() | st.integers(0, 5), min_size=6, max_size=6),
    reasons=st.lists(st.sampled_from(list(FallbackReason)), min_size=10, max_size=10),
)
def test_every_choice_and_every_chain_ends_without_a_model_twice(fallbacks, rules, reasons):
    cards = [
        ModelCard(
            str(i),
            fallbacks=tuple(str(to) for to in fallbacks[i]),
            rules=() if rules[i] is None else (Rule(str(rules[i])),),
        )
        for i in range(6)
    ]
    catalogue = ModelCatalogue(cards, max_fallbacks=100)
    tried = chain(catalogue, chosen(catalogue, "0"), *reasons)
    assert len(tried) == len(set(tried)) <= 6


@pytest.mark.parametrize(
    ("cards", "words"),
    [
        ([ModelCard("a"), ModelCard("a")], "taken twice"),
        ([ModelCard("a", ("b",)), ModelCard("b")], "taken twice"),
        ([ModelCard("a", fallbacks=("b",))], "refers to 'b'"),
        ([ModelCard("a", rules=(Rule("b"),))], "refers to 'b'"),
    ],
)
def test_models_that_contradict_each_other_are_refused(cards, words):
    with pytest.raises(ConfigError, match=words):
        ModelCatalogue(cards)
