import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.federated import (
    best_local_epochs,
    clients_to_select,
    expected_dropout_covered,
    iid_rounds,
    non_iid_rounds,
    round_bytes,
)
from argosy.errors import ConfigError


def test_rounds_of_equal_clients():
    result = iid_rounds(clients=10, local_epochs=5, epsilon=0.01)
    assert (result.rounds, result.client_epochs) == (200, 10_000)


def test_rounds_of_clients_that_differ():
    five = non_iid_rounds(clients=10, local_epochs=5, epsilon=0.01, beta=1.5)
    two = non_iid_rounds(clients=10, local_epochs=2, epsilon=0.01, beta=1.5)
    assert five.rounds == 5625
    assert (two.rounds, two.client_epochs) == (3125, 62_500)
    assert five.client_epochs / two.client_epochs == pytest.approx(4.5)
    assert best_local_epochs(clients=10, epsilon=0.01, beta=1.5) == 2


def test_over_selection_of_thirty_percent():
    assert clients_to_select(100) == 130
    assert clients_to_select(10) == 13
    assert clients_to_select(7, 1.0) == 7
    assert expected_dropout_covered() == pytest.approx(0.2308, rel=0.005)


def test_traffic_of_a_round_down_and_back():
    assert round_bytes(40e6, 10) == 800e6
    assert round_bytes(40e6, 10, update_bytes=2.5e6) == 425e6


@given(st.integers(1, 100), st.integers(1, 20), st.floats(0.001, 0.5), st.floats(0, 5))
def test_unequal_clients_without_difference_are_equal_ones(clients, epochs, epsilon, beta):
    equal = iid_rounds(clients=clients, local_epochs=epochs, epsilon=epsilon)
    assert non_iid_rounds(clients=clients, local_epochs=epochs, epsilon=epsilon, beta=0) == equal
    assert non_iid_rounds(clients=clients, local_epochs=epochs, epsilon=epsilon, beta=beta).rounds >= equal.rounds
    assert iid_rounds(clients=2 * clients, local_epochs=epochs, epsilon=epsilon).rounds <= equal.rounds


@given(st.integers(1, 10_000), st.floats(1, 3))
def test_selected_clients_cover_the_target_after_expected_drop_out(target, factor):
    selected = clients_to_select(target, factor)
    assert selected * (1 - expected_dropout_covered(factor)) >= target * (1 - 1e-9)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: iid_rounds(clients=0, local_epochs=1, epsilon=0.1), "clients"),
        (lambda: iid_rounds(clients=1, local_epochs=1, epsilon=0), "epsilon"),
        (lambda: iid_rounds(clients=1, local_epochs=1, epsilon=0.1, sigma=-1), "sigma"),
        (lambda: non_iid_rounds(clients=1, local_epochs=1, epsilon=0.1, beta=float("nan")), "beta"),
        (lambda: clients_to_select(10, 0.9), "over_selection"),
        (lambda: expected_dropout_covered(float("nan")), "over_selection"),
        (lambda: best_local_epochs(clients=1, epsilon=0.1, beta=1, most=0), "most"),
        (lambda: round_bytes(-1, 1), "model_bytes"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
