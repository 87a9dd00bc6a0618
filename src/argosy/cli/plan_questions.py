"""From flags to the planner's questions."""

from __future__ import annotations

from pathlib import Path

from argosy.cli.plan_units import DeviceChoice, LatencyTarget
from argosy.cost.activations import Recompute
from argosy.cost.catalogue import find_device, find_node
from argosy.cost.device import Precision
from argosy.cost.formats import WEIGHT_FORMATS, WeightFormat
from argosy.cost.pipeline_schedules import Schedule
from argosy.cost.prices import Term
from argosy.cost.zero import Optimizer, ZeroStage
from argosy.errors import ConfigError
from argosy.planner.offers import DeviceOffer
from argosy.planner.serving_question import DraftModel, Slo, Target
from argosy.planner.trace_traffic import trace_traffic
from argosy.planner.traffic import Traffic
from argosy.sim.workload.trace_files import read_trace

_KV = {
    str(precision): precision for precision in (Precision.BF16, Precision.FP16, Precision.FP8, Precision.INT8, Precision.FP4)
}
_TERMS = {str(term).replace(" ", "-"): term for term in Term}
_SCHEDULES = {str(schedule).replace(" ", "-"): schedule for schedule in Schedule}
_CACHING = {"auto": (False, True), "on": (True,), "off": (False,)}


def _chosen(flag: str, text: str, known: dict[str, object]) -> list[str]:
    """The names between commas, each of `known`."""
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"{flag} takes {', '.join(dict.fromkeys(known))}, got {name!r}")
    return names


def weight_formats(text: str) -> tuple[WeightFormat, ...] | None:
    """`--weights`; None for auto. Raises `ConfigError` naming what it takes."""
    return (
        None
        if text == "auto"
        else tuple(
            dict.fromkeys(WEIGHT_FORMATS[name] for name in _chosen("--weights", text, {"auto": None, **WEIGHT_FORMATS}))
        )
    )


def kv_types(text: str) -> tuple[Precision, ...] | None:
    """`--kv`; None for auto. Raises `ConfigError` naming what it takes."""
    return None if text == "auto" else tuple(_KV[name] for name in _chosen("--kv", text, {"auto": None, **_KV}))


def caching(text: str) -> tuple[bool, ...]:
    """`--prefix-caching`. Raises `ConfigError` naming what it takes."""
    (name,) = _chosen("--prefix-caching", text.replace(",", " "), dict(_CACHING))
    return _CACHING[name]


def price_term(text: str) -> Term:
    """`--term`. Raises `ConfigError` naming what it takes."""
    (name,) = _chosen("--term", text.replace(",", " "), dict(_TERMS))
    return _TERMS[name]


def weight_format(text: str) -> WeightFormat:
    """One format. Raises `ConfigError` naming what `--weights` takes."""
    (found,) = weight_formats(_one("--weights", text)) or ()
    return found


def kv_type(text: str) -> Precision:
    """One type. Raises `ConfigError` naming what `--kv` takes."""
    (found,) = kv_types(_one("--kv", text)) or ()
    return found


def _one(flag: str, text: str) -> str:
    if "," in text or text == "auto":
        raise ConfigError(f"{flag} takes one format here, got {text!r}")
    return text


def zero_stages(text: str) -> tuple[ZeroStage, ...] | None:
    """`--zero`; None for auto. Raises `ConfigError` naming what it takes."""
    if text == "auto":
        return None
    known = {str(int(stage)): stage for stage in ZeroStage}
    return tuple(known[name] for name in _chosen("--zero", text, {"auto": None, **known}))


def recompute_kinds(text: str) -> tuple[Recompute, ...]:
    """`--recompute`. Raises `ConfigError` naming what it takes."""
    return tuple(Recompute(name) for name in _chosen("--recompute", text, {str(kind): kind for kind in Recompute}))


def schedules(text: str) -> tuple[Schedule, ...]:
    """`--schedule`. Raises `ConfigError` naming what it takes."""
    return tuple(_SCHEDULES[name] for name in _chosen("--schedule", text, dict(_SCHEDULES)))


def optimizer(text: str) -> Optimizer:
    """`--optimizer`. Raises `ConfigError` naming what it takes."""
    (name,) = _chosen("--optimizer", text.replace(",", " "), {str(known): known for known in Optimizer})
    return Optimizer(name)


def compute(text: str) -> Precision:
    """`--compute`. Raises `ConfigError` naming what it takes."""
    known = (Precision.BF16, Precision.FP16, Precision.FP8)
    (name,) = _chosen("--compute", text.replace(",", " "), {str(precision): precision for precision in known})
    return Precision(name)


def device_offer(choice: DeviceChoice, term: Term, region: str | None) -> DeviceOffer:
    """An offer of a device, or of a node where `choice` is called like one.

    Raises:
        ConfigError: neither has that name; near ones are named.
    """
    prices = (choice.low_usd_per_h, choice.high_usd_per_h)
    try:
        find_device(choice.name)
    except ConfigError as unknown:
        try:
            find_node(choice.name)
        except ConfigError:
            raise unknown from None
        return DeviceOffer("", choice.count, *prices, node=choice.name, term=term, region=region)
    return DeviceOffer(choice.name, choice.count, *prices, term=term, region=region)


def targets(ttft: list[LatencyTarget] | None, tpot: list[LatencyTarget] | None) -> Slo:
    """The service level."""
    first, further = (tuple(Target(t.seconds, t.percentile) for t in wanted or ()) for wanted in (ttft, tpot))
    return Slo(first, further)


def stated_traffic(
    qps: float | None,
    input_tokens: int | None,
    output_tokens: int | None,
    *,
    input_cv: float | None,
    output_cv: float | None,
    prefix_share: float | None,
    burstiness: float | None,
) -> Traffic:
    """Traffic in figures.

    Raises:
        ConfigError: one is missing or impossible.
    """
    for flag, value in (("--qps", qps), ("--input-tokens", input_tokens), ("--output-tokens", output_tokens)):
        if value is None:
            raise ConfigError(f"{flag} is needed, or --trace with a file")
    assert qps is not None
    assert input_tokens is not None
    assert output_tokens is not None
    return Traffic.of(
        qps,
        input_tokens,
        output_tokens,
        prompt_cv=input_cv or 0.0,
        output_cv=output_cv or 0.0,
        prefix_share=prefix_share or 0.0,
        burstiness=1.0 if burstiness is None else burstiness,
    )


def traced_traffic(path: Path, scale: float, at_peak: bool, stated: dict[str, object]) -> Traffic:
    """Traffic of a trace; `stated` are the flags that a trace stands for, and their values.

    Raises:
        ConfigError: one of them is given as well, or the file is no trace.
    """
    for flag, value in stated.items():
        if value is not None:
            raise ConfigError(f"--trace says that already; leave {flag} out")
    return trace_traffic(read_trace(path), source=path.name, scale=scale, at_peak=at_peak)


def draft_model(model: str | None, acceptance: float | None, drafts: tuple[int, ...] | None) -> DraftModel | None:
    """Speculation, or None.

    Raises:
        ConfigError: only some of its flags are given.
    """
    if model is None:
        for flag, value in (("--acceptance", acceptance), ("--drafts", drafts)):
            if value is not None:
                raise ConfigError(f"{flag} needs --draft with a model")
        return None
    if acceptance is None:
        raise ConfigError("--draft needs --acceptance, the share of drafts expected to be accepted")
    return DraftModel(model, acceptance) if drafts is None else DraftModel(model, acceptance, drafts)
