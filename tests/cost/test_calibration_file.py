import dataclasses
import json
import math

import pytest

from argosy.cost.calibration_file import calibrations_text, constants_for, packaged_calibrations, parse_calibrations
from argosy.cost.efficiency import Constants
from argosy.cost.quantity import Grade
from argosy.errors import ConfigError

(PACKAGED,) = packaged_calibrations()


def test_written_and_read_back():
    assert parse_calibrations(calibrations_text([PACKAGED])) == (PACKAGED,)


def test_the_packaged_one_says_how_good_it_is():
    assert PACKAGED.rows > 1000
    assert 0 < PACKAGED.held_out_median < 0.12
    assert set(PACKAGED.engines) == {"sglang", "trtllm", "vllm"}
    assert len(PACKAGED.values) == 14


def test_measured_pairs_get_fitted_constants():
    constants = constants_for("H100 SXM", "vllm")
    assert constants.grade is Grade.FITTED
    assert constants.held_out_error == PACKAGED.held_out_median
    assert constants.extrapolates(context=100_000, concurrency=64, pipeline=1) == ("context",)


def test_a_device_that_was_not_measured_gets_them_second_hand():
    constants = constants_for("A100 SXM 80GB", "vllm")
    assert constants.grade is Grade.SECONDARY
    assert constants.held_out_error is None
    assert "A100 SXM 80GB was not measured" in constants.source
    assert constants.launch_s == constants_for("H100 SXM", "vllm").launch_s


def test_an_engine_that_was_not_measured_gets_the_common_ones():
    assert constants_for("H100 SXM", "argosy") == Constants()


def test_the_latest_calibration_counts():
    later = dataclasses.replace(PACKAGED, values={**PACKAGED.values, "launch_s": 1e-6})
    assert constants_for("H100 SXM", "vllm", calibrations=[PACKAGED, later]).launch_s == 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": ""}, "needs a source"),
        ({"as_of": "yesterday"}, "ISO date"),
        ({"values": {**PACKAGED.values, "gemm_compute": 1.2}}, "compute efficiency"),
        ({"values": {**PACKAGED.values, "gemm_speed": 1.0}}, "unknown constant 'gemm_speed'"),
        ({"values": {**PACKAGED.values, "launch_s": math.nan}}, "launch_s must be finite"),
        ({"values": {}}, "has no gemm_compute"),
        ({"engines": ("vllm", "other")}, "has no step_s:other|unknown constant"),
    ],
)
def test_a_calibration_that_cannot_be_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(PACKAGED, **change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("{}", "must be a list"),
        ("[1]", "missing or unknown"),
        ('[{"name": "x"}]', "missing or unknown as_of"),
    ],
)
def test_a_file_that_is_not_one(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_calibrations(text)


def test_an_unknown_field_is_refused():
    (entry,) = json.loads(calibrations_text([PACKAGED]))
    with pytest.raises(ConfigError, match="missing or unknown colour"):
        parse_calibrations(json.dumps([{**entry, "colour": "red"}]))
