from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from argosy.errors import InvalidRequest
from argosy.fleet.gateway.spend import as_csv, check_day, spend_logs, spend_report
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.usage_commit import commit_usage

DAY_S = 86_400
T0_S = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


@pytest.fixture
def filled(store: Store, make_record: Any) -> Store:
    commit_usage(
        store,
        [
            make_record(key_id="a", team_id="t", model="m", ended_at_s=T0_S, cost_nano_usd=1_000_000_000),
            make_record(key_id="a", team_id="t", model="n", ended_at_s=T0_S, cost_nano_usd=2_000_000_000),
            make_record(key_id="b", team_id="", model="m", ended_at_s=T0_S + DAY_S, cost_nano_usd=4_000_000_000),
        ],
    )
    return store


def test_sums_by_any_combination(filled: Store) -> None:
    by_key = spend_report(filled, ["api_key"])
    assert [(row["key_id"], row["requests"], row["spend"]) for row in by_key] == [("a", 2, 3.0), ("b", 1, 4.0)]
    by_both = spend_report(filled, ["day", "model"])
    assert [(row["day"], row["model"], row["spend"]) for row in by_both] == [
        ("2023-11-14", "m", 1.0),
        ("2023-11-14", "n", 2.0),
        ("2023-11-15", "m", 4.0),
    ]
    (total,) = spend_report(filled, [])
    expected = {"requests": 3, "input_tokens": 30, "cached_tokens": 12, "output_tokens": 15, "spend": 7.0}
    assert total == expected
    assert all(type(total[name]) is int for name in expected if name != "spend")


def test_days_are_included_at_both_ends(filled: Store) -> None:
    assert [r["spend"] for r in spend_report(filled, ["day"], start_day="2023-11-15")] == [4.0]
    assert [r["spend"] for r in spend_report(filled, ["day"], end_day="2023-11-14")] == [3.0]
    assert [r["spend"] for r in spend_report(filled, [], start_day="2023-11-14", end_day="2023-11-15")] == [7.0]
    assert spend_report(filled, [], start_day="2024-01-01")[0]["spend"] == 0.0
    with pytest.raises(InvalidRequest, match="before"):
        spend_report(filled, [], start_day="2023-11-15", end_day="2023-11-14")


def test_reports_are_bounded_by_columns(filled: Store) -> None:
    assert spend_report(filled, [], where={"team_id": "t", "model": "m"})[0]["spend"] == 1.0
    assert spend_report(filled, [], where={"team_id": None})[0]["spend"] == 7.0
    with pytest.raises(InvalidRequest, match="group_by"):
        spend_report(filled, ["tags"])


def test_logs_are_the_latest_first_in_pages(filled: Store) -> None:
    logs = spend_logs(filled)
    assert [row["spend"] for row in logs] == [4.0, 1.0, 2.0]
    assert {row["organization_id"] for row in (*logs, *spend_report(filled, ["organization"]))} == {"org_a"}
    assert not any("org_id" in row for row in (*logs, *spend_report(filled, ["organization"])))
    assert [row["spend"] for row in spend_logs(filled, page=2, size=2)] == [2.0]
    assert [row["spend"] for row in spend_logs(filled, start_s=T0_S + DAY_S)] == [4.0]
    assert [row["spend"] for row in spend_logs(filled, end_s=T0_S + DAY_S, where={"model": "n"})] == [2.0]
    with pytest.raises(InvalidRequest):
        spend_logs(filled, size=0)


@pytest.mark.parametrize(
    "day", ["2023-13-01", "2023-1-1", "20231114", "today", "2023-11-14T00:00", "2026-W01-1", "9999-12-31"]
)
def test_days_are_days(day: str) -> None:
    with pytest.raises(InvalidRequest, match="2026-01-31") as caught:
        check_day(day, "start_date")
    assert caught.value.param == "start_date"


def test_csv_is_read_back_and_runs_no_formula(store: Store, make_record: Any) -> None:
    names = ["=1+1", "@x", "-x", "+x", 'a "quoted", one', "plain"]
    commit_usage(store, [make_record(model=name, cost_nano_usd=500_000_000) for name in names])
    rows = list(csv.DictReader(io.StringIO(as_csv(spend_report(store, ["model"])))))
    assert sorted(row["model"].removeprefix("'") for row in rows) == sorted(names)
    assert not [row for row in rows if row["model"][0] in "=+-@"]
    assert {row["spend"] for row in rows} == {"0.5"}
    assert as_csv([]) == ""
