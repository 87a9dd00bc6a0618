from collections.abc import Callable

import pytest

from argosy.errors import ConfigError
from argosy.sim.workload.distributions import Fixed
from argosy.sim.workload.requests import Conversation, RequestShape, SystemPrompts


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SystemPrompts(0, Fixed(1)), "count"),
        (lambda: SystemPrompts(1_000_001, Fixed(1)), "at most 1000000"),
        (lambda: SystemPrompts(1, Fixed(1), zipf=-1), "zipf"),
        (lambda: Conversation(Fixed(1), Fixed(1), max_prompt_tokens=0), "max_prompt_tokens"),
        (RequestShape, "needs user_tokens and output_tokens, or lengths_from"),
        (lambda: RequestShape(user_tokens=Fixed(1)), "needs user_tokens and output_tokens"),
        (lambda: RequestShape(output_tokens=Fixed(1)), "needs user_tokens and output_tokens"),
        (lambda: RequestShape(user_tokens=Fixed(1), lengths_from="x.csv"), "leave those out"),
        (lambda: RequestShape(Fixed(1), Fixed(1), lengths_from="x.csv"), "leave those out"),
    ],
)
def test_impossible_ones_are_refused(make: Callable[[], object], words: str):
    with pytest.raises(ConfigError, match=words):
        make()
