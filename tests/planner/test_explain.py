import dataclasses

import pytest

from argosy.cost.catalogue import find_device, find_link, find_model
from argosy.cost.formats import WeightFormat
from argosy.cost.parallel import ParallelPlan
from argosy.errors import ConfigError
from argosy.planner.explain import explain_plan, weight_format
from argosy.planner.explain_formats import explain_formats
from argosy.planner.explain_kv import explain_chunk_size, explain_kv_transfer
from argosy.planner.explain_sharding import explain_sharding
from argosy.planner.explain_speculation import explain_speculation
from argosy.planner.explanation import Case, largest
from argosy.planner.offers import DeviceOffer
from argosy.planner.serving import plan_serving
from argosy.planner.serving_question import DraftModel
from argosy.planner.traffic import Traffic

ONE = ParallelPlan.for_serving(1)


@pytest.fixture
def case(ask) -> Case:
    return Case.of(ask(traffic=Traffic.of(1, 2000, 200)))


def test_tensor_parallelism_is_faster_inside_a_node_and_pipelines_idle(case: Case):
    explanation = explain_sharding(case, 4, sequences=8)
    rows = {row.label: row.figures for row in explanation.rows}
    assert rows["TP 4"]["TPOT ms"] < rows["PP 4"]["TPOT ms"]
    assert rows["TP 4"]["network share of step"] > rows["PP 4"]["network share of step"]
    assert explanation.verdict.startswith("TP 4")
    assert f"{rows['PP 4']['TPOT ms'] / rows['TP 4']['TPOT ms']:.2f} times" in explanation.because[0]


def test_slow_links_slow_tensor_parallelism_and_spare_pipelines(ask):
    fast = find_device("H100 SXM")
    slow = dataclasses.replace(fast, name="H100 over PCIe 4", scale_up=find_device("L4").host)
    rows = []
    for device in (fast, slow):
        case = Case.of(ask(devices=(DeviceOffer(device, low_usd_per_h=1, high_usd_per_h=1),)))
        rows.append({row.label: row.figures for row in explain_sharding(case, 4, sequences=64).rows})
    assert rows[1]["TP 4"]["network share of step"] > 2 * rows[0]["TP 4"]["network share of step"]
    assert rows[1]["TP 4"]["TPOT ms"] > 1.1 * rows[0]["TP 4"]["TPOT ms"]
    assert rows[1]["PP 4"]["TPOT ms"] < 1.05 * rows[0]["PP 4"]["TPOT ms"]


def test_ways_that_do_not_divide_are_said(ask):
    case = Case.of(ask(model="Qwen2.5-0.5B"))
    explanation = explain_sharding(case, 8, sequences=4)
    assert [row.label for row in explanation.rows] == ["PP 8"]
    assert any("TP 8 is not possible" in line and "14" in line for line in explanation.because)
    with pytest.raises(ConfigError, match="at least 2"):
        explain_sharding(case, 1)


def test_formats_follow_the_bottleneck(case: Case):
    """One sequence is bound by memory, where the fewest bytes win; a prompt by arithmetic, where native fp8 does."""
    explanation = explain_formats(case, ONE, sequences=1)
    rows = {row.label: row.figures for row in explanation.rows}
    assert rows["int4 weight-only weights, bf16 KV"]["TPOT ms"] < rows["fp8 weights, bf16 KV"]["TPOT ms"]
    assert rows["fp8 weights, bf16 KV"]["prompt ms"] < rows["int4 weight-only weights, bf16 KV"]["prompt ms"]
    assert "memory bandwidth" in explanation.because[0]
    assert any("int4 weight-only decodes faster than fp8 up to" in line for line in explanation.because)


def test_the_batch_where_fp8_overtakes_int4_is_where_the_times_cross(case: Case):
    line = next(line for line in explain_formats(case, ONE).because if "up to" in line)
    crossing = int(line.split("up to ")[1].split()[0])
    four, eight = (case.model(case.deployment(ONE, f)) for f in (WeightFormat.INT4_WEIGHT_ONLY, WeightFormat.FP8))
    assert four.decode(crossing, case.context).latency_s[0] < eight.decode(crossing, case.context).latency_s[0]
    assert four.decode(crossing + 1, case.context).latency_s[0] >= eight.decode(crossing + 1, case.context).latency_s[0]


def test_speculation_needs_more_acceptance_at_larger_batches(case: Case):
    explanation = explain_speculation(case, ONE, find_model("Llama-3.2-1B"), drafts=4, acceptance=0.6)
    needed = [row.figures["break-even acceptance"] for row in explanation.rows if "break-even acceptance" in row.figures]
    assert needed == sorted(needed)
    for row in explanation.rows:
        if "break-even acceptance" in row.figures:
            assert (row.figures["speed-up"] > 1) == (row.figures["break-even acceptance"] < 0.6)
    assert any("instead of" in line and "sequences" in line for line in explanation.because)


def test_a_useless_draft_does_not_pay(case: Case):
    explanation = explain_speculation(case, ONE, find_model("Llama-3.2-1B"), drafts=4, acceptance=0.0)
    assert explanation.verdict.startswith("does not pay")


def test_kv_is_transferred_above_the_break_even_bandwidth(case: Case):
    explanation = explain_kv_transfer(case, ParallelPlan.for_serving(2), 4096)
    bandwidth = float(explanation.verdict.split("more than ")[1].split()[0]) * 1e9
    kv_bytes = 4096 * 128 * 1024
    rebuild_s = kv_bytes / 2 / bandwidth
    for row in explanation.rows:
        assert row.figures["transfer ms"] == pytest.approx(
            (kv_bytes / 2 / (row.figures["GB/s"] * 1e9) + find_link(row.label).latency.value) * 1e3
        )
    slow = [row for row in explanation.rows if row.figures["transfer ms"] / 1e3 >= rebuild_s]
    assert all(row.figures["GB/s"] * 1e9 <= bandwidth * 1.05 for row in slow)


def test_the_chunk_is_the_largest_within_the_target(case: Case):
    explanation = explain_chunk_size(case, ONE, 0.030, sequences=16)
    chunk = int(explanation.verdict.split()[2])
    rows = {row.label: row.figures for row in explanation.rows}
    assert rows[f"{chunk} tokens"]["step ms"] <= 30
    larger = [figures["step ms"] for label, figures in rows.items() if int(label.split()[0]) > chunk]
    assert all(step > 30 for step in larger)
    assert explain_chunk_size(case, ONE, 0.001, sequences=16).verdict.startswith("none")


def test_a_plan_is_explained_as_a_whole(ask):
    question = ask(draft=DraftModel("Llama-3.2-1B", 0.7))
    plan = plan_serving(question).best
    topics = [explanation.topic for explanation in explain_plan(question, plan)]
    assert any("formats" in topic for topic in topics)
    assert any("chunk size" in topic for topic in topics)
    assert any("KV of" in topic for topic in topics)
    assert any("drafts by" in topic for topic in topics)
    assert weight_format(plan.pools[0]) in set(WeightFormat)


def test_largest_finds_the_last_that_holds():
    assert largest(1, 100, lambda n: n * n <= 50) == 7
    assert largest(1, 100, lambda n: n > 0) == 100
    assert largest(1, 100, lambda n: n > 1000) is None
