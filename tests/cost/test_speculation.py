import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.catalogue import find_device, find_model
from argosy.cost.collectives import Topology
from argosy.cost.deployment import Deployment
from argosy.cost.efficiency import Constants
from argosy.cost.parallel import ParallelPlan
from argosy.cost.speculation import break_even_acceptance, expected_tokens, speculative_round, speedup
from argosy.cost.step_time_model import StepTimeModel
from argosy.errors import ConfigError

H100 = find_device("H100 SXM")


def model(name):
    deployment = Deployment(find_model(name), ParallelPlan(tensor=4))
    return StepTimeModel(deployment, H100, Topology.of(H100), Constants())


TARGET, DRAFT = model("Llama-3.1-70B"), model("Llama-3.2-1B")


@pytest.mark.parametrize(("acceptance", "tokens"), [(0.9, 4.686), (0.7, 2.941), (0.5, 1.969)])
def test_tokens_of_a_round_of_five(acceptance, tokens):
    assert expected_tokens(acceptance, 5) == pytest.approx(tokens, abs=5e-4)


@pytest.mark.parametrize(("acceptance", "factor"), [(0.9, 3.748), (0.7, 2.353), (0.5, 1.575)])
def test_speedup_with_a_draft_twenty_times_faster(acceptance, factor):
    assert speedup(acceptance, 5, 1 / 20) == pytest.approx(factor, rel=5e-4)


@given(acceptance=st.floats(0, 1), drafts=st.integers(1, 20))
def test_tokens_are_the_sum_of_acceptance_powers(acceptance, drafts):
    assert expected_tokens(acceptance, drafts) == pytest.approx(sum(acceptance**k for k in range(drafts + 1)), rel=1e-6)


def test_a_round_is_its_drafts_and_one_verification():
    result = speculative_round(TARGET, DRAFT, sequences=4, context=1000, drafts=3, acceptance=0.7)
    assert result.draft_s == pytest.approx(float(DRAFT.decode(4, [1000, 1001, 1002]).latency_s.sum()))
    assert result.verify_s == pytest.approx(float(TARGET.decode(4, 1000, new=4).latency_s[0]))
    assert result.speedup == pytest.approx(result.plain_tpot_s * result.tokens / (result.draft_s + result.verify_s))


def test_speculation_pays_for_few_sequences_and_not_for_many():
    few, many = (
        speculative_round(TARGET, DRAFT, sequences=count, context=500, drafts=4, acceptance=0.6) for count in (1, 512)
    )
    assert few.speedup > 1.2
    assert many.speedup < 1


def test_break_even_is_where_the_speedup_is_one():
    result = speculative_round(TARGET, DRAFT, sequences=16, context=500, drafts=4, acceptance=0.6)
    acceptance = break_even_acceptance(result, 4)
    again = speculative_round(TARGET, DRAFT, sequences=16, context=500, drafts=4, acceptance=acceptance)
    assert again.speedup == pytest.approx(1.0, rel=1e-6)


def test_a_draft_as_slow_as_the_target_never_pays():
    result = speculative_round(TARGET, TARGET, sequences=16, context=500, drafts=4, acceptance=1.0)
    assert break_even_acceptance(result, 4) is None


@pytest.mark.parametrize(("acceptance", "drafts"), [(-0.1, 4), (1.1, 4), (float("nan"), 4), (0.5, 0)])
def test_nonsense(acceptance, drafts):
    with pytest.raises(ConfigError, match="must be"):
        expected_tokens(acceptance, drafts)
