"""`argosy doctor`: what this machine can do, measured."""

from __future__ import annotations

from typing import Annotated

import typer

from argosy.cli.terminal import print_json


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script instead.")] = False) -> None:
    """Measure this machine: memory bandwidth and matrix products, as the cost model counts them."""
    from argosy.cost.device import Precision
    from argosy.cost.host import measure_host
    from argosy.observe.report.figures import gib, si

    host = measure_host()
    rate, bandwidth = host.peak[Precision.FP32], host.memory_bandwidth
    if as_json:
        print_json(
            {
                "processor": host.name,
                "memory_bytes": host.memory.value,
                "memory_bandwidth_bytes_per_s": bandwidth.value,
                "fp32_flop_per_s": rate.value,
                "measured": rate.as_of,
                "notes": host.notes,
            }
        )
        return
    rows = {
        "processor": host.name,
        "memory": gib(host.memory.value),
        "memory bandwidth": f"{si(bandwidth.value, 'B/s')}  ({bandwidth.source})",
        "fp32 arithmetic": f"{si(rate.value, 'FLOP/s')}  ({rate.source})",
        "ridge": f"{host.ridge_flop_per_byte(Precision.FP32):.1f} FLOP per byte: decoding does less, so memory binds it",
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {value}")
    if host.notes:
        typer.echo(host.notes)
