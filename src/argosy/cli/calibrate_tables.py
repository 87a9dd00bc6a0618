"""What a calibration found, for people."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from argosy.cost.device import Device, Precision
from argosy.cost.machine_calibration import MeasuredModel


def show_calibration(device: Device, measured: MeasuredModel, path: Path) -> None:
    """Print step times by tokens, the other constants, and how far they are off."""
    console, steps = Console(), measured.steps
    table = Table(title=f"{measured.model} on {device.name} ({measured.executor}, {measured.weights})", title_justify="left")
    for column in ("tokens of a step", "ms", "tokens/s"):
        table.add_column(column, justify="right")
    for knot, seconds in zip(steps.knots, steps.rows_s, strict=True):
        table.add_row(str(knot), f"{1e3 * seconds:.2f}", f"{knot / seconds:.0f}")
    console.print(table)
    rest = Table.grid(padding=(0, 2))
    for name, value, unit in (
        ("each row of logits", 1e6 * steps.logit_s, "µs"),
        ("each sequence", 1e6 * steps.sequence_s, "µs"),
        ("decoding, per 1000 tokens looked at", 1e6 * steps.seen_s * 1000, "µs"),
        ("prompts, per 1000 query-key pairs", 1e6 * steps.pair_s * 1000, "µs"),
        ("around the executor, each step", 1e6 * steps.host_step_s, "µs"),
        ("around the executor, each sequence", 1e6 * steps.host_sequence_s, "µs"),
        ("around the executor, each token", 1e6 * steps.host_token_s, "µs"),
    ):
        rest.add_row(name, f"{value:.2f} {unit}")
    console.print(rest)
    console.print(
        f"{steps.steps} steps; off by {steps.fitted.median:.1%} in the median (p90 {steps.fitted.p90:.1%}), "
        f"on loads left out of the fit by {steps.held_out.median:.1%} (p90 {steps.held_out.p90:.1%})"
    )
    roofline = measured.calibration
    console.print(
        f"roofline constants of the same steps: off by {roofline.held_out_median:.1%} in the median on loads left out, "
        f"at a bound: {', '.join(roofline.at_bound) or 'none'}"
    )
    console.print(
        f"this-machine: {device.peak[Precision.FP32].value / 1e9:.0f} GFLOP/s, "
        f"{device.memory_bandwidth.value / 1e9:.1f} GB/s, {device.memory.value / 2**30:.1f} GiB"
    )
    console.print(f"written to {path}", soft_wrap=True)
