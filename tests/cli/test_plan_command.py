import json
import re
import subprocess
import sys
from html import unescape

import pytest

from argosy.cli.main import run
from argosy.observe.report.figures import seconds, usd_range

SMALL = ["--qps", "5", "--input-tokens", "1000", "--output-tokens", "200"]
SPACE = [
    "--weights",
    "bf16,fp8",
    "--kv",
    "bf16",
    "--tensor",
    "1,2",
    "--pipeline",
    "1",
    "--chunk-tokens",
    "512,2k",
    "--no-disaggregate",
]
SERVE = ["plan", "serve", "llama-3.1-8b", *SMALL, *SPACE, "--device", "l40s:8@1-2", "--ttft", "2s@p95", "--tpot", "60ms@p95"]


def outcome(capsys, *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in ("serve", "train", "memory", "compare"))])
def test_help_teaches_with_examples(capsys, arguments):
    code, out, err = outcome(capsys, "plan", *arguments)
    assert (code, err) == (0, "")
    assert "Examples:" in out
    assert "argosy plan " in out


def test_plans_are_shown_with_what_binds_and_why(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = outcome(capsys, *SERVE, "--top", "2")
    assert (code, err) == (0, "")
    assert out.startswith("Llama-3.1-8B: 5 requests/s")
    for part in (
        "service level: TTFT 2 s at p95, TPOT 60 ms at p95",
        "Plans by price",
        "Plan 1: ",
        "KV cliff",
        "binds",
        "Why plan 1",
    ):
        assert part in out
    assert re.search(r"memory of the fullest device [●◆◐○◇?]: [\d.]+ GiB of 45 GiB", out)
    assert re.search(r"█ weights [\d.]+ GiB  ▓ KV [\d.]+ GiB", out)
    assert "◇ second-hand" in out


@pytest.mark.parametrize("columns", [80, 100])
def test_lines_stay_within_the_width(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in (SERVE, ["plan", "devices"], ["plan", "devices", "h100-sxm"], ["plan", "models"]):
        _, out, _ = outcome(capsys, *arguments)
        assert max(len(line.rstrip()) for line in out.splitlines()) <= columns


def test_json_holds_the_whole_answer(capsys):
    code, out, _ = outcome(capsys, *SERVE, "--json", "--top", "3")
    assert code == 0
    answer = json.loads(out)
    assert answer["model"] == "Llama-3.1-8B"
    assert 1 <= len(answer["plans"]) <= 3
    best = answer["plans"][0]
    assert best["pools"][0]["device"] == "L40S"
    assert best["cost"]["per_h"] == {
        "low": best["pools"][0]["replicas"] * best["pools"][0]["devices_per_replica"] * 1.0,
        "high": best["pools"][0]["replicas"] * best["pools"][0]["devices_per_replica"] * 2.0,
    }
    targets = {entry["percentile"]: entry for entry in best["latency"]["ttft"]}
    assert targets[95.0]["target_s"] == 2.0
    assert targets[95.0]["seconds"] <= 2.0
    assert "explanations" not in answer


def test_flags_reach_the_question(capsys):
    """Each narrows or moves the answer in the way it says."""

    def answer(*more: str):
        return json.loads(outcome(capsys, *SERVE, "--json", "--top", "20", *more)[1])

    pools = [
        pool for plan in answer("--weights", "fp8", "--tensor", "2", "--max-batch", "16")["plans"] for pool in plan["pools"]
    ]
    assert {(pool["weights"], pool["tensor"], pool["max_batch"]) for pool in pools} == {("fp8", 2, 16)}
    assert all(plan["cost"]["per_h"]["high"] <= 4 for plan in answer("--max-usd-per-hour", "4")["plans"])
    assert answer("--output-cv", "1")["plans"][0]["latency"] != answer()["plans"][0]["latency"]
    cached = answer("--prefix-share", "60%", "--prefix-caching", "on")["plans"]
    assert all(plan["prefix_caching"] for plan in cached)
    drafted = answer("--draft", "llama-3.2-1b", "--acceptance", "0.8", "--drafts", "3", "--qps", "0.2")
    assert 3 in {plan["speculation"]["drafts"] for plan in drafted["by_latency"] if plan["speculation"]}
    assert len(answer("--explain")["explanations"]) >= 2


def test_no_plan_is_an_answer_with_the_smallest_change_and_exit_code_1(capsys):
    code, out, err = outcome(capsys, *SERVE[:-4], "--ttft", "2ms@p95")
    assert (code, err) == (1, "")
    assert "No plan keeps this service level" in out
    assert "smallest change first" in out
    code, out, _ = outcome(capsys, *SERVE[:-4], "--ttft", "2ms@p95", "--json")
    assert code == 1
    assert json.loads(out)["infeasible"]["reason"]


def test_the_report_holds_the_figures_of_the_answer_and_stands_alone(capsys, tmp_path):
    path = tmp_path / "plan.html"
    code, out, _ = outcome(capsys, *SERVE, "--html", str(path), "--json")
    assert code == 0
    answer, text = json.loads(out), path.read_text(encoding="utf-8")
    plain = unescape(text)
    for plan in answer["plans"]:
        assert usd_range(**plan["cost"]["per_h"]) in plain
        assert usd_range(**plan["cost"]["per_million_tokens"]) in plain
        assert next(seconds(entry["seconds"]) for entry in plan["latency"]["ttft"] if entry["percentile"] == 95) in plain
    for point in answer["pareto"]:
        assert point["plan"] in plain
    assert text.count("<svg") == 3
    assert "NVIDIA data sheet of the product" in plain
    assert not re.search(r"https?://|src=|href=|@import|url\(", text)


def test_where_no_report_can_be_written_is_told_before_the_search(capsys, tmp_path):
    assert outcome(capsys, *SERVE, "--html", str(tmp_path))[::2] == (
        2,
        f"argosy: error: --html: {tmp_path} is a folder; name a file\n",
    )
    code, _, err = outcome(capsys, *SERVE, "--html", str(tmp_path / "none" / "plan.html"))
    assert code == 2
    assert err.startswith("argosy: error: --html: there is no folder")


def test_a_trace_stands_for_the_traffic(capsys, tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 500 * i, "input_length": 600 + 10 * i, "output_length": 100, "hash_ids": [1, 2 + i]} for i in range(40)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    traced = ["plan", "serve", "llama-3.1-8b", "--trace", str(path), *SPACE, "--device", "l40s@1", "--json"]
    code, out, _ = outcome(capsys, *traced)
    assert code == 0
    assert json.loads(out)["plans"][0]["throughput"]["requests_per_s"] == pytest.approx(2.0)
    doubled = json.loads(outcome(capsys, *traced, "--trace-scale", "2")[1])
    assert doubled["plans"][0]["throughput"]["requests_per_s"] == pytest.approx(4.0)
    code, _, err = outcome(capsys, *traced, "--qps", "3")
    assert (code, err) == (2, "argosy: error: --trace says that already; leave --qps out\n")


def test_devices_and_models_are_listed_with_their_sources(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = outcome(capsys, "plan", "devices")
    assert code == 0
    assert re.search(r"H100 SXM +989 ◆ +1,978 ◆ +– +80 GiB ◇ +3,350 ◆ +450 ◆ +700 ◆ +\$[\d.–]+ ◇", out)
    [device] = json.loads(outcome(capsys, "plan", "devices", "h100_sxm", "--json")[1])
    assert device["peak"]["bf16"]["value"] == 989e12
    assert device["peak"]["bf16"]["source"] == "NVIDIA data sheet of the product"
    assert device["peak"]["bf16"]["grade"] == "primary"
    assert device["prices"][0]["low"]["as_of"]
    [model] = json.loads(outcome(capsys, "plan", "models", "llama-3.1-8b", "--json")[1])
    assert (model["parameters"], model["kv_bytes_per_token_bf16"]) == (8_030_261_248, 131_072)
    assert model["source"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "srve"], "no such command"),
        (["plan", "serve"], "missing argument 'model'"),
        (["plan", "serve", "llama-3.1-8b"], "--qps is needed, or --trace"),
        (["plan", "serve", "llama-3.1-8b", *SMALL], "--device is needed"),
        (["plan", "serve", "llama-3.1-8b", *SMALL[2:], "--qps", "-1", "--device", "l4"], "--qps: '-1' is not a rate"),
        (["plan", "serve", "llama-3.1-8b", *SMALL[2:], "--qps", "nan", "--device", "l4"], "--qps: 'nan' is not a rate"),
        (
            ["plan", "serve", "llama-3.1-8b", "--qps", "1", "--input-tokens", "0"],
            "--input-tokens: '0' must be a whole number",
        ),
        (["plan", "serve", "lama-3.1-8b", *SMALL, "--device", "l4"], "did you mean llama-3.1-8b"),
        (["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "h100"], "did you mean h100 sxm, h100 pcie"),
        (["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "l4:0"], "--device: '0' must be"),
        (["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "a30"], "state one with --device name@price"),
        (["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "l4", "--tensor", "3"], "does not divide 32 attention heads"),
        (["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "l4", "--ttft", "2"], "--ttft: '2' is not a time"),
        (["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "l4", "--input-cv", "nan"], "--input-cv must be finite"),
        (["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "l4", "--prefix-share", "1"], "--prefix-share must be"),
        (["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "l4", "--weights", "q4"], "--weights takes auto, bf16"),
        (["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "l4", "--kv", "int2"], "--kv takes auto, bf16"),
        (
            ["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "l4", "--prefix-caching", "x"],
            "--prefix-caching takes auto, on, off",
        ),
        (
            ["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "l4", "--term", "x"],
            "--term takes on-demand, reserved, spot",
        ),
        (["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "l4", "--top", "0"], "--top: '0' must be"),
        (
            ["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "l4", "--draft", "llama-3.2-1b"],
            "--draft needs --acceptance",
        ),
        (["plan", "serve", "llama-3.1-8b", *SMALL, "--device", "l4", "--drafts", "2"], "--drafts needs --draft"),
        (["plan", "serve", "llama-3.1-8b", "--trace", "none.csv", "--device", "l4"], "trace none.csv cannot be read"),
        (["plan", "devices", "h1000"], "no device is called 'h1000'"),
        (["plan", "models", "lama-3.1-8b"], "did you mean llama-3.1-8b"),
    ],
)
def test_nonsense_is_one_line_and_exit_code_2(capsys, arguments, message):
    code, out, err = outcome(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err.lower()
    assert len(err.splitlines()) == 1


def test_planning_loads_neither_torch_nor_a_web_framework():
    code = (
        "import sys; from argosy.cli.main import run\n"
        f"assert run({SERVE!r}) == 0\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'gguf', 'fastapi', 'scipy', 'pandas'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "loaded: []", done.stderr


TRAIN = ["plan", "train", "llama-3.2-1b", "--tokens", "100B", "--batch-tokens", "1Mi", "--device", "h100-sxm:32@2-3"]
FEW = ["--gpus", "16,32", "--tensor", "1,2", "--pipeline", "1", "--zero", "1,3", "--micro-batch", "1,2"]


def test_training_plans_are_shown_with_memory_time_and_price(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = outcome(capsys, *TRAIN, *FEW, "--deadline", "45d", "--top", "3")
    assert (code, err) == (0, "")
    assert out.startswith("Llama-3.2-1B: 100 B tokens, batches of 256 sequences of 4,096, adam in bf16, within 45 d")
    for part in ("Plans by price of the whole run", "Plan 1: ", "MFU", "█ parameters", "▒ activations", "Why plan 1"):
        assert part in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100


def test_training_json_and_report_hold_the_same_figures(capsys, tmp_path):
    path = tmp_path / "train.html"
    code, out, _ = outcome(capsys, *TRAIN, *FEW, "--json", "--html", str(path))
    assert code == 0
    answer, text = json.loads(out), path.read_text(encoding="utf-8")
    best = answer["plans"][0]
    hours = best["days"] * 24 * best["layout"]["devices"]
    assert best["usd"] == {"low": pytest.approx(2 * hours), "high": pytest.approx(3 * hours)}
    assert {plan["layout"]["zero"] for plan in answer["plans"]} <= {1, 3}
    for plan in answer["plans"]:
        assert usd_range(**plan["usd"]) in unescape(text)
        assert seconds(plan["days"] * 86400) in unescape(text)
    assert text.count("<svg") == 2
    assert not re.search(r"https?://|src=|href=|@import|url\(", text)


def test_a_deadline_that_cannot_be_met_is_answered_with_changes(capsys):
    code, out, err = outcome(capsys, *TRAIN, *FEW, "--deadline", "6h")
    assert (code, err) == (1, "")
    assert "No plan" in out
    assert "smallest change first" in out


MEMORY = ["plan", "memory", "llama-3.1-70b", "--tensor", "2", "--context", "8Ki", "--concurrency", "32"]


def test_memory_is_shown_as_a_bar_and_what_is_missing_is_told(capsys, tmp_path):
    path = tmp_path / "memory.html"
    code, out, err = outcome(capsys, *MEMORY, "--device", "h100-sxm", "--device", "h200-sxm", "--html", str(path))
    assert (code, err) == (0, "")
    assert re.search(r"fullest device ◇: 110 GiB of 80 GiB, 30\.\d GiB too much", out)
    # 2 x 80 layers x 8 heads x 128 x 2 bytes over 2 devices
    assert "164 kB of a token and 1.25 GiB of a request" in out
    assert "32 of 8,192 tokens fit" in out
    text = unescape(path.read_text(encoding="utf-8"))
    assert "ends at 80 GiB" in text
    assert "KV 40 GiB" in text


def test_memory_json_and_exit_code_1_where_nothing_fits(capsys):
    code, out, _ = outcome(capsys, *MEMORY, "--device", "h100-sxm", "--json")
    [answer] = json.loads(out)
    assert code == 1
    assert answer["fits"] is False
    assert answer["breakdown"]["kv_bytes"] == 32 * 8192 * 163_840
    assert answer["why_not"].startswith("out of memory by")
    code, out, _ = outcome(capsys, *MEMORY, "--device", "h100-sxm", "--json", "--weights", "fp8", "--kv", "fp8")
    [smaller] = json.loads(out)
    assert code == 0
    assert smaller["breakdown"]["kv_bytes"] == answer["breakdown"]["kv_bytes"] / 2
    assert outcome(capsys, *MEMORY, "--device", "h200-sxm", "--memory-fraction", "0.5")[0] == 1


def test_devices_are_compared_by_the_price_of_tokens(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "100")
    path = tmp_path / "compare.html"
    arguments = ["plan", "compare", "llama-3.1-8b", "--device", "l40s@1", "--device", "h100-sxm@9", "--device", "t4:1@0.4"]
    code, out, err = outcome(capsys, *arguments, "--html", str(path))
    assert (code, err) == (0, "")
    assert out.index("L40S") < out.index("H100 SXM") < out.index("Not possible") < out.index("T4")
    answer = json.loads(outcome(capsys, *arguments, "--json")[1])
    text = unescape(path.read_text(encoding="utf-8"))
    for row in answer["devices"][:2]:
        assert usd_range(**row["usd_per_million_tokens"]) in text
    assert answer["devices"][2]["why_not"] in text
    assert json.loads(outcome(capsys, *arguments, "--json", "--output-tokens", "500")[1])["output_tokens"] == 500


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "llama-3.1-8b"], "--tokens is needed"),
        (["train", "llama-3.1-8b", "--tokens", "2T"], "--device is needed"),
        (["train", "llama-3.1-8b", "--tokens", "0", "--device", "h100-sxm"], "--tokens: '0' must be"),
        (["train", "llama-3.1-8b", "--tokens", "2T", "--deadline", "45"], "--deadline: '45' is not a time"),
        (
            ["train", "llama-3.1-8b", "--tokens", "2T", "--batch-tokens", "1000", "--device", "h100-sxm"],
            "--batch-tokens 1000",
        ),
        (
            ["train", "llama-3.1-8b", "--tokens", "2T", "--device", "h100-sxm", "--zero", "4"],
            "--zero takes auto, 0, 1, 2, 3",
        ),
        (["train", "llama-3.1-8b", "--tokens", "2T", "--device", "h100-sxm", "--recompute", "x"], "--recompute takes none"),
        (["train", "llama-3.1-8b", "--tokens", "2T", "--device", "h100-sxm", "--schedule", "x"], "--schedule takes gpipe"),
        (["train", "llama-3.1-8b", "--tokens", "2T", "--device", "h100-sxm", "--optimizer", "x"], "--optimizer takes adam"),
        (["train", "llama-3.1-8b", "--tokens", "2T", "--device", "h100-sxm", "--compute", "int3"], "--compute takes bf16"),
        (["train", "llama-3.1-8b", "--tokens", "2T", "--device", "h100-sxm", "--max-usd", "nan"], "--max-usd must be"),
        (["memory", "llama-3.1-8b", "--context", "8k"], "--device is needed"),
        (["memory", "llama-3.1-8b", "--device", "h100-sxm"], "--context is needed"),
        (["memory", "llama-3.1-8b", "--device", "h100-sxm", "--context", "8k", "--tensor", "3"], "does not divide"),
        (["memory", "llama-3.1-8b", "--device", "h100-sxm", "--context", "8k", "--weights", "bf16,fp8"], "takes one format"),
        (["memory", "llama-3.1-8b", "--device", "h100-sxm", "--context", "8k", "--memory-fraction", "2"], "between 0 and 1"),
        (["compare", "llama-3.1-8b"], "--device is needed"),
        (["compare", "llama-3.1-8b", "--device", "a30"], "state one with --device name@price"),
        (["compare", "llama-3.1-8b", "--device", "h100-sxm", "--kv", "auto"], "takes one format"),
    ],
)
def test_nonsense_of_the_other_commands_is_one_line_too(capsys, arguments, message):
    code, out, err = outcome(capsys, "plan", *arguments)
    assert (code, out) == (2, "")
    assert message in err.lower()
    assert len(err.splitlines()) == 1


def test_a_node_is_a_device_with_its_own_network(capsys):
    code, out, _ = outcome(capsys, *[part.replace("l40s:8@1-2", "dgx-h100:8@3") for part in SERVE], "--json")
    assert code == 0
    best = json.loads(out)["plans"][0]
    assert best["pools"][0]["device"] == "H100 SXM"
    assert best["cost"]["per_h"]["high"] == 3.0 * best["pools"][0]["devices_per_replica"] * best["pools"][0]["replicas"]


def test_prices_of_a_term_are_those_of_that_term(capsys):
    spot = [part.replace("l40s:8@1-2", "h100-sxm:8") for part in SERVE]
    best = json.loads(outcome(capsys, *spot, "--term", "spot", "--region", "us-west", "--json")[1])["plans"][0]
    assert best["cost"]["per_h"]["low"] == pytest.approx(
        2.30 * sum(pool["replicas"] * pool["devices_per_replica"] for pool in best["pools"])
    )


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_narrow_terminals_lose_columns_but_no_names(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = outcome(capsys, "plan", "devices")
    assert re.search(r"^H100 SXM +989 ◆", out, re.MULTILINE)
    assert re.search(r"\$3\.80–6\.98 ◇", out)
    assert ("in a wider terminal or --json: W" in out) == (columns < 100)
    assert ("450 ◆" in out) == (columns >= 100)
    _, out, _ = outcome(capsys, *SERVE)
    assert ("LOAD" in out.split("Plan 1")[0].split("in a wider")[0]) == (columns >= 100)
    _, out, _ = outcome(capsys, "plan", "models", "llama-3.1-8b")
    assert re.search(r"^Llama-3\.1-8B ◇ +8\.03 B +8\.03 B", out, re.MULTILINE)
