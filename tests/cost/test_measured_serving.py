from pathlib import Path

import numpy as np
import pytest

from argosy.cost.calibration import constants_of, cross_validate, fit_constants
from argosy.cost.calibration_file import constants_for
from argosy.cost.efficiency import PERFECT
from argosy.cost.kv_cliff import cliff_pairs
from argosy.cost.measured_rows import AggregatedLayout, read_rows
from argosy.cost.measured_serving import by_configuration
from argosy.cost.physical_check import ServedLatency, decode_bound_s

SAMPLE = Path(__file__).parent / "data" / "serving_rows_sample.csv"


@pytest.fixture(scope="module")
def sample():
    """(configurations, refused rows) of the sample."""
    return by_configuration([row for row in read_rows(SAMPLE) if isinstance(row.layout, AggregatedLayout)])


def relative_errors(measured, constants=None):
    parts = []
    for one in measured:
        given = constants or constants_for(one.configuration.system, one.configuration.engine)
        parts.append(np.abs(one.measurements().steps.tpot_s(given) / [row.tpot_s for row in one.rows] - 1))
    return np.concatenate(parts)


def test_impossible_rows_are_refused_with_line_and_bound(sample):
    _, refused = sample
    reasons = {one.row.model: one.reason for one in refused}
    assert len(refused) == 2
    assert "below" in reasons["nvidia/Qwen3-32B-NVFP4"]
    assert "reading weights and the KV" in reasons["nvidia/Qwen3-32B-NVFP4"]
    assert "does not divide" in reasons["deepseek-ai/DeepSeek-R1"]
    assert all(one.reason.startswith(f"line {one.row.line}: ") for one in refused)


def test_every_other_row_is_kept_once(sample):
    measured, _ = sample
    kept = [row.line for one in measured for row in one.rows]
    assert len(kept) == len(set(kept)) == 152
    assert len({one.configuration for one in measured}) == len(measured)


def test_packaged_constants_predict_dense_rows_within_eight_percent(sample):
    measured, _ = sample
    errors = relative_errors([one for one in measured if not one.configuration.routed])
    assert np.median(errors) <= 0.08
    assert errors.mean() <= 0.13


def test_packaged_constants_predict_routed_rows_within_fifteen_percent(sample):
    measured, _ = sample
    assert np.median(relative_errors([one for one in measured if one.configuration.routed])) <= 0.15


@pytest.mark.slow
def test_constants_fitted_to_other_configurations_do_so_too(sample):
    measured, _ = sample
    dense = [one.measurements() for one in measured if not one.configuration.routed]
    errors = cross_validate(dense, folds=3).of()
    assert np.median(errors) <= 0.08
    assert errors.mean() <= 0.13


def test_the_tpot_that_is_fitted_is_the_one_that_is_reported(sample):
    measured, _ = sample
    for one in measured[:8]:
        constants = constants_for(one.configuration.system, one.configuration.engine)
        reported = [estimate.tpot_s for estimate in one.estimates(constants)]
        assert one.measurements().steps.tpot_s(constants) == pytest.approx(reported)


def test_no_row_is_predicted_faster_than_physics(sample):
    measured, _ = sample
    for one in measured:
        fitted = constants_for(one.configuration.system, one.configuration.engine)
        steps = one.measurements().steps
        assert (steps.tpot_s(fitted) >= steps.tpot_s(PERFECT)).all()
        for row, estimate in zip(one.rows, one.estimates(fitted), strict=True):
            predicted = ServedLatency(
                row.input_tokens,
                row.output_tokens,
                estimate.running,
                estimate.ttft_s - estimate.admission_wait_s,
                estimate.tpot_s,
            )
            assert estimate.tpot_s >= decode_bound_s(predicted, one.configuration.deployment, one.configuration.device)


def test_kv_cliff_of_every_pair_of_the_70b(sample):
    measured, _ = sample
    pairs = [
        pair
        for one in measured
        if one.configuration.model == "Llama-3.1-70B"
        for pair in cliff_pairs(one, constants_for(one.configuration.system, one.configuration.engine))
    ]
    assert len(pairs) >= 15
    assert sum(pair.measured for pair in pairs) == 3
    assert all(pair.right for pair in pairs)


def test_waits_beyond_the_cliff_are_of_the_measured_size(sample):
    measured, _ = sample
    ratios = [
        estimate.ttft_s / row.ttft_s
        for one in measured
        if one.configuration.model == "Llama-3.1-70B" and one.configuration.engine == "trtllm"
        for row, estimate in zip(
            one.rows, one.estimates(constants_for(one.configuration.system, one.configuration.engine)), strict=True
        )
        if estimate.beyond_kv
    ]
    assert len(ratios) >= 2
    assert all(0.6 < ratio < 1.7 for ratio in ratios)


def test_a_fit_to_the_sample_reaches_both_kinds(sample):
    measured, _ = sample
    fitted = fit_constants([one.measurements() for one in measured])
    for routed, bar in ((False, 0.07), (True, 0.13)):
        errors = [
            np.abs(np.expm1(one.measurements().log_errors(fitted.values)))
            for one in measured
            if one.configuration.routed is routed
        ]
        assert np.median(np.concatenate(errors)) < bar
    assert constants_of(fitted.values, "vllm").step_s > constants_of(fitted.values, "trtllm").step_s
