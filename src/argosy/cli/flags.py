"""Flags of the commands that run an engine, under the names that vLLM made known."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from argosy.engine.args import EngineArgs
from argosy.errors import ConfigError
from argosy.server.config import ServerConfig

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


FLAG_OF = {
    "num_blocks_override": "--num-gpu-blocks-override",
    "cache_dir": "--download-dir",
    "max_body_bytes": "--max-body-size",
    "drain_timeout_s": "--drain-timeout",
    "keep_alive_timeout_s": "--timeout-keep-alive",
    "ping_interval_s": "--ping-interval",
}
"""Flags of the settings that are not called like them."""


def in_flags(message: str) -> str:
    """`message` with the names of settings as the flags that set them: `block_size must …` is `--block-size must …`.

    Names of one word stay: in a sentence they are words.
    """
    settings = {f.name for owner in (EngineArgs, ServerConfig) for f in fields(owner)}

    def flag(name: re.Match[str]) -> str:
        return FLAG_OF.get(name[0], "--" + name[0].replace("_", "-")) if name[0] in settings else name[0]

    return re.sub(r"(?<![\w-])[a-z]+(_[a-z]+)+\b", flag, message)


def read_template(path: Path | None) -> str | None:
    """The text of a chat template. Raises `ConfigError` if it cannot be read."""
    return None if path is None else read_text(path, "--chat-template")


def read_text(path: Path, flag: str) -> str:
    """The content of a file that a flag names. Raises `ConfigError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{flag}: cannot read {path}: {reason}") from error


def parse_size(text: str | int) -> int:
    """Bytes from "2GiB", "500MB", "1.5G" or "1048576". Powers of 1000; with an i, of 1024. A default comes as a number.

    Raises:
        ConfigError: not such a text, or less than one byte.
    """
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if match is None or match[2] not in UNITS:
        raise ConfigError(f"{text!r} is not a size; write it like 2GiB, 500MB or 1048576")
    size_bytes = int(float(match[1]) * UNITS[match[2]])
    if size_bytes < 1:
        raise ConfigError(f"a size must be at least one byte, got {text!r}")
    return size_bytes


def _option(panel: str, text: str, *names: str, default: str | None = None, metavar: str | None = None, **more: Any) -> Any:
    """An option in a section of the help; `default` says in words what None, or a number hard to read, means."""
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=default or True, metavar=metavar, **more)


MODEL_HELP = "A known name (see 'argosy models'), a .gguf file, a folder with safetensors files, or hf:org/name[:file]."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]

DType = Annotated[str, _option("Model", "auto, float32, bfloat16 or float16.", "--dtype")]
KvCacheDType = Annotated[str, _option("Model", "Element type of the KV cache.", "--kv-cache-dtype")]
Device = Annotated[str, _option("Model", "cpu, cuda or cuda:INDEX.", "--device")]
ExecutorName = Annotated[
    str, _option("Model", "auto, kernels (this package's CPU kernels, on weights as stored) or torch.", "--executor")
]
Weights = Annotated[str, _option("Model", "How the CPU kernels keep weights: auto, stored or int8.", "--weights")]
RefineOutliers = Annotated[
    bool,
    _option(
        "Model",
        "CPU kernels: activations with outliers nearer to fp32, for some of the speed.",
        "--refine-outliers/--no-refine-outliers",
    ),
]
Threads = Annotated[
    int | None,
    _option("Model", "CPU threads to compute with.", "--threads", default="one per core; torch's choice for torch"),
]
ChatTemplate = Annotated[
    Path | None,
    _option(
        "Model", "Jinja template in place of the model's own.", "--chat-template", metavar="FILE", default="the model's"
    ),
]
Offline = Annotated[bool, _option("Model", "Use what is cached, never the network.", "--offline")]
CacheDir = Annotated[
    Path | None,
    _option("Model", "Where models are kept.", "--download-dir", metavar="DIR", default="$ARGOSY_HOME or ~/.cache/argosy"),
]

MaxModelLen = Annotated[
    int | None, _option("Limits", "Longest sequence in tokens, prompt and answer.", "--max-model-len", default="the model's")
]
MaxNumSeqs = Annotated[int, _option("Limits", "Sequences running at once.", "--max-num-seqs")]
MaxNumBatchedTokens = Annotated[
    int | None,
    _option("Limits", "Token budget of one step.", "--max-num-batched-tokens", default="256 on a CPU, else 8192"),
]
MaxWaiting = Annotated[int, _option("Limits", "Requests that may wait; one more gets 429.", "--max-waiting")]
KvCacheMemory = Annotated[
    int | None,
    _option(
        "Limits",
        "Memory of the KV cache.",
        "--kv-cache-memory",
        "--kv-cache-memory-bytes",
        metavar="SIZE",
        default="from what is free",
        parser=parse_size,
    ),
]
NumBlocks = Annotated[
    int | None,
    _option("Limits", "Size of the KV cache in blocks instead.", "--num-gpu-blocks-override", default="from the memory"),
]
BlockSize = Annotated[int, _option("Limits", "Tokens per KV block.", "--block-size")]

PrefixCaching = Annotated[
    bool,
    _option(
        "Scheduling",
        "Reuse the KV of equal prefixes.",
        "--enable-prefix-caching/--no-enable-prefix-caching",
    ),
]
PrefillShare = Annotated[
    float,
    _option("Scheduling", "Part of a step that prefill may take while others decode.", "--prefill-share"),
]
Watermark = Annotated[float, _option("Scheduling", "Part of the KV cache kept free at admission.", "--watermark")]
MaxPreemptions = Annotated[
    int, _option("Scheduling", "Preemptions after which a sequence is left alone.", "--max-preemptions")
]
SchedulingPolicy = Annotated[str, _option("Scheduling", "fcfs, or priority (lower value first).", "--scheduling-policy")]
EvictionPolicy = Annotated[
    str,
    _option("Scheduling", "Which cached block goes first: lru, size or priority.", "--eviction-policy"),
]
Seed = Annotated[
    int | None, _option("Scheduling", "Makes requests without a seed repeatable.", "--seed", default="from the system")
]
Deterministic = Annotated[
    bool, _option("Scheduling", "Answers do not depend on what else runs, at a price in speed.", "--deterministic")
]
CheckInvariants = Annotated[
    bool, _option("Scheduling", "Check the scheduler's state after each step; to hunt faults.", "--check-invariants")
]

KvEventsEndpoint = Annotated[
    str | None,
    _option(
        "Network",
        "Address to publish changes of the prefix cache on, for routers; it tells the tokens of prompts.",
        "--kv-events-endpoint",
        metavar="ADDRESS",
        default="none",
    ),
]
KvEventsReplayEndpoint = Annotated[
    str | None,
    _option(
        "Network",
        "Address where missed changes can be asked for.",
        "--kv-events-replay-endpoint",
        metavar="ADDRESS",
        default="none",
    ),
]
KvEventsTopic = Annotated[str, _option("Network", "Topic of the published changes.", "--kv-events-topic", default="empty")]
Host = Annotated[str, _option("Network", "Address to listen on.", "--host")]
Port = Annotated[int, _option("Network", "Port to listen on; 0 takes a free one.", "--port")]
ApiKeys = Annotated[
    list[str] | None,
    _option(
        "Network", "A key that clients must send; repeatable. Others on this machine can see it.", "--api-key", metavar="KEY"
    ),
]
ApiKeyFile = Annotated[Path | None, _option("Network", "File with one key per line.", "--api-key-file", metavar="FILE")]
ServedModelNames = Annotated[
    list[str] | None,
    _option(
        "Network",
        "Name that requests use; repeatable, the first one is shown.",
        "--served-model-name",
        metavar="NAME",
        default="MODEL as given",
    ),
]
MaxBodySize = Annotated[
    int,
    _option("Network", "Largest request body.", "--max-body-size", metavar="SIZE", default="16MiB", parser=parse_size),
]
MaxPrompts = Annotated[int, _option("Network", "Most prompts in one completion request.", "--max-prompts")]
MaxConcurrentRequests = Annotated[
    int | None, _option("Network", "HTTP requests answered at once.", "--max-concurrent-requests", default="no limit")
]
DrainTimeout = Annotated[
    float,
    _option("Network", "Seconds that running requests may go on after SIGTERM.", "--drain-timeout"),
]
KeepAliveTimeout = Annotated[int, _option("Network", "Seconds that an idle connection is kept.", "--timeout-keep-alive")]
PingInterval = Annotated[
    float,
    _option("Network", "Seconds of silence in a stream before a comment is sent; 0 sends none.", "--ping-interval"),
]
Docs = Annotated[bool, _option("Network", "Serve /docs and /openapi.json.", "--docs/--no-docs")]

LogLevel = Annotated[str, _option("Logs", "debug, info, warning or error.", "--log-level")]
LogFormat = Annotated[str, _option("Logs", "text or json, on stderr.", "--log-format")]
LogPrompts = Annotated[bool, _option("Logs", "Write prompts to the log too.", "--log-prompts")]
