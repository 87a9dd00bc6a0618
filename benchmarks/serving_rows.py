"""How well the cost model predicts measured serving latencies that it was not fitted to.

    python benchmarks/serving_rows.py --rows PATH [--check PATH] [--write-calibration]

PATH is a table of measured rows (columns as `argosy.cost.measured_rows` reads them). Splits are by configuration: five
folds, each GPU held out, each model held out. `--check` also scores another table with constants fitted to the first alone.
Further tables say where the KV cliff is predicted right, and which rows are refused and why. Writes
benchmarks/results/serving_rows.json; `--write-calibration` replaces the calibration that comes with the package.
"""

from __future__ import annotations

import argparse
import datetime
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import argosy.cost
from argosy.cost.calibration import (
    FittedConstants,
    HeldOut,
    Measurements,
    constants_of,
    cross_validate,
    fit_constants,
    hold_out,
)
from argosy.cost.calibration_file import Calibration, calibrations_text
from argosy.cost.efficiency import Constants, FittedRange
from argosy.cost.kv_cliff import CliffPair, cliff_pairs
from argosy.cost.measured_layout import Configuration
from argosy.cost.measured_rows import AggregatedLayout, MeasuredRow, read_rows
from argosy.cost.measured_serving import MeasuredConfiguration, Refused, by_configuration
from argosy.cost.serving_engines import find_engine
from report import write_result

FOLDS = 5
# A device of which fewer rows were measured does not count as covered by a calibration.
ROWS_TO_COVER = 30
# Share of a run's requests that start together at its beginning: five requests a client, as the dense rows suggest.
FIRST_BURST = 0.2
SOURCE = "AIConfigurator's published sample of measured serving latencies (Apache-2.0), aggregated rows"
BASELINE = {"constants": 7, "mean": 0.137, "median": 0.084}
Choose = Callable[[Hashable], bool]


def is_routed(configuration: Hashable) -> bool:
    """Whether the model has routed experts."""
    return isinstance(configuration, Configuration) and configuration.routed


def summary(errors: np.ndarray) -> dict[str, float]:
    """Rows, median, mean and 90th percentile of relative errors."""
    if not errors.size:
        return {"rows": 0}
    median, p90 = np.quantile(errors, (0.5, 0.9))
    return {
        "rows": int(errors.size),
        "median": round(float(median), 4),
        "mean": round(float(errors.mean()), 4),
        "p90": round(float(p90), 4),
    }


def by_kind(held_out: HeldOut, chosen: Choose = lambda _: True) -> dict[str, Any]:
    """Summaries of dense models and of those with routed experts."""
    return {
        "dense": summary(held_out.of(lambda c: chosen(c) and not is_routed(c))),
        "moe": summary(held_out.of(lambda c: chosen(c) and is_routed(c))),
    }


def splits(measurements: Sequence[Measurements]) -> dict[str, Any]:
    """Held-out errors of TPOT under each split."""
    figures: dict[str, Any] = {f"{FOLDS} folds of configurations": by_kind(cross_validate(measurements, folds=FOLDS))}
    for name, attribute in (("GPU", "system"), ("model", "model")):
        held_out = hold_out(measurements, lambda c, attribute=attribute: getattr(c, attribute))
        figures[f"each {name} held out"] = by_kind(held_out)
        for value in sorted({getattr(one.configuration, attribute) for one in measurements}):
            figures[f"{name} held out: {value}"] = by_kind(
                held_out, lambda c, attribute=attribute, value=value: getattr(c, attribute) == value
            )
    return figures


def cliff_figures(pairs: Sequence[CliffPair]) -> dict[str, Any]:
    """Share of pairs whose cliff, or the lack of it, is predicted; by whether the model is Llama-3.1-70B."""
    found = {}
    for name, chosen in (("Llama-3.1-70B", True), ("other models", False)):
        some = [pair for pair in pairs if (pair.model == "Llama-3.1-70B") is chosen]
        right = sum(pair.right for pair in some)
        cliffs = sum(pair.measured for pair in some)
        found[name] = {"pairs": len(some), "cliffs": cliffs, "right": right, "share": round(right / max(1, len(some)), 4)}
    return found


def burst_ttft_s(one: MeasuredConfiguration, constants: Constants) -> np.ndarray:
    """[rows] mean TTFT when all clients start at once: prompts fill step after step, and the mean one ends half-way."""
    budget = find_engine(one.configuration.engine).step_tokens
    clients = np.array([load.concurrency for load in one.loads]) / one.configuration.deployment.plan.data
    tokens = np.maximum(1.0, clients) * [load.input_tokens for load in one.loads]
    steps = np.ceil(tokens / budget)
    return np.asarray(one.model(constants).prefill(np.minimum(tokens, budget)).latency_s * (steps + 1) / 2)


def ttft_figures(measured: Sequence[MeasuredConfiguration], fitted: FittedConstants) -> dict[str, Any]:
    """Median of measured TTFT over predicted, by engine, with and without a wait for KV.

    Tables hold means over a whole run, so predictions on the plateau count `FIRST_BURST` of the requests as having started
    together; what is beyond (queueing in the server, tokenisation, HTTP) is not predicted.
    """
    ratios: dict[str, list[float]] = {}
    for one in measured:
        engine = one.configuration.engine
        constants = constants_of(fitted.values, engine)
        bursts = burst_ttft_s(one, constants)
        for row, estimate, burst_s in zip(one.rows, one.estimates(constants), bursts, strict=True):
            ttft_s = estimate.ttft_s
            if not estimate.beyond_kv:
                ttft_s += FIRST_BURST * (burst_s - ttft_s)
            where = "beyond KV" if estimate.beyond_kv else "plateau"
            ratios.setdefault(f"{'moe' if is_routed(one.configuration) else 'dense'}, {engine}, {where}", []).append(
                row.ttft_s / ttft_s
            )
    return {
        name: {"rows": len(some), "measured over predicted": round(float(np.median(some)), 2)}
        for name, some in sorted(ratios.items())
    }


