"""Configurations small enough to build in no time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from argosy.settings.yaml_file import parse_yaml
from argosy.sim.config.simulation import SimulationConfig, parse_simulation

WORKLOAD = """
workload:
  duration_s: 10
  sources:
    - {name: u, arrivals: {kind: poisson, rate_per_s: 2}, requests: {user_tokens: 100, output_tokens: 10}}
"""
BASE = f"""
model: llama-3.1-8b
replicas:
  - {{name: a, count: 2, device: h100-sxm}}
{WORKLOAD}
"""


@pytest.fixture
def read() -> Callable[[str], SimulationConfig]:
    """The configuration that a text says, called `fleet.yaml`."""
    return lambda text: parse_simulation(parse_yaml(dedent(text), "fleet.yaml"), Path()).config


@pytest.fixture
def base() -> str:
    """A configuration of two replicas; more may be appended."""
    return BASE


@pytest.fixture
def workload() -> str:
    """The workload alone."""
    return WORKLOAD
