"""Predicted beside simulated: how the plans of `argosy plan serve --verify` fared."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from argosy.cli.plan_tables import heading, print_table
from argosy.observe.report.figures import UNKNOWN, count, seconds, share
from argosy.planner.verify import ComparedFigure, Verification


def show_verifications(console: Console, verified: Sequence[Verification]) -> None:
    """Print every plan's figures, and whether it kept the service level."""
    heading(console, "In the simulator, under the production scheduler")
    for number, one in enumerate(verified, 1):
        console.print(f"{number}: {one.plan}", style="bold")
        console.print(
            f"   {one.requests:,} requests measured on {one.replicas} replica{'s' * (one.replicas > 1)} in "
            f"{seconds(one.duration_s)}",
            style="dim",
        )
        columns = ("", "PREDICTED", "SIMULATED", "DIFFERENCE")
        rows = [
            (figure.name, _value(figure, figure.predicted), _value(figure, figure.simulated), _difference(figure))
            for figure in one.figures
        ]
        print_table(console, columns, rows, right=columns[1:], indent=3)
        console.print(f"   {_verdict(one)}", style="" if one.keeps_service_level else "red")


def _value(figure: ComparedFigure, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if figure.unit == "s":
        return seconds(value)
    return f"{count(value)}{figure.unit}" if figure.unit else share(value)


def _difference(figure: ComparedFigure) -> str:
    return UNKNOWN if figure.difference is None else f"{100.0 * figure.difference:+.0f} %"


def _verdict(one: Verification) -> str:
    """Stable or not, unanswered requests, and each target."""
    if not one.is_stable:
        return one.stability
    parts = [f"{one.failed:,} requests got no answer"] if one.failed else []
    parts += [
        f"{target.name} within {seconds(target.target.seconds)}: {share(target.kept_share)} of requests"
        + ("" if target.is_kept else f", not {target.target.percentile:g} %")
        for target in one.targets
    ]
    return "; ".join(["stable", *parts])
