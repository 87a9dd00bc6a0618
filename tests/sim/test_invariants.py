"""The ledger notices every law that a report can break."""

from __future__ import annotations

from dataclasses import replace

import pytest

from argosy.engine.core.invariants import InvariantViolated
from argosy.sim.invariants import Ledger
from argosy.sim.outcome import Outcome, RequestOutcome, StepSpan

SPAN = StepSpan(1, 0.0, (1.0,), 1, 0, 100, 100, 0, 1, 1, 0, 0, 0)


@pytest.fixture
def book(sim):
    """A ledger, an idle replica, a request taken at 0 s whose first token came at 1 s, and its end at 2 s."""
    bench = sim.bench()
    ledger, one = Ledger(), sim.request("a", output=3)
    ledger.on_submit(bench.replica, one)
    ledger.on_first_token(bench.replica, one, 1.0)
    return ledger, bench.replica, RequestOutcome(one, "r0", Outcome.FINISHED, 0.0, 0.5, 1.0, 2.0, 3, 0, 0)


def test_a_lawful_life_passes(book):
    ledger, replica, outcome = book
    ledger.on_steps(replica, SPAN._replace(num_generated_tokens=3))
    ledger.on_finish(replica, outcome)
    ledger.check_end(replica)
    assert ledger.num_ended == 1


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"first_token_s": 0.9}, "first token was told of"),
        ({"num_output_tokens": 2}, "an answer is whole"),
        ({"num_output_tokens": 0, "outcome": Outcome.ABORTED}, "tokens begin with the first"),
        ({"finished_s": 0.75}, "times are in order"),
        ({"first_scheduled_s": 1.5}, "times are in order"),
        ({"submitted_s": 0.6}, "times are in order"),
    ],
)
def test_an_unlawful_end_is_found(book, changes, law):
    ledger, replica, outcome = book
    with pytest.raises(InvariantViolated, match=law):
        ledger.on_finish(replica, replace(outcome, **changes))


def test_ends_and_first_tokens_come_once_and_to_who_is_alive(book, sim):
    ledger, replica, outcome = book
    with pytest.raises(InvariantViolated, match="one first token"):
        ledger.on_first_token(replica, outcome.request, 1.5)
    with pytest.raises(InvariantViolated, match="taken once"):
        ledger.on_submit(replica, outcome.request)
    with pytest.raises(InvariantViolated, match="every request has ended"):
        ledger.check_end(replica)
    ledger.on_finish(replica, outcome)
    with pytest.raises(InvariantViolated, match="ends once"):
        ledger.on_finish(replica, outcome)
    with pytest.raises(InvariantViolated, match="requests alive"):
        ledger.on_first_token(replica, outcome.request, 3.0)
    with pytest.raises(InvariantViolated, match="tokens are conserved"):
        ledger.check_end(replica)


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"first_step": 1}, "numbered in order"),
        ({"start_s": 0.5, "ends_s": (2.0,)}, "begins after the last"),
        ({"ends_s": (2.0, 1.5)}, "clocks are monotone"),
        ({"ends_s": ()}, "clocks are monotone"),
        ({"num_decoding": 2}, "who decodes gets a token"),
        ({"kv_blocks_held": 401}, "blocks are conserved"),
    ],
)
def test_unlawful_steps_are_found(book, changes, law):
    ledger, replica, _ = book
    ledger.on_steps(replica, SPAN)
    lawful = SPAN._replace(first_step=2, start_s=1.0, ends_s=(2.0,))
    Ledger().on_steps(replica, lawful)
    with pytest.raises(InvariantViolated, match=law):
        ledger.on_steps(replica, lawful._replace(**changes))


def test_what_is_held_at_the_end_is_found(sim):
    bench = sim.bench()
    bench.feed([sim.request("a", output=100)])
    bench.loop.run(0.3)
    ledger = Ledger()
    with pytest.raises(InvariantViolated, match="in flight"):
        ledger.check_end(bench.replica)
