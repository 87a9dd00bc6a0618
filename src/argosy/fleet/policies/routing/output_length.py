"""How long the answer to a request will be, as far as earlier answers tell."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from argosy.errors import ConfigError


@dataclass(slots=True)
class OutputLengthEstimate:
    """An exponentially weighted mean of output tokens per group, such as a tenant; unknown groups get the mean of all.

    Attributes:
        initial_tokens: the estimate before any answer.
        weight: of a new answer, (0, 1].
        max_groups: groups remembered; the one heard of longest ago is forgotten first.
    """

    initial_tokens: float = 256.0
    weight: float = 0.05
    max_groups: int = 10_000
    _of_all: float = -1.0
    _of_group: OrderedDict[str, float] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if self.initial_tokens < 0.0 or not 0.0 < self.weight <= 1.0 or self.max_groups < 1:
            raise ConfigError(
                "an output length estimate needs initial_tokens from 0 up, weight in (0, 1] and max_groups of at least 1, "
                f"got {self.initial_tokens}, {self.weight} and {self.max_groups}"
            )
        self._of_all = self.initial_tokens

    def observe(self, group: str, num_tokens: int) -> None:
        """Learn from one answer. Mutates the estimate."""
        mean = self._of_group.pop(group, self._of_all)
        self._of_group[group] = mean + self.weight * (num_tokens - mean)
        self._of_all += self.weight * (num_tokens - self._of_all)
        if len(self._of_group) > self.max_groups:
            self._of_group.popitem(last=False)

    def tokens(self, group: str) -> int:
        """Output tokens expected, rounded."""
        return round(self._of_group.get(group, self._of_all))
