from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from argosy.cost.efficiency import Constants
from argosy.planner.offers import DeviceOffer
from argosy.planner.serving_question import SearchSpace, ServingQuestion, Slo
from argosy.planner.traffic import Traffic


@pytest.fixture
def ask() -> Callable[..., ServingQuestion]:
    """A question small enough to answer in a fraction of a second; keyword arguments change its fields.

    Its constants are the common ones, so that a new fit changes no expectation.
    """

    def make(**changes: object) -> ServingQuestion:
        question = ServingQuestion(
            model="Llama-3.1-8B",
            traffic=Traffic.of(8, 1000, 200, prompt_cv=0.5, output_cv=0.5),
            slo=Slo.of(ttft_ms=1000, tpot_ms=50),
            devices=(DeviceOffer("H100 SXM", low_usd_per_h=3.0, high_usd_per_h=5.0),),
            space=SearchSpace(tensor=(1, 2, 4), pipeline=(1, 2), chunk_tokens=(512, 2048), disaggregate=False),
            constants=Constants(),
        )
        return dataclasses.replace(question, **changes)  # type: ignore[arg-type]

    return make
