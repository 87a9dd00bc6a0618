"""`make fleet` as it runs: two engines and a gateway with a real model."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.model, pytest.mark.slow]
SCRIPT = Path(__file__).resolve().parents[2] / "examples/fleet/fleet.py"


def test_requests_go_through_and_ctrl_c_stops_everything(tmp_path):
    out = tmp_path / "out"
    with out.open("w") as file:
        process = subprocess.Popen([sys.executable, str(SCRIPT), "--port", "0"], stdout=file, stderr=subprocess.STDOUT)
    try:
        until_s = time.monotonic() + 240
        while "Ctrl-C stops." not in out.read_text():
            assert process.poll() is None, out.read_text()
            assert time.monotonic() < until_s, out.read_text()
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.terminate()  # it ends its engines
        process.wait(120)
    text = out.read_text()
    assert "Paris" in text
    assert "Rome" in text
    assert len(re.findall(r"smollm2-135m/(one|two)  tenant acme  200 ", text)) == 3
    assert re.findall(r"^(\w+) stopped \((-?\d+)\)$", text, re.MULTILINE) == [("gateway", "0"), ("two", "0"), ("one", "0")]
