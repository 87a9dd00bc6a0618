"""`argosy doctor`: what this machine can do, measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from argosy.cli import flags
from argosy.cli.terminal import print_json

if TYPE_CHECKING:
    from argosy.cli.doctor_kernels import KernelReport
    from argosy.cost.device import Device

OptionalModel = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="Measure the kernels of this model's tensor types.", show_default=False),
]
Kernels = Annotated[bool, typer.Option("--kernels", help="Measure the CPU kernels of common tensor types too.")]
Compile = Annotated[bool, typer.Option("--compile", help="Compile all CPU kernels for this processor, and measure nothing.")]


def doctor(
    model: OptionalModel = None,
    kernels: Kernels = False,
    compile_only: Compile = False,
    threads: flags.Threads = None,
    offline: flags.Offline = False,
    download_dir: flags.CacheDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script instead.")] = False,
) -> None:
    """Measure this machine: memory bandwidth and matrix products, as the cost model counts them; and the CPU kernels."""
    if compile_only:
        _compile(as_json)
        return
    from argosy.cost.host import measure_host

    host = measure_host()
    report = None
    if model is not None or kernels:
        report = _measure_kernels(model, threads, offline, download_dir)
    if as_json:
        print_json(_as_json(host) | ({} if report is None else {"kernels": report.as_json()}))
        return
    _print_host(host)
    if report is not None:
        _print_kernels(report)


def _compile(as_json: bool) -> None:
    from argosy.cli.doctor_kernels import compile_everything

    lines = compile_everything()
    if as_json:
        print_json({"compiled": lines})
        return
    for line in lines or ["all CPU kernels are compiled for this processor"]:
        typer.echo(line)


def _measure_kernels(model: str | None, threads: int | None, offline: bool, download_dir: Any) -> KernelReport:
    from argosy.cli.doctor_kernels import report_kernels

    checkpoint = None
    if model is not None:
        from argosy.cli.progress import fetch_progress
        from argosy.models.checkpoint import load_config

        with fetch_progress() as progress:
            checkpoint = load_config(model, cache_dir=download_dir, offline=offline, progress=progress)
    return report_kernels(checkpoint, threads)


def _as_json(host: Device) -> dict[str, Any]:
    from argosy.cost.device import Precision

    rate = host.peak[Precision.FP32]
    return {
        "processor": host.name,
        "memory_bytes": host.memory.value,
        "memory_bandwidth_bytes_per_s": host.memory_bandwidth.value,
        "fp32_flop_per_s": rate.value,
        "measured": rate.as_of,
        "notes": host.notes,
    }


def _print_host(host: Device) -> None:
    from argosy.cost.device import Precision
    from argosy.observe.report.figures import gib, si

    rate, bandwidth = host.peak[Precision.FP32], host.memory_bandwidth
    _print_rows(
        {
            "processor": host.name,
            "memory": gib(host.memory.value),
            "memory bandwidth": f"{si(bandwidth.value, 'B/s')}  ({bandwidth.source})",
            "fp32 arithmetic": f"{si(rate.value, 'FLOP/s')}  ({rate.source})",
            "ridge": f"{host.ridge_flop_per_byte(Precision.FP32):.1f} FLOP per byte: decoding does less, so memory binds it",
        }
    )
    if host.notes:
        typer.echo(host.notes)


def _print_kernels(report: KernelReport) -> None:
    from argosy.observe.report.figures import si

    rows = {
        "kernels": f"{report.isa} for {report.cpu} ({', '.join(report.features) or 'no vector extension known'})",
        "threads": str(report.num_threads),
        "reading": f"{si(report.read_bytes_per_s, 'B/s')} with these threads",
    }
    if report.limit_tokens_per_s:
        rows["limit"] = f"{report.limit_tokens_per_s:.0f} tokens/s for one sequence: every weight is read once a token"
    typer.echo("")
    _print_rows(rows)
    typer.echo("")
    typer.echo(f"{'weights':<8}  {'stored':>9}  {'kernel':<20}  {'1 token':>10}  {'of reading':>10}  {'64 tokens':>12}")
    for t in report.types:
        stored = si(t.stored_bytes, "B") if t.stored_bytes else "-"
        if not t.kernel:
            typer.echo(f"{t.type:<8}  {stored:>9}  none: the model runs on torch")
            continue
        alone, many = si(t.alone_bytes_per_s, "B/s"), si(t.many_multiply_adds_per_s, "MAC/s")
        typer.echo(f"{t.type:<8}  {stored:>9}  {t.kernel:<20}  {alone:>10}  {t.alone_share:>10.0%}  {many:>12}")


def _print_rows(rows: dict[str, str]) -> None:
    width = max(map(len, rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {value}")
