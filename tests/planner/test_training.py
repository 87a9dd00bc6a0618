import dataclasses
import json
import math
import re

import pytest

from argosy.cost.activations import Recompute
from argosy.cost.catalogue import find_device, find_model
from argosy.cost.collectives import Topology
from argosy.cost.training_memory import peak_device_bytes
from argosy.cost.training_time import training_step_time
from argosy.cost.zero import ZeroStage
from argosy.errors import ConfigError
from argosy.planner.offers import DeviceOffer, resolve
from argosy.planner.training import plan_training
from argosy.planner.training_question import TrainingQuestion, TrainingSpace
from argosy.planner.training_search import precisions_of, search_training

OFFER = DeviceOffer("H100 SXM", count=16, low_usd_per_h=2.0, high_usd_per_h=4.0)


@pytest.fixture
def ask():
    def make(**changes: object) -> TrainingQuestion:
        question = TrainingQuestion(
            model="Llama-3.1-8B",
            tokens=2e10,
            batch_tokens=256 * 4096,
            sequence=4096,
            devices=(OFFER,),
            space=TrainingSpace(tensor=(1, 2, 4), pipeline=(1, 2), micro_batch=(1, 2)),
        )
        return dataclasses.replace(question, **changes)  # type: ignore[arg-type]

    return make


def test_plans_fit_and_are_ranked_by_dollars(ask):
    answer = plan_training(ask())
    assert answer.infeasible is None
    costs = [plan.usd.middle for plan in answer.plans]
    assert costs == sorted(costs)
    assert [plan.days for plan in answer.by_days] == sorted(plan.days for plan in answer.by_days)
    for plan in answer.plans:
        layout = plan.layout
        assert layout.devices == layout.tensor * layout.pipeline * layout.data * layout.context
        assert layout.micro_batch * layout.data * layout.accumulation == 256
        assert plan.memory.free_bytes >= 0
        assert 0 < plan.mfu <= plan.hfu < 1
        assert plan.days == pytest.approx(2e10 / plan.tokens_per_s / 86400)
        assert plan.usd.low == pytest.approx(plan.days * 24 * layout.devices * 2.0)
        assert plan.energy_kwh == pytest.approx(700 * layout.devices * plan.days * 24 / 1e3)
    assert answer.plans[0].worse_because == ""
    assert all(plan.worse_because for plan in answer.plans[1:])


def test_figures_are_those_of_the_cost_model(ask):
    question = ask()
    spec, device = find_model("Llama-3.1-8B"), find_device("H100 SXM")
    found = search_training(question, spec, (resolve(OFFER),))
    best = min(found.candidates, key=lambda candidate: candidate.usd(question.tokens))
    time = training_step_time(
        spec,
        best.plan,
        device,
        Topology.of(device),
        question.constants,
        precisions=precisions_of(question),
        overlap=question.overlap,
    )
    plan = plan_training(question).best
    assert plan.step_s == pytest.approx(time.step_s)
    assert plan.memory.total_bytes - plan.memory.free_bytes == pytest.approx(peak_device_bytes(spec, best.plan))


def test_a_deadline_is_met_or_named(ask):
    slow = plan_training(ask())
    days = slow.by_days[0].days
    assert all(plan.days <= days * 1.05 for plan in plan_training(ask(deadline_days=days * 1.05)).plans)
    answer = plan_training(ask(deadline_days=days * 0.8))
    assert "days" in answer.infeasible.reason or "deadline" in answer.infeasible.reason
    whats = [change.what for change in answer.infeasible.changes]
    reached = next(float(re.search(r"deadline of ([\d.]+) days", what)[1]) for what in whats if "deadline" in what)
    assert plan_training(ask(deadline_days=reached)).best is not None
    assert any("more H100 SXM" in what for what in whats)


def test_too_little_memory_says_how_much(ask):
    two = (dataclasses.replace(OFFER, count=1),)
    answer = plan_training(ask(devices=two))
    assert re.search(r"out of memory by (more than )?[\d.]+ GiB", answer.infeasible.reason)
    assert any("more H100 SXM" in change.what for change in answer.infeasible.changes)


def test_recomputation_only_where_memory_asks_for_it(ask):
    long = ask(batch_tokens=64 * 16384, sequence=16384, space=TrainingSpace(tensor=(1,), pipeline=(1,), micro_batch=(1,)))
    assert plan_training(ask()).best.layout.recompute == Recompute.NONE
    forced = dataclasses.replace(long, space=dataclasses.replace(long.space, devices=(8,), context=(1,)))
    assert plan_training(forced).best.layout.recompute == Recompute.FULL


def test_sharding_parameters_needs_less_memory(ask):
    space = TrainingSpace(tensor=(1,), pipeline=(1,), micro_batch=(1,), devices=(16,), recompute=(Recompute.FULL,))
    free = {}
    for stage in (ZeroStage.OPTIMIZER, ZeroStage.GRADIENTS, ZeroStage.PARAMETERS):
        free[stage] = plan_training(ask(space=dataclasses.replace(space, zero=(stage,)))).best.memory.free_bytes
    assert free[ZeroStage.OPTIMIZER] < free[ZeroStage.GRADIENTS] < free[ZeroStage.PARAMETERS]


def test_budget(ask):
    cost = plan_training(ask()).best.usd.high
    assert plan_training(ask(max_usd=cost * 1.01)).best is not None
    answer = plan_training(ask(max_usd=cost * 0.5))
    assert "budget" in answer.infeasible.reason
    assert any("budget" in change.what for change in answer.infeasible.changes)


def test_answers_are_plain_json(ask):
    data = json.loads(json.dumps(plan_training(ask()).to_json()))
    assert data["plans"][0]["layout"]["device"] == "H100 SXM"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": 0}, "tokens"),
        ({"tokens": math.nan}, "tokens"),
        ({"tokens": -1e9}, "tokens"),
        ({"batch_tokens": 5000}, "multiple of sequence"),
        ({"batch_tokens": 0}, "batch_tokens"),
        ({"sequence": 0}, "sequence"),
        ({"tokens": 1000.0}, "exceeds"),
        ({"deadline_days": -1.0}, "deadline_days"),
        ({"deadline_days": math.nan}, "deadline_days"),
        ({"max_usd": 0.0}, "max_usd"),
        ({"devices": ()}, "devices"),
        ({"model": "Llama-9"}, "Llama-9"),
    ],
)
def test_nonsense_is_one_clear_line(ask, change, words: str):
    with pytest.raises(ConfigError, match=words) as caught:
        plan_training(ask(**change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"tensor": ()}, {"micro_batch": (0,)}, {"zero": ()}, {"devices": (-8,)}])
def test_impossible_spaces_are_refused(change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        TrainingSpace(**change)
