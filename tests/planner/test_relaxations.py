import dataclasses
import re

import pytest

from argosy.cost.formats import WeightFormat
from argosy.planner.offers import DeviceOffer
from argosy.planner.serving import plan_serving
from argosy.planner.serving_question import SearchSpace, ServingQuestion, Slo
from argosy.planner.traffic import Traffic

SPACE = SearchSpace(tensor=(1, 2), pipeline=(1,), weights=(WeightFormat.BASE,), chunk_tokens=(1024,), disaggregate=False)


@pytest.fixture
def large(ask) -> ServingQuestion:
    """70 billion parameters in 16 bit on one device of 80 GiB."""
    return ask(
        model="Llama-3.1-70B",
        traffic=Traffic.of(0.5, 1000, 200),
        devices=(DeviceOffer("H100 SXM", count=1, low_usd_per_h=4, high_usd_per_h=4),),
        space=SPACE,
    )


def test_too_little_memory_says_how_much_and_what_would_do(large: ServingQuestion):
    answer = plan_serving(large)
    assert answer.plans == ()
    found = re.search(r"out of memory by ([\d.]+) GiB .* weights ([\d.]+)", answer.infeasible.reason)
    assert found is not None
    assert float(found[2]) == pytest.approx(70.554e9 * 2 / 2**30, rel=1e-3)
    whats = [change.what for change in answer.infeasible.changes]
    assert "fp8 weights" in whats
    assert "int4 weight-only weights" in whats
    assert "1 more H100 SXM device" in whats


def test_each_change_makes_a_plan(large: ServingQuestion):
    fp8 = dataclasses.replace(large, space=dataclasses.replace(SPACE, weights=(WeightFormat.FP8,)))
    two = dataclasses.replace(large, devices=(dataclasses.replace(large.devices[0], count=2),))
    assert plan_serving(fp8).best is not None
    assert plan_serving(two).best is not None


def test_a_target_out_of_reach_names_the_one_that_is_not(ask):
    devices = (DeviceOffer("H100 SXM", count=2, low_usd_per_h=4, high_usd_per_h=4),)
    question = ask(slo=Slo.of(1000, 1), space=SPACE, devices=devices, traffic=Traffic.of(2, 1000, 200))
    answer = plan_serving(question)
    assert "TPOT" in answer.infeasible.reason
    change = next(change for change in answer.infeasible.changes if change.what.startswith("TPOT target"))
    reached_ms = float(re.search(r"target ([\d.]+) ms instead of 1 ", change.what)[1])
    assert plan_serving(dataclasses.replace(question, slo=Slo.of(1000, reached_ms))).best is not None
    assert plan_serving(dataclasses.replace(question, slo=Slo.of(1000, reached_ms * 0.97))).best is None


def test_a_small_budget_names_the_one_that_is_enough(ask):
    answer = plan_serving(ask(space=SPACE, max_usd_per_h=1.0))
    assert "costs more than $1/h" in answer.infeasible.reason
    change = next(change for change in answer.infeasible.changes if "budget" in change.what)
    enough = float(re.search(r"\$([\d.]+)/h", change.what)[1])
    assert plan_serving(ask(space=SPACE, max_usd_per_h=enough)).best is not None


def test_too_much_traffic_names_what_the_devices_carry(ask):
    devices = (DeviceOffer("H100 SXM", count=1, low_usd_per_h=4, high_usd_per_h=4),)
    question = ask(space=SPACE, devices=devices, traffic=Traffic.of(500, 1000, 200))
    answer = plan_serving(question)
    assert "keeps up with 500 requests/s" in answer.infeasible.reason
    changes = {change.what for change in answer.infeasible.changes}
    rate = next(float(what.split()[0]) for what in changes if "requests/s" in what)
    traffic = dataclasses.replace(question.traffic, requests_per_s=rate * 0.99)
    assert plan_serving(dataclasses.replace(question, traffic=traffic)).best is not None
    assert any("more H100 SXM devices" in what for what in changes)
