"""Flags of `argosy plan`: what they are called, how their values are read, and the flag behind a setting's name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from argosy.cli.plan_units import (
    Degrees,
    DeviceChoice,
    LatencyTarget,
    parse_count,
    parse_degrees,
    parse_device,
    parse_rate,
    parse_seconds,
    parse_share,
    parse_target,
)
from argosy.errors import ConfigError

T = TypeVar("T")

NO_PLAN = 1
"""Exit code where the question has an answer, and the answer is that nothing fits."""

FLAG_OF = {
    "requests_per_s": "--qps",
    "prompt_tokens": "--input-tokens",
    "output_tokens": "--output-tokens",
    "prompt_cv": "--input-cv",
    "output_cv": "--output-cv",
    "max_usd_per_h": "--max-usd-per-hour",
    "max_devices": "--max-gpus",
    "expert_imbalance": "--expert-imbalance",
    "max_batch": "--max-batch",
    "chunk_tokens": "--chunk-tokens",
    "prefix_caching": "--prefix-caching",
    "kv_fraction": "--kv-fraction",
    "total_fraction": "--memory-fraction",
    "block_tokens": "--block-tokens",
    "prefix share": "--prefix-share",
    "state a price per hour": "state one with --device NAME@PRICE",
    "batch_tokens": "--batch-tokens",
    "deadline_days": "--deadline",
    "max_usd": "--max-usd",
    "micro_batch": "--micro-batch",
    "devices must": "--device must",
    "tpot is": "--tpot is",
    "ttft target": "--ttft target",
    "tpot target": "--tpot target",
}
"""Flags of the settings that the planner's errors name."""


@contextmanager
def told_in_flags() -> Iterator[None]:
    """Let errors about settings name the flags that set them."""
    try:
        yield
    except ConfigError as error:
        names = "|".join(re.escape(name) for name in FLAG_OF)
        raise ConfigError(re.sub(rf"(?<![\w-])({names})\b", lambda name: FLAG_OF[name[1]], error.message)) from error


def _reads(flag: str, parse: Callable[[Any], T]) -> Callable[[Any], T]:
    """`parse`, with errors that begin with the flag."""

    def read(value: Any) -> T:
        try:
            return parse(value)
        except ConfigError as error:
            raise ConfigError(f"{flag}: {error.message}") from None

    return read


def _option(
    panel: str, text: str, flag: str, parse: Callable[[Any], Any] | None = None, *, shown: str = "", **more: Any
) -> Any:
    """An option in a section of the help; `shown` says in words what no value means."""
    if parse is not None:
        more["parser"] = _reads(flag, parse)
    return typer.Option(flag, help=text, rich_help_panel=panel, show_default=shown or True, **more)


MODEL_HELP = "A name of the catalogue (see 'argosy plan models'), a config.json or its folder, or a .gguf file."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Show everything about these.", show_default=False)]

_DEVICE_FORM = "NAME[:COUNT][@LOW[-HIGH]]"
_DEVICE_HELP = (
    "Device or node to plan with (see 'argosy plan devices'), how many there are, $ per device and hour; repeatable."
)
Devices = Annotated[
    list[DeviceChoice] | None,
    _option("Devices", _DEVICE_HELP, "--device", parse_device, metavar=_DEVICE_FORM),
]
OneDevice = Annotated[
    DeviceChoice | None,
    _option(
        "Devices",
        "Device or node, how many there are, $ per device and hour.",
        "--device",
        parse_device,
        metavar=_DEVICE_FORM,
    ),
]
PriceTerm = Annotated[str, _option("Devices", "Prices to take: on-demand, reserved or spot.", "--term")]
PriceRegion = Annotated[str | None, _option("Devices", "Take prices of this region.", "--region", shown="all")]
MaxGpus = Annotated[
    int | None, _option("Devices", "Most devices of all pools.", "--max-gpus", parse_count, shown="no limit", metavar="N")
]
MaxUsdPerHour = Annotated[
    float | None, _option("Devices", "Budget at the high end of prices.", "--max-usd-per-hour", shown="no limit")
]

