"""The page on the simulator names every key of the configuration, and its examples."""

from dataclasses import fields
from pathlib import Path

import pytest

from argosy.sim.config.replicas import ReplicaGroup
from argosy.sim.config.scaling import AutoscalerSettings
from argosy.sim.config.simulation import GatewaySettings, OutputSettings, SimulationConfig
from argosy.sim.examples import example_names

PAGE = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [SimulationConfig, ReplicaGroup, GatewaySettings, OutputSettings])
def test_every_key_is_on_the_page(kind):
    missing = [field.name for field in fields(kind) if f"`{field.name}`" not in PAGE]
    assert not missing


def test_every_rule_and_example_is_on_the_page():
    rules = AutoscalerSettings.__annotations__["rules"]
    kinds = [name for name in ("utilisation", "queue", "latency", "rate", "predicted") if f"`{name}`" in PAGE]
    assert len(kinds) == rules.count("Rule")
    assert all(f"`{name}`" in PAGE for name in example_names())
