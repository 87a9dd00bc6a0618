"""Rounds, work and traffic of federated averaging (McMahan et al. 2017), by the order of its convergence bounds.

Constants of the bounds are taken as one: the numbers compare settings (clients, local epochs, heterogeneity), they do not
predict a task. Li et al. 2020, "On the Convergence of FedAvg on Non-IID Data", has the terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from argosy.cost.checks import at_least_one, not_negative, positive
from argosy.errors import ConfigError

OVER_SELECTION = 1.3  # Bonawitz et al. 2019, "Towards Federated Learning at Scale", section 4.2


@dataclass(frozen=True, slots=True)
class FederatedRounds:
    """Rounds to reach an error, and client-epochs spent on them."""

    rounds: int
    client_epochs: int


def _rounds(value: float, clients: int, epochs: int) -> FederatedRounds:
    rounds = max(1, math.ceil(value * (1 - 1e-12)))  # a quotient's last bits do not cost a round
    return FederatedRounds(rounds, rounds * clients * epochs)


def iid_rounds(*, clients: int, local_epochs: int, epsilon: float, sigma: float = 1.0) -> FederatedRounds:
    """sigma^2 / (C E epsilon^2): noise averaged over clients and local epochs.

    The worked figure of 200 rounds at C = 10, E = 5, epsilon = 0.01 has sigma = 1.

    Raises:
        ConfigError: an input that cannot be.
    """
    at_least_one(clients=clients, local_epochs=local_epochs)
    positive(epsilon=epsilon, sigma=sigma)
    return _rounds(sigma**2 / (clients * local_epochs * epsilon**2), clients, local_epochs)


def non_iid_rounds(*, clients: int, local_epochs: int, epsilon: float, beta: float) -> FederatedRounds:
    """max((1 + beta)^2 / (C E epsilon^2), beta^2 E^2 / epsilon): clients that differ drift apart with every local epoch.

    Raises:
        ConfigError: an input that cannot be.
    """
    at_least_one(clients=clients, local_epochs=local_epochs)
    positive(epsilon=epsilon)
    not_negative(beta=beta)
    noise = (1 + beta) ** 2 / (clients * local_epochs * epsilon**2)
    drift = beta**2 * local_epochs**2 / epsilon
    return _rounds(max(noise, drift), clients, local_epochs)


def best_local_epochs(*, clients: int, epsilon: float, beta: float, most: int = 64) -> int:
    """Local epochs with the fewest client-epochs in all under `non_iid_rounds`; of equals the fewest rounds.

    Raises:
        ConfigError: an input that cannot be.
    """
    at_least_one(most=most)

    def work(epochs: int) -> tuple[int, int]:
        result = non_iid_rounds(clients=clients, local_epochs=epochs, epsilon=epsilon, beta=beta)
        return result.client_epochs, result.rounds

    return min(range(1, most + 1), key=work)


def clients_to_select(target: int, over_selection: float = OVER_SELECTION) -> int:
    """ceil(target x factor): clients asked so that enough report in time.

    Raises:
        ConfigError: a target below one, or a factor below 1.
    """
    at_least_one(target=target)
    positive(over_selection=over_selection)
    if over_selection < 1:
        raise ConfigError(f"over_selection must be at least 1, got {over_selection}")
    return math.ceil(target * over_selection * (1 - 1e-12))


def expected_dropout_covered(over_selection: float = OVER_SELECTION) -> float:
    """Share of selected clients that may drop out before a round falls short: 1 - 1/factor.

    Raises:
        ConfigError: a factor below 1.
    """
    if not over_selection >= 1:
        raise ConfigError(f"over_selection must be at least 1, got {over_selection}")
    return 1 - 1 / over_selection


def round_bytes(model_bytes: float, clients: int, *, update_bytes: float | None = None) -> float:
    """Bytes over the network in one round: the model to every client, an update back (as large, if not compressed).

    Raises:
        ConfigError: an input that cannot be.
    """
    at_least_one(clients=clients)
    back = model_bytes if update_bytes is None else update_bytes
    not_negative(model_bytes=model_bytes, update_bytes=back)
    return clients * (model_bytes + back)