Qps = Annotated[
    float | None,
    _option("Traffic", "Requests per second; or 300/min, 20k/h.", "--qps", parse_rate, metavar="RATE"),
]
InputTokens = Annotated[int | None, _option("Traffic", "Mean prompt.", "--input-tokens", parse_count, metavar="N")]
OutputTokens = Annotated[int | None, _option("Traffic", "Mean answer.", "--output-tokens", parse_count, metavar="N")]
InputCv = Annotated[float | None, _option("Traffic", "Standard deviation over mean of prompts.", "--input-cv", shown="0")]
OutputCv = Annotated[float | None, _option("Traffic", "The same of answers.", "--output-cv", shown="0")]
PrefixShare = Annotated[
    float | None,
    _option(
        "Traffic", "Part of prompts that all have in common.", "--prefix-share", parse_share, shown="0", metavar="SHARE"
    ),
]
Burstiness = Annotated[
    float | None, _option("Traffic", "Variance over mean of arrivals; 1 is Poisson.", "--burstiness", shown="1")
]
Trace = Annotated[
    Path | None,
    _option(
        "Traffic",
        "Take rate, lengths, bursts and prefixes from a trace: .csv (Azure) or .jsonl (Mooncake).",
        "--trace",
        metavar="FILE",
    ),
]
TraceScale = Annotated[float, _option("Traffic", "Factor on the trace's rate.", "--trace-scale")]
TracePeak = Annotated[bool, _option("Traffic", "Plan for the trace's busiest minute.", "--trace-peak")]

Ttft = Annotated[
    list[LatencyTarget] | None,
    _option(
        "Service level",
        "Time to first token and how many keep it, such as 2s@p95; repeatable. Without @: p99.",
        "--ttft",
        parse_target,
        shown="any",
        metavar="TIME[@pN]",
    ),
]
Tpot = Annotated[
    list[LatencyTarget] | None,
    _option(
        "Service level",
        "Time per further token, such as 50ms@p95; repeatable.",
        "--tpot",
        parse_target,
        shown="any",
        metavar="TIME[@pN]",
    ),
]

Weights = Annotated[
    str,
    _option("Search", "auto, or of bf16, fp8, int8, int4, fp4, fp8-weight-only, int8-weight-only, by commas.", "--weights"),
]
Kv = Annotated[str, _option("Search", "auto, or of bf16, fp8, int8, by commas.", "--kv")]


def _degrees(text: str, flag: str) -> Any:
    return _option("Search", text, flag, parse_degrees, shown="auto", metavar="N,N…")


Tensor = Annotated[Degrees | None, _degrees("Tensor parallel degrees to try.", "--tensor")]
Pipeline = Annotated[Degrees | None, _degrees("Pipeline degrees to try.", "--pipeline")]
Data = Annotated[Degrees | None, _degrees("Attention data-parallel degrees to try.", "--data")]
Expert = Annotated[Degrees | None, _degrees("Expert parallel degrees to try.", "--expert")]
ChunkTokens = Annotated[Degrees | None, _degrees("Token budgets of a step to try.", "--chunk-tokens")]
MaxBatch = Annotated[Degrees | None, _degrees("Batch limits of a replica to try.", "--max-batch")]
PrefixCaching = Annotated[str, _option("Search", "auto (what is better), on or off.", "--prefix-caching")]
Disaggregate = Annotated[
    bool, _option("Search", "Consider separate prefill and decode pools.", "--disaggregate/--no-disaggregate")
]
Draft = Annotated[str | None, _option("Search", "Draft model for speculation.", "--draft", metavar="MODEL")]
Acceptance = Annotated[
    float | None,
    _option(
        "Search",
        "Share of its drafts that are accepted; needed with --draft.",
        "--acceptance",
        parse_share,
        metavar="SHARE",
    ),
]
Drafts = Annotated[
    Degrees | None,
    _option("Search", "Drafts a round to try.", "--drafts", parse_degrees, shown="2,4", metavar="N,N…"),
]
ExpertImbalance = Annotated[
    float, _option("Search", "Work of the busiest expert rank over the mean, minus 1.", "--expert-imbalance")
]

Engine = Annotated[
    str,
    _option("Search", "Whose step times to plan with: vllm, sglang, trtllm, or argosy on this-machine.", "--engine"),
]

