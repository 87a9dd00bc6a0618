from __future__ import annotations

import json
import subprocess
import sys

import pytest


def doctor(*flags: str) -> str:
    done = subprocess.run([sys.executable, "-m", "argosy", "doctor", *flags], capture_output=True, text=True, check=True)
    return done.stdout


def test_json_holds_what_was_measured_in_si_units():
    found = json.loads(doctor("--json"))
    assert found["processor"]
    assert 2**28 < found["memory_bytes"] < 2**50
    assert 1e8 < found["memory_bandwidth_bytes_per_s"] < 1e13
    assert 1e8 < found["fp32_flop_per_s"] < 1e14


@pytest.mark.parametrize("name", ["processor", "memory bandwidth", "fp32 arithmetic", "ridge"])
def test_each_figure_is_named(name):
    assert f"\n{name}" in "\n" + doctor()
