import json
from pathlib import Path

import pytest
import yaml

from argosy.fleet.gateway.dashboard import (
    alert_rules,
    alert_rules_yaml,
    dashboard,
    dashboard_json,
    level,
    metrics_in,
    percentile,
    rate,
)
from argosy.fleet.gateway.metric_list import METRIC_OF
from argosy.fleet.policies.alerts import AlertConfig

ROOT = Path(__file__).resolve().parents[3]


def expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def test_every_query_reads_a_metric_that_is_there_and_every_metric_is_shown():
    shown = {name for expression in expressions() for name in metrics_in(expression)}
    assert shown == set(METRIC_OF)


def test_every_rule_reads_a_metric_that_is_there():
    for rule in alert_rules()["groups"][0]["rules"]:
        names = metrics_in(rule["expr"])
        assert names
        assert names <= set(METRIC_OF)


def test_a_query_of_a_metric_or_label_that_is_not_there_cannot_be_made():
    for make in (rate, level):
        with pytest.raises(KeyError):
            make("argosy_gateway_nothing_total")
    with pytest.raises(AssertionError, match="has no label tenant"):
        percentile(0.5, "argosy_gateway_queue_wait_seconds", "tenant")
    assert metrics_in("sum(rate(argosy_gateway_nothing_total[1m]))") == {"argosy_gateway_nothing_total"}


def test_the_files_in_the_repository_are_those_that_are_made():
    assert (ROOT / "deploy/grafana/argosy-gateway.json").read_text() == dashboard_json(), "run make dashboards"
    assert (ROOT / "deploy/prometheus/argosy-gateway-alerts.yaml").read_text() == alert_rules_yaml(), "run make dashboards"


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    panels = json.loads(dashboard_json())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


def test_rules_have_the_thresholds_of_the_settings():
    config = AlertConfig(latency_factor=1.5, quota_ratio=0.8, fair_share_factor=3, hold_s=60)
    rules = {rule["alert"]: rule for rule in yaml.safe_load(alert_rules_yaml(config))["groups"][0]["rules"]}
    assert "1.5 * argosy_gateway_latency_target_seconds" in rules["ArgosyLatencyAboveTarget"]["expr"]
    assert rules["ArgosyQuotaNearlyUsed"]["expr"].endswith(">= 0.8")
    assert rules["ArgosyNoisyNeighbour"]["expr"].endswith("> 3")
    assert rules["ArgosyNoisyNeighbour"]["for"] == rules["ArgosyLatencyAboveTarget"]["for"] == "60s"
    defaults = {rule["alert"]: rule for rule in alert_rules()["groups"][0]["rules"]}
    assert "1.1 * " in defaults["ArgosyLatencyAboveTarget"]["expr"]
    assert defaults["ArgosyNoisyNeighbour"]["for"] == "300s"


def test_the_page_on_the_gateway_lists_every_metric():
    page = (ROOT / "docs/gateway.md").read_text()
    for spec in METRIC_OF.values():
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        row = f"| `{spec.name}` | {spec.kind} | {labels} | {spec.text} |"
        assert row in page, f"{spec.name} is not on the page: run make dashboards"