TrainTokens = Annotated[int | None, _option("Run", "Tokens to train on, such as 2T.", "--tokens", parse_count, metavar="N")]
BatchTokens = Annotated[
    int, _option("Run", "Tokens of an optimizer step.", "--batch-tokens", parse_count, shown="4Mi", metavar="N")
]
Sequence = Annotated[int, _option("Run", "Tokens of a sequence.", "--sequence", parse_count, shown="4Ki", metavar="N")]
Deadline = Annotated[
    float | None,
    _option("Run", "Time that the run may take, such as 45d.", "--deadline", parse_seconds, shown="any", metavar="TIME"),
]
MaxUsd = Annotated[float | None, _option("Run", "Budget at the high end of prices.", "--max-usd", shown="no limit")]
OptimizerName = Annotated[str, _option("Run", "adam, adam-8bit, sgd-momentum or sgd.", "--optimizer")]
Compute = Annotated[str, _option("Run", "Arithmetic of matrix products: bf16, fp16 or fp8.", "--compute")]
Gpus = Annotated[Degrees | None, _degrees("Numbers of devices to try.", "--gpus")]
ContextParallel = Annotated[Degrees | None, _degrees("Context parallel degrees to try.", "--context-parallel")]
MicroBatch = Annotated[Degrees | None, _degrees("Sequences of a micro-batch to try.", "--micro-batch")]
Zero = Annotated[str, _option("Search", "auto, or ZeRO stages of 0, 1, 2, 3 by commas; 3 is FSDP.", "--zero")]
RecomputeKinds = Annotated[str, _option("Search", "Of none, selective, full, by commas.", "--recompute")]
Schedules = Annotated[
    str, _option("Search", "Pipeline schedules of gpipe, 1f1b, interleaved-1f1b, zb-h1, zb-v, by commas.", "--schedule")
]
OverlapData = Annotated[
    float,
    _option(
        "Run",
        "Part of sharded data-parallel communication that hides behind computation.",
        "--overlap-data",
        parse_share,
        metavar="SHARE",
    ),
]
OverlapLayers = Annotated[
    float,
    _option("Run", "The same of communication inside layers.", "--overlap-layers", parse_share, metavar="SHARE"),
]

DeviceNames = Annotated[
    list[str] | None, _option("Layout", "Device (see 'argosy plan devices'); repeatable.", "--device", metavar="NAME")
]


def _degree(text: str, flag: str) -> Any:
    return _option("Layout", text, flag, parse_count, metavar="N")


Context = Annotated[int | None, _option("Layout", "Tokens of a request at its end.", "--context", parse_count, metavar="N")]
Concurrency = Annotated[int, _degree("Requests held at once.", "--concurrency")]
TensorDegree = Annotated[int, _degree("Tensor parallel degree.", "--tensor")]
PipelineDegree = Annotated[int, _degree("Pipeline degree.", "--pipeline")]
DataDegree = Annotated[int, _degree("Attention data-parallel degree.", "--data")]
ExpertDegree = Annotated[int, _degree("Expert parallel degree.", "--expert")]
ChunkSize = Annotated[int, _degree("Most tokens of a step.", "--chunk-tokens")]
MemoryFraction = Annotated[
    float,
    _option("Layout", "Part of a device that may be used at all.", "--memory-fraction", parse_share, metavar="SHARE"),
]
KvFraction = Annotated[
    float,
    _option("Layout", "Part of what is left for KV that it takes.", "--kv-fraction", parse_share, metavar="SHARE"),
]
OneWeights = Annotated[
    str, _option("Layout", "bf16, fp8, int8, int4, fp4, fp8-weight-only or int8-weight-only.", "--weights")
]
OneKv = Annotated[str, _option("Layout", "bf16, fp8 or int8.", "--kv")]

Top = Annotated[int, _option("Output", "Plans to show.", "--top", parse_count, metavar="N")]
Verify = Annotated[bool, _option("Output", "Run the plans in the simulator, and compare.", "--verify")]
Explain = Annotated[
    bool,
    _option("Output", "Explain sharding, formats, chunk size, KV, speculation and pools from the figures.", "--explain"),
]
AsJson = Annotated[bool, _option("Output", "Print JSON for a script instead.", "--json")]
HtmlFile = Annotated[
    Path | None,
    _option("Output", "Write a report with plots, in one file.", "--html", metavar="FILE"),
]


def required(flag: str, value: T | None) -> T:
    """`value`. Raises `ConfigError` naming the flag if it was left out."""
    if value is None or value == []:
        raise ConfigError(f"{flag} is needed")
    return value


def check_html(path: Path | None) -> None:
    """Raise `ConfigError` before the search begins if no report can be written to `path`."""
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"--html: {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise ConfigError(f"--html: there is no folder {path.parent}")


def say_where(path: Path | None) -> None:
    """Say where the report is."""
    if path is not None:
        typer.echo(f"\nreport: {path}")
