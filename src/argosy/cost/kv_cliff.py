"""The KV cliff in measured rows: pairs that differ in output length alone, the longer of which waits for KV or does not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from argosy.cost.efficiency import Constants
from argosy.cost.measured_serving import MeasuredConfiguration

# TTFT counts as exploded beyond this multiple of the TTFT at the shorter output.
EXPLODED = 2.5


@dataclass(frozen=True, slots=True)
class CliffPair:
    """Two loads of one configuration.

    Attributes:
        lines: of the rows with the shorter and the longer output.
        measured, predicted: whether TTFT explodes from one to the other.
    """

    model: str
    lines: tuple[int, int]
    measured: bool
    predicted: bool

    @property
    def right(self) -> bool:
        """Whether the prediction is what was measured."""
        return self.measured is self.predicted


def cliff_pairs(measured: MeasuredConfiguration, constants: Constants) -> Iterator[CliffPair]:
    """All pairs of rows of a configuration with equal input and concurrency, as predicted under `constants`."""
    rows = sorted(zip(measured.rows, measured.estimates(constants), strict=True), key=lambda pair: pair[0].output_tokens)
    for (short, expected_short), (long, expected_long) in itertools.combinations(rows, 2):
        alike = short.input_tokens == long.input_tokens and short.concurrency == long.concurrency
        if alike and short.output_tokens < long.output_tokens:
            yield CliffPair(
                measured.configuration.model,
                (short.line, long.line),
                long.ttft_s > EXPLODED * short.ttft_s,
                expected_long.ttft_s > EXPLODED * expected_short.ttft_s,
            )
