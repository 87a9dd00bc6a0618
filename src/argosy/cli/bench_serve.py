"""`argosy bench serve`."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from argosy.cli import bench_flags
from argosy.cli.bench_flags import option
from argosy.cli.flags import MODEL_HELP
from argosy.cli.terminal import print_json
from argosy.errors import ConfigError

if TYPE_CHECKING:
    from argosy.bench.generator import Run
    from argosy.bench.load import Cut, PlannedRequest
    from argosy.bench.serve_result import ServeResult
    from argosy.bench.serve_run import Client, ServeSettings
    from argosy.bench.slo import ServiceLevel

EPILOG = """\
\b
Examples:
  argosy bench serve smollm2-135m --concurrency 16 --requests 64
  argosy bench serve smollm2-135m --rate 2 --slo ttft=0.5,tpot=50ms -- --threads 2 --max-num-seqs 32
  argosy bench serve --base-url http://127.0.0.1:8000 --trace azure.csv --replay --duration 600 --html run.html
  argosy bench serve --base-url http://127.0.0.1:8000 --trace azure.csv --concurrency 16 --requests 200 \\
      --max-prompt-tokens 1024 --max-output-tokens 256

With MODEL it starts 'argosy serve MODEL' and ends it; what comes after -- goes to it. With --base-url it loads any
server that speaks the OpenAI API. Requests come one of three ways: --rate (Poisson), --replay (as in the trace), both
open loop, or --concurrency (closed loop). Latencies count from when a request was due.
"""

Model = Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
BaseUrl = Annotated[str | None, option("Server", "A server that runs already.", "--base-url", metavar="URL", default=False)]
ServedModel = Annotated[
    str | None, option("Server", "Its model.", "--model", metavar="NAME", default="the first one it serves")
]
ApiKey = Annotated[str | None, option("Server", "Its key.", "--api-key", metavar="KEY", default=False)]
Endpoint = Annotated[str, option("Server", "completions, or chat, whose template adds tokens.", "--endpoint")]
IgnoreEos = Annotated[
    bool, option("Server", "Ask for outputs of exactly the planned length.", "--ignore-eos/--no-ignore-eos")
]
ExtraBody = Annotated[
    str | None, option("Server", "More fields for every request, as JSON.", "--extra-body", metavar="JSON", default=False)
]
Tokenizer = Annotated[
    str | None,
    option("Server", "Model whose tokenizer counts.", "--tokenizer", metavar="MODEL", default="ask the server"),
]
Rate = Annotated[float | None, option("Load", "Poisson arrivals, requests per second.", "--rate", default=False)]
Concurrency = Annotated[int | None, option("Load", "Requests under way at once.", "--concurrency", default=False)]
Replay = Annotated[bool, option("Load", "Arrivals as in the trace.", "--replay")]
Speed = Annotated[float, option("Load", "Replay so many times as fast.", "--speed")]
Trace = Annotated[
    Path | None,
    option("Load", "Lengths from a trace: .csv (Azure), .jsonl (Mooncake).", "--trace", metavar="FILE", default=False),
]
InputTokens = Annotated[int | None, option("Load", "Prompt of every request.", "--input-tokens", default="512")]
OutputTokens = Annotated[int | None, option("Load", "Output of every request.", "--output-tokens", default="128")]
MaxPrompt = Annotated[int | None, option("Load", "Cut a trace's prompts to it.", "--max-prompt-tokens", default=False)]
MaxOutput = Annotated[int | None, option("Load", "Cut a trace's outputs to it.", "--max-output-tokens", default=False)]
Requests = Annotated[int | None, option("Load", "How many.", "--requests", default="100; all of the trace with --replay")]
Duration = Annotated[float | None, option("Load", "Send for so many seconds.", "--duration", default=False)]
Warmup = Annotated[int, option("Load", "Requests sent before, not counted.", "--warmup")]
Timeout = Annotated[float, option("Load", "Seconds after which an answer counts as failed.", "--timeout")]
Slo = Annotated[str | None, option("Output", "Goodput under limits, such as ttft=0.5,tpot=50ms.", "--slo", default=False)]
MaxLateness = Annotated[
    float, option("Output", "Refuse a run whose generator was later, at p99, in seconds.", "--max-lateness")
]


def serve(
    context: typer.Context,
    model: Model = None,
    base_url: BaseUrl = None,
    served_model: ServedModel = None,
    api_key: ApiKey = None,
    endpoint: Endpoint = "completions",
    ignore_eos: IgnoreEos = True,
    extra_body: ExtraBody = None,
    tokenizer: Tokenizer = None,
    rate: Rate = None,
    concurrency: Concurrency = None,
    replay: Replay = False,
    speed: Speed = 1.0,
    trace: Trace = None,
    input_tokens: InputTokens = None,
    output_tokens: OutputTokens = None,
    max_prompt_tokens: MaxPrompt = None,
    max_output_tokens: MaxOutput = None,
    requests: Requests = None,
    duration: Duration = None,
    warmup: Warmup = 4,
    timeout: Timeout = 600.0,
    seed: bench_flags.Seed = 0,
    slo: Slo = None,
    max_lateness: MaxLateness = 0.05,
    as_json: bench_flags.AsJson = False,
    output: bench_flags.OutputFile = None,
    html: bench_flags.HtmlFile = None,
) -> None:
    """Load a server and measure what its clients see: latencies, throughput, goodput, errors."""
    from argosy.bench.load import Cut
    from argosy.bench.serve_run import ServeSettings
    from argosy.bench.slo import ServiceLevel
    from argosy.bench.target import parse_extra_body

    if (model is None) == (base_url is None):
        raise ConfigError("give either MODEL, to start a server for it, or --base-url of one that runs")
    if context.args and base_url is not None:
        raise ConfigError(f"{' '.join(context.args)!r}: flags for 'argosy serve' go with MODEL, not with --base-url")
    for path, flag in ((output, "--output"), (html, "--html")):
        bench_flags.check_writable(path, flag)
    if not max_lateness > 0:
        raise ConfigError(f"--max-lateness must be above 0 seconds, got {max_lateness:g}")
    load = plan_load(
        trace=trace,
        cut=Cut(max_prompt_tokens, max_output_tokens),
        lengths=(input_tokens, output_tokens),
        requests=requests,
        rate=rate,
        concurrency=concurrency,
        replayed=replay,
        speed=speed,
        duration=duration,
        seed=seed,
    )
    settings = ServeSettings(concurrency, duration, warmup, timeout, seed)
    level = None if slo is None else ServiceLevel.parse(slo)
    fields = {} if extra_body is None else parse_extra_body(extra_body)
    with ExitStack() as stack:
        if base_url is None:
            assert model is not None
            base_url = _start(stack, model, context.args)
        client = _connect(
            stack,
            base_url,
            model=served_model,
            api_key=api_key,
            endpoint=endpoint,
            ignore_eos=ignore_eos,
            extra_body=fields,
            tokenizer=tokenizer,
        )
        run, result = _run(client, load, settings, level)
        described = _describe(client, load, settings, rate=rate, speed=speed, trace=trace, slo=slo)
    _show(described, run, result, max_lateness=max_lateness, as_json=as_json, output=output, html=html)


def plan_load(
    *,
    trace: Path | None,
    cut: Cut,
    lengths: tuple[int | None, int | None],
    requests: int | None,
    rate: float | None,
    concurrency: int | None,
    replayed: bool,
    speed: float,
    duration: float | None,
    seed: int,
) -> list[PlannedRequest]:
    """The requests that the flags describe.

    Raises:
        ConfigError: flags that contradict each other, or a value out of range.
        TraceFileError: the trace cannot be read.
    """
    from argosy.bench.load import Cut, fixed_lengths, replay, trace_lengths, within
    from argosy.sim.workload.trace_files import read_trace

    if sum((rate is not None, concurrency is not None, replayed)) != 1:
        raise ConfigError("say how requests come by exactly one of --rate, --concurrency and --replay")
    if trace is None:
        if replayed:
            raise ConfigError("--replay needs a --trace")
        if cut != Cut():
            raise ConfigError("--max-prompt-tokens and --max-output-tokens cut a trace: give --trace, or --input-tokens")
        prompt, answer = lengths
        planned = fixed_lengths(
            100 if requests is None else requests, 512 if prompt is None else prompt, 128 if answer is None else answer
        )
        return _due(planned, rate, duration, seed) if rate is not None else planned
    if lengths != (None, None):
        raise ConfigError("give either --trace or --input-tokens and --output-tokens")
    if not replayed and speed != 1.0:
        raise ConfigError("--speed needs --replay")
    recorded = read_trace(trace)
    planned = trace_lengths(recorded, min(100, len(recorded)) if requests is None and not replayed else requests, cut)
    if replayed:
        due = replay(planned, recorded, speed)
        return due if duration is None else within(due, duration)
    return planned if rate is None else _due(planned, rate, duration, seed)


def _due(planned: list[PlannedRequest], rate: float, duration: float | None, seed: int) -> list[PlannedRequest]:
    from argosy.bench.load import poisson, within

    due = poisson(planned, rate, seed)
    return due if duration is None else within(due, duration)


def _start(stack: ExitStack, model: str, serve_flags: list[str]) -> str:
    from argosy.bench.served_process import ServedProcess
    from argosy.cli.progress import fetch_model
    from argosy.engine.args import EngineArgs

    fetch_model(EngineArgs(model=model, offline="--offline" in serve_flags))
    # The server is in a group of its own: ended by SIGTERM, this process must still end it.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    stack.callback(signal.signal, signal.SIGTERM, before)
    typer.echo(f"starting argosy serve {model} …", err=True)
    server = stack.enter_context(ServedProcess(model, serve_flags))
    typer.echo(f"ready after {server.ready_s:.1f} s at {server.url}", err=True)
    return server.url


def _connect(stack: ExitStack, base_url: str, **settings: Any) -> Client:
    from argosy.bench.serve_run import Client

    return stack.enter_context(Client(base_url, **settings))


def _run(
    client: Client, load: list[PlannedRequest], settings: ServeSettings, level: ServiceLevel | None
) -> tuple[Run, ServeResult]:
    from argosy.bench.load import warmup_load
    from argosy.cli.bench_progress import progress

    with progress() as report:
        prepared = client.prepare(load, settings.seed, lambda done, total: report("prompts", done, total))
        warmup = client.prepare(warmup_load(load, settings.num_warmup), settings.seed)
        count = iter(range(1, len(load) + 1))
        report("requests", 0, len(load))
        return client.run(
            prepared, warmup, settings, slo=level, on_record=lambda _: report("requests", next(count), len(load))
        )


def _describe(client: Client, load: list[PlannedRequest], settings: ServeSettings, **flags: Any) -> dict[str, Any]:
    """What was run, for JSON and the page."""
    from argosy import __version__

    arrivals = "closed loop" if settings.concurrency else "Poisson" if flags["rate"] else "replay"
    counter = client.counter
    return {
        "server": client.target.origin.url,
        "model": client.target.model,
        "endpoint": client.target.endpoint,
        "arrivals": arrivals,
        "rate_per_s": flags["rate"],
        "concurrency": settings.concurrency,
        "speed": flags["speed"] if arrivals == "replay" else None,
        "trace": None if flags["trace"] is None else flags["trace"].name,
        "requests_planned": len(load),
        "mean_prompt_tokens": sum(r.prompt_tokens for r in load) / len(load),
        "mean_output_tokens": sum(r.output_tokens for r in load) / len(load),
        "duration_s": settings.duration_s,
        "warmup_requests": settings.num_warmup,
        "timeout_s": settings.timeout_s,
        "seed": settings.seed,
        "prompts_counted_by": "words, since the server does not count" if counter is None else counter.source,
        "slo": flags["slo"],
        "argosy": __version__,
    }


def _show(
    described: dict[str, Any],
    run: Run,
    result: ServeResult,
    *,
    max_lateness: float,
    as_json: bool,
    output: Path | None,
    html: Path | None,
) -> None:
    """Write files, print, and refuse what the generator has spoilt or nobody answered."""
    from argosy.bench.serve_report import serve_report, settings_rows
    from argosy.bench.serve_result import check_generator, rows
    from argosy.cli.bench_tables import show_serve
    from argosy.errors import EngineUnavailable

    check_generator(result, max_lateness)
    value = {"settings": described, **result.as_dict()}
    title = f"{described['model']} at {described['server']}: {described['arrivals']}, {result.num_sent} requests"
    if output is not None:
        bench_flags.write_json(output, {**value, "records": rows(run, result)})
    if html is not None:
        html.write_text(serve_report(title, settings_rows(described), run, result), encoding="utf-8")
    if as_json:
        print_json(value)
    else:
        show_serve(title, result)
    if not result.counted:
        raise EngineUnavailable("no request was answered")
