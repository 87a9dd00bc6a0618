"""What an explanation is, and the case that all of them compute on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from argosy.cost.deployment import Deployment
from argosy.cost.device import Precision
from argosy.cost.efficiency import Constants
from argosy.cost.formats import WeightFormat, base_precision, precisions_for
from argosy.cost.model_spec import ModelSpec
from argosy.cost.parallel import ParallelPlan
from argosy.cost.serving_memory import MemoryConstants, ServingMemory, serving_memory
from argosy.cost.step_time_model import StepTimeModel
from argosy.planner.lengths import Lengths
from argosy.planner.model_source import find_spec
from argosy.planner.offers import Offer, resolve
from argosy.planner.plain import Plain
from argosy.planner.serving_question import ServingQuestion


@dataclass(frozen=True, slots=True)
class Row(Plain):
    """One alternative and its figures; a figure's name carries its unit."""

    label: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Explanation(Plain):
    """An answer to a question of design, the reasons with their figures, and the alternatives compared.

    Attributes:
        topic: what was decided; verdict: how; because: each reason a sentence made from `rows`.
    """

    topic: str
    verdict: str
    because: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a device under lengths; what explanations vary around."""

    spec: ModelSpec
    offer: Offer
    prompt: Lengths
    output: Lengths
    constants: Constants = field(default_factory=Constants)
    memory: MemoryConstants = field(default_factory=MemoryConstants)

    @classmethod
    def of(cls, question: ServingQuestion, offer: int = 0) -> Case:
        """The case of one of a question's offers.

        Raises:
            ConfigError: an unknown name or price.
        """
        spec, _ = find_spec(question.model)
        traffic, resolved = question.traffic, resolve(question.devices[offer])
        constants = question.constants_on(resolved.device.name)
        return cls(spec, resolved, traffic.prompt, traffic.output, constants, question.memory)

    @property
    def context(self) -> float:
        """Mean context of a decoding sequence."""
        return self.prompt.mean + self.output.mean / 2

    @property
    def tokens(self) -> int:
        """Mean tokens of a request at its end."""
        return self.prompt.tokens + self.output.tokens

    @property
    def base(self) -> Precision:
        """The device's 16-bit type."""
        return base_precision(self.offer.device)

    def deployment(
        self, plan: ParallelPlan, weights: WeightFormat = WeightFormat.BASE, kv: Precision | None = None
    ) -> Deployment:
        """The model under `plan`.

        Raises:
            ConfigError: the plan does not divide the model, or the device lacks the arithmetic.
        """
        return Deployment(self.spec, plan, precisions_for(self.offer.device, weights, kv or self.base))

    def model(self, deployment: Deployment) -> StepTimeModel:
        """Step times of `deployment` on the case's device.

        Raises:
            ConfigError: the device lacks links that the plan needs.
        """
        return StepTimeModel(deployment, self.offer.device, self.offer.topology, self.constants)

    def serving_memory(self, deployment: Deployment, *, draft: Deployment | None = None) -> ServingMemory:
        """Memory of `deployment` on the case's device."""
        return serving_memory(deployment, self.offer.device, constants=self.memory, draft=draft)


def ms(seconds: float) -> str:
    """Milliseconds with three digits."""
    return f"{seconds * 1e3:.3g} ms"


def largest(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The largest whole number from `low` to `high` for which `holds`, which must hold up to it; None if not for `low`."""
    if not holds(low):
        return None
    if holds(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
