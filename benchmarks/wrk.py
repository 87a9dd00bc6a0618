"""wrk, the load generator of the gateway benchmarks: closed loop, or paced to a rate."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.headers["authorization"] = "Bearer {key}"
wrk.body = [==[{body}]==]
{pace}
function done(summary, latency, requests)
  local e = summary.errors
  local errors = e.connect + e.read + e.write + e.status + e.timeout
  local form = '{{"requests": %d, "duration_us": %d, "errors": %d, "p50_us": %d, "p90_us": %d, "p99_us": %d, "mean_us": %f}}'
  io.write("\\nRESULT ", string.format(form, summary.requests, summary.duration, errors, latency:percentile(50),
    latency:percentile(90), latency:percentile(99), latency.mean), "\\n")
end
"""
_PACE = "function delay() return math.random(0, {most_ms}) end"


@dataclass(frozen=True, slots=True)
class WrkResult:
    """One run. `num_errors` counts connection faults and every status but 2xx and 3xx."""

    num_requests: int
    requests_per_s: float
    num_errors: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    mean_ms: float


def run_wrk(
    url: str,
    body: bytes,
    key: str,
    folder: Path,
    *,
    connections: int,
    seconds: float,
    core: int,
    rate_per_s: float | None = None,
) -> WrkResult:
    """Post `body` to `url` over `connections` for `seconds` from one core.

    Args:
        rate_per_s: each connection waits between answer and next request, uniformly at random, so that all together send
            about so many; None sends at once.
    """
    pace = ""
    if rate_per_s is not None:
        pace = _PACE.format(most_ms=max(1, round(2000.0 * connections / rate_per_s)))
    script = folder / "load.lua"
    script.write_text(_SCRIPT.format(key=key, body=body.decode(), pace=pace))
    command = ["taskset", "-c", str(core), "wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "30s"]
    done = subprocess.run([*command, "-s", str(script), url], capture_output=True, text=True, check=True)
    found = re.search(r"RESULT (\{.*\})", done.stdout)
    assert found is not None, done.stdout + done.stderr
    result = json.loads(found[1])
    seconds_taken = result["duration_us"] / 1e6
    return WrkResult(
        num_requests=result["requests"],
        requests_per_s=result["requests"] / seconds_taken,
        num_errors=result["errors"],
        p50_ms=result["p50_us"] / 1e3,
        p90_ms=result["p90_us"] / 1e3,
        p99_ms=result["p99_us"] / 1e3,
        mean_ms=result["mean_us"] / 1e3,
    )