def calibration_of(measured: Sequence[MeasuredConfiguration], fitted: FittedConstants, folds: np.ndarray) -> Calibration:
    """The calibration to come with the package."""
    rows = [row for one in measured for row in one.rows]
    of_device = Counter(one.configuration.system for one in measured for _ in one.rows)
    plans = [one.configuration.deployment.plan for one in measured]
    estimates = [
        estimate for one in measured for estimate in one.estimates(constants_of(fitted.values, one.configuration.engine))
    ]

    def covered(values: Sequence[float]) -> FittedRange:
        return FittedRange(float(min(values)), float(max(values)))

    return Calibration(
        name="serving engines on NVIDIA GPUs",
        source=SOURCE,
        as_of=datetime.datetime.now(datetime.UTC).date().isoformat(),
        rows=len(rows),
        configurations=len(measured),
        devices=tuple(sorted(name for name, count in of_device.items() if count >= ROWS_TO_COVER)),
        engines=tuple(sorted({one.configuration.engine for one in measured})),
        values={name: float(f"{value:.5g}") for name, value in fitted.values.items()},
        at_bound=fitted.at_bound,
        held_out_median=round(float(np.median(folds)), 4),
        held_out_mean=round(float(folds.mean()), 4),
        fitted={
            "tokens": covered([estimate.step_tokens for estimate in estimates]),
            "context": covered([row.input_tokens + row.output_tokens / 2 for row in rows]),
            "concurrency": covered([estimate.running for estimate in estimates]),
            "tensor": covered([plan.tensor for plan in plans]),
            "pipeline": covered([plan.pipeline for plan in plans]),
            "data": covered([plan.data for plan in plans]),
        },
    )


def print_splits(figures: dict[str, Any]) -> None:
    """One line a split and kind of model."""
    print(f"{'TPOT, held out':44} {'kind':6} {'rows':>5} {'median':>7} {'mean':>7} {'p90':>7}")
    for split, kinds in figures.items():
        for kind, row in kinds.items():
            if row["rows"]:
                print(f"{split:44} {kind:6} {row['rows']:5} {row['median']:7.1%} {row['mean']:7.1%} {row['p90']:7.1%}")


def print_refused(refused: Sequence[Refused]) -> None:
    """Reasons, without the numbers that differ, and how often each."""
    reasons = Counter("".join("#" if c.isdigit() else c for c in one.reason.split(": ", 1)[-1]) for one in refused)
    print(f"\n{len(refused)} rows refused")
    for reason, count in reasons.most_common():
        print(f"{count:5} {reason}")


def check_figures(fitted: FittedConstants, rows: Sequence[MeasuredRow]) -> dict[str, Any]:
    """Errors on another table under constants fitted before."""
    measured, refused = by_configuration(rows)
    errors: dict[Hashable, np.ndarray] = {}
    for one in measured:
        if f"step_s:{one.configuration.engine}" in fitted.values:
            errors[one.configuration] = np.abs(np.expm1(one.measurements().log_errors(fitted.values)))
    return {"another table": by_kind(HeldOut(errors)), "refused": len(refused)}


def main() -> None:
    """Read, fit, hold out, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=Path, required=True, help="CSV of measured rows")
    parser.add_argument("--check", type=Path, help="another CSV, scored with constants fitted to --rows")
    parser.add_argument("--write-calibration", action="store_true", help="replace the packaged calibration")
    args = parser.parse_args()
    rows = read_rows(args.rows)
    aggregated = [row for row in rows if isinstance(row.layout, AggregatedLayout)]
    measured, refused = by_configuration(aggregated)
    measurements = [one.measurements() for one in measured]
    fitted = fit_constants(measurements)
    figures = splits(measurements)
    pairs = [pair for one in measured for pair in cliff_pairs(one, constants_of(fitted.values, one.configuration.engine))]
    print(f"{len(rows)} rows, {len(aggregated)} aggregated, {len(measured)} configurations, {len(fitted.values)} constants")
    print_splits(figures)
    print(f"\nKV cliff: {cliff_figures(pairs)}")
    ttft = ttft_figures(measured, fitted)
    print(f"TTFT, measured over predicted: {ttft}")
    print_refused(refused)
    print("\nconstants " + ", ".join(f"{name} {value:.3g}" for name, value in fitted.values.items()))
    print("at a bound: " + (", ".join(fitted.at_bound) or "none"))
    result: dict[str, Any] = {
        "source": SOURCE,
        "rows": {"all": len(rows), "aggregated": len(aggregated), "refused": len(refused)},
        "configurations": len(measured),
        "constants": fitted.values,
        "at_bound": fitted.at_bound,
        "baseline of seven fitted constants, dense": BASELINE,
        "tpot": figures,
        "kv_cliff": cliff_figures(pairs),
        "ttft": ttft,
    }
    if args.check is not None:
        others = [row for row in read_rows(args.check) if isinstance(row.layout, AggregatedLayout)]
        result["check"] = check_figures(fitted, others)
        print_splits({"another table": result["check"]["another table"]})
    if args.write_calibration:
        folds = cross_validate(measurements, folds=FOLDS).of()
        path = Path(argosy.cost.__file__).parent / "data" / "calibrations.json"
        path.write_text(calibrations_text([calibration_of(measured, fitted, folds)]))
        print("wrote the packaged calibration")
    print(f"wrote {write_result('serving_rows', result)}")


if __name__ == "__main__":
    main()
