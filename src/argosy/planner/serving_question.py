"""What to plan for: model, traffic, service level, devices, and what the search may vary."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from argosy.cost.calibration_file import constants_for
from argosy.cost.checks import fraction, positive
from argosy.cost.device import Precision
from argosy.cost.efficiency import Constants
from argosy.cost.formats import WeightFormat
from argosy.cost.machine_calibration import known_calibrations
from argosy.cost.model_spec import ModelSpec
from argosy.cost.serving_engines import find_engine
from argosy.cost.serving_memory import MemoryConstants
from argosy.errors import ConfigError
from argosy.planner.offers import DeviceOffer
from argosy.planner.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Target:
    """At least `percentile` percent of requests take at most `seconds`."""

    seconds: float
    percentile: float = 99.0


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level: targets for time to first token and time per output token; empty means anything will do."""

    ttft: tuple[Target, ...] = ()
    tpot: tuple[Target, ...] = ()

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the target that is impossible."""
        for name, targets in (("ttft", self.ttft), ("tpot", self.tpot)):
            for target in targets:
                if not (math.isfinite(target.seconds) and target.seconds > 0):
                    raise ConfigError(f"{name} target must be finite and above 0 seconds, got {target.seconds}")
                if not 0 < target.percentile < 100:
                    raise ConfigError(f"{name} percentile must be above 0 and below 100, got {target.percentile}")

    @classmethod
    def of(
        cls, ttft_ms: float | None = None, tpot_ms: float | None = None, *, ttft_pct: float = 99.0, tpot_pct: float = 99.0
    ) -> Slo:
        """One target each, in milliseconds.

        Raises:
            ConfigError: a target or percentile that is impossible.
        """
        ttft = () if ttft_ms is None else (Target(ttft_ms / 1e3, ttft_pct),)
        tpot = () if tpot_ms is None else (Target(tpot_ms / 1e3, tpot_pct),)
        return cls(ttft, tpot)


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft for speculation: its model, the acceptance rate expected of it, and numbers of drafts to try."""

    model: str | ModelSpec
    acceptance: float
    drafts: tuple[int, ...] = (2, 4)

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an acceptance outside 0 to 1, or no drafts."""
        fraction(acceptance=self.acceptance)
        _degrees("drafts", self.drafts)


def _degrees(name: str, values: tuple[int, ...] | None) -> None:
    if values is None:
        return
    if not values:
        raise ConfigError(f"{name} must name at least one value; leave it out to search the usual ones")
    for value in values:
        if not (math.isfinite(value) and value == int(value) and value >= 1):
            raise ConfigError(f"{name} must be whole numbers of at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What the search varies. None means the values that are usual for the model and the device.

    Attributes:
        tensor, pipeline, data, expert: degrees; `data` is attention data parallelism inside a replica.
        weights, kv: formats; by default all that the device supports. Quality under quantisation is not judged here.
        chunk_tokens: most tokens of a step of one data rank.
        max_batch: most sequences of a replica at once; by default a ladder up to what KV admits.
        prefix_caching: (False, True) tries both; only with prefix reuse in the traffic.
        disaggregate: whether separate prefill and decode pools are considered.
    """

    tensor: tuple[int, ...] | None = None
    pipeline: tuple[int, ...] | None = None
    data: tuple[int, ...] | None = None
    expert: tuple[int, ...] | None = None
    weights: tuple[WeightFormat, ...] | None = None
    kv: tuple[Precision, ...] | None = None
    chunk_tokens: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
    max_batch: tuple[int, ...] | None = None
    prefix_caching: tuple[bool, ...] = (False, True)
    disaggregate: bool = True

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the axis that is empty or impossible."""
        for name in ("tensor", "pipeline", "data", "expert", "chunk_tokens", "max_batch"):
            _degrees(name, getattr(self, name))
        for name in ("weights", "kv", "prefix_caching"):
            if getattr(self, name) == ():
                raise ConfigError(f"{name} must name at least one value; leave it out to search the usual ones")


@dataclass(frozen=True, slots=True)
class ServingQuestion:
    """How to serve `model` under `traffic` within `slo` on some of `devices`.

    Attributes:
        model: catalogue name, path of a config.json or GGUF file, or a shape.
        max_usd_per_h: budget at the high end of prices; max_devices: of all pools together.
        engine: serving engine whose measured step times stand behind the figures ("vllm", "sglang" or "trtllm"), and
        constants: in place of those fitted for the engine on each device.
        expert_imbalance: work of the busiest expert rank over the mean, minus 1.
        top: how many plans to return per ranking.
    """

    model: str | ModelSpec
    traffic: Traffic
    slo: Slo
    devices: tuple[DeviceOffer, ...]
    space: SearchSpace = field(default_factory=SearchSpace)
    draft: DraftModel | None = None
    max_usd_per_h: float | None = None
    max_devices: int | None = None
    expert_imbalance: float = 0.0
    engine: str = "vllm"
    constants: Constants | None = None
    memory: MemoryConstants = field(default_factory=MemoryConstants)
    top: int = 5

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible."""
        find_engine(self.engine)
        if not self.devices:
            raise ConfigError("devices must name at least one candidate")
        if self.max_usd_per_h is not None:
            positive(max_usd_per_h=self.max_usd_per_h)
        for name in ("max_devices", "top"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value == int(value) and value >= 1):
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value}")
        if not (math.isfinite(self.expert_imbalance) and self.expert_imbalance >= 0):
            raise ConfigError(f"expert_imbalance must be finite and not negative, got {self.expert_imbalance}")
        if self.slo.tpot and self.traffic.output.tokens == 1:
            raise ConfigError("tpot is undefined for outputs of one token; leave its target out")

    def constants_on(self, device: str) -> Constants:
        """The constants that step times on a device of the catalogue are charged with."""
        return self.constants or constants_for(device, self.engine, calibrations=known_calibrations(device))
