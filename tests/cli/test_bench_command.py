"""`argosy bench`: flags, refusals, and what it prints and writes, against a small server of the standard library."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from argosy.bench.load import Cut
from argosy.cli.bench_serve import plan_load
from argosy.cli.main import run

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{46 + i // 2}.{i % 2}000000,{50 + 100 * i},{10 + i}\n" for i in range(8)
)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    status = 200

    def do_GET(self) -> None:
        self.reply(b'{"data": [{"id": "m1"}]}', 200)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self.reply(json.dumps({"count": len(body["prompt"].split())}).encode(), 200)
        elif self.status != 200:
            self.reply(b'{"error": {"message": "overloaded"}}', self.status)
        else:
            tokens = body["max_tokens"]
            events = [{"choices": [{"text": " w"}]}] * tokens
            events.append(
                {"choices": [], "usage": {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": tokens}}
            )
            lines = [json.dumps(event) for event in events]
            self.reply("".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode(), 200)

    def reply(self, body: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def url(monkeypatch) -> Iterator[str]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{http.server_address[1]}"
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def trace(tmp_path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return path


def outcome(capsys, *arguments: str) -> tuple[int, str, str]:
    code = run(["bench", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def serve(capsys, url: str, *arguments: object) -> tuple[int, str, str]:
    return outcome(capsys, "serve", "--base-url", url, "--warmup", 1, "--max-lateness", 30, *arguments)


@pytest.mark.parametrize("command", [[], ["offline"], ["serve"]])
def test_help_teaches_with_examples(capsys, command):
    code, out, _ = outcome(capsys, *command, "--help")
    assert code == 0
    assert "Examples:" in out
    assert "argosy bench " in out


def test_json_has_figures_of_the_whole_run(capsys, url):
    code, out, _ = serve(
        capsys, url, "--concurrency", 2, "--requests", 5, "--input-tokens", 9, "--output-tokens", 4, "--json"
    )
    assert code == 0
    found = json.loads(out)
    assert found["requests"]["answered"] == 5
    assert (found["throughput"]["prompt_tokens"], found["throughput"]["output_tokens"]) == (45, 20)
    assert found["latency"]["ttft_s"]["count"] == 5
    assert (found["settings"]["model"], found["settings"]["arrivals"]) == ("m1", "closed loop")
    assert "records" not in found


def test_a_table_a_file_and_a_page(capsys, url, trace, tmp_path):
    page, data = tmp_path / "run.html", tmp_path / "run.json"
    cuts = ("--max-prompt-tokens", 300, "--max-output-tokens", 12)
    arguments = ("--trace", trace, "--replay", "--speed", 20, "--slo", "ttft=60s", "--html", page, "--output", data, *cuts)
    code, out, err = serve(capsys, url, *arguments)
    assert code == 0
    for part in ("output tokens/s", "answered         8 of 8", "goodput          100 %", "TTFT", "E2E"):
        assert part in out
    assert "requests: 8 of 8" in err
    records = json.loads(data.read_text())["records"]
    assert [r["prompt_tokens"] for r in records] == [50, 150, 250, 300, 300, 300, 300, 300]
    assert [r["output_tokens"] for r in records] == [10, 11, 12, 12, 12, 12, 12, 12]
    assert [r["due_s"] for r in records[:3]] == pytest.approx([0.0, 0.005, 0.05], abs=1e-6)
    assert "</html>" in page.read_text()


def test_a_server_that_refuses_everything_fails_with_its_reason(capsys, url, monkeypatch):
    monkeypatch.setattr(Handler, "status", 503)
    code, _, err = serve(capsys, url, "--concurrency", 1, "--requests", 2)
    assert code == 1
    assert "no request of the warm-up was answered: http_503: overloaded" in err
    code, out, err = outcome(
        capsys, "serve", "--base-url", url, "--concurrency", "1", "--requests", "2", "--warmup", "0", "--max-lateness", "30"
    )
    assert code == 1
    assert "failed, http_503  2: overloaded" in out
    assert err.endswith("argosy: error: no request was answered\n")


def test_a_run_whose_generator_was_late_is_refused_and_leaves_nothing(capsys, url, tmp_path):
    page = tmp_path / "run.html"
    load = ("--rate", "200", "--requests", "5", "--warmup", "0", "--html", str(page))
    code, out, err = outcome(capsys, "serve", "--base-url", url, *load, "--max-lateness", "1e-9")
    assert (code, out) == (1, "")
    assert "the load generator sent requests up to" in err.splitlines()[-1]
    assert not page.exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give either MODEL"),
        (["m", "--base-url", "http://h", "--rate", "1"], "give either MODEL"),
        (["--base-url", "http://h"], "exactly one of --rate, --concurrency and --replay"),
        (["--base-url", "http://h", "--rate", "1", "--concurrency", "2"], "exactly one of"),
        (["--base-url", "http://h", "--replay"], "--replay needs a --trace"),
        (["--base-url", "http://h", "--rate", "0"], "--rate must be above 0"),
        (["--base-url", "http://h", "--rate", "1", "--requests", "0"], "--requests must be at least 1"),
        (["--base-url", "http://h", "--rate", "1", "--max-prompt-tokens", "9"], "cut a trace"),
        (["--base-url", "http://h", "--concurrency", "0"], "--concurrency must be at least 1"),
        (["--base-url", "h:80", "--concurrency", "1"], "must be like http://127.0.0.1:8000"),
        (["--base-url", "http://h", "--concurrency", "1", "--slo", "ttft"], "--slo"),
        (["--base-url", "http://h", "--concurrency", "1", "--extra-body", "{"], "--extra-body is not JSON"),
        (["--base-url", "http://h", "--concurrency", "1", "--endpoint", "edits"], "--endpoint must be"),
        (["--base-url", "http://h", "--concurrency", "1", "--html", "/no/such/folder/x.html"], "--html: cannot write"),
        (["--base-url", "http://h", "--concurrency", "1", "--max-lateness", "0"], "--max-lateness must be above 0"),
        (["--base-url", "http://h", "--concurrency", "1", "--trace", "/no/such.csv"], "such.csv"),
        (["smollm2-135m", "--concurrency", "1", "--", "--port", "9"], "--port is chosen by the benchmark"),
        (["smollm-135m", "--concurrency", "1"], "did you mean smollm2-135m?"),
    ],
)
def test_a_mistake_is_one_line(capsys, arguments, told):
    code, out, err = outcome(capsys, "serve", *arguments)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[-1].startswith("argosy: error: ")
    assert told in lines[-1]


def test_flags_for_the_server_need_a_model(capsys):
    code, _, err = outcome(capsys, "serve", "--base-url", "http://h", "--rate", "1", "--", "m", "--threads", "2")
    assert code == 2
    assert "give either MODEL" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--batch-sizes", "1,x"], "'1,x' must be whole numbers"),
        (["--batch-sizes", "", "--prefill-tokens", ""], "nothing to measure"),
        (["--output-tokens", "1"], "--output-tokens must be at least 3"),
        (["--output", "/"], "--output: cannot write /: it is a folder"),
    ],
)
def test_a_mistake_offline_is_one_line(capsys, arguments, told):
    code, out, err = outcome(capsys, "offline", "smollm2-135m", *arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1


def plan(**flags):
    given = {"trace": None, "cut": Cut(), "lengths": (None, None), "requests": None, "rate": None, "concurrency": None}
    return plan_load(**{**given, "replayed": False, "speed": 1.0, "duration": None, "seed": 0, **flags})


def test_how_many_requests_there_are(trace):
    assert len(plan(concurrency=4)) == 100
    assert len(plan(concurrency=4, trace=trace)) == 8
    assert len(plan(replayed=True, trace=trace, requests=3)) == 3
    assert len(plan(replayed=True, trace=trace, duration=1.05)) == 3
    assert len(plan(rate=100.0, duration=0.2)) < 40
    assert [p.offset_s for p in plan(concurrency=1, requests=2)] == [None, None]


@pytest.mark.model
@pytest.mark.slow
def test_the_engine_and_a_server_of_ours_with_a_real_model(capsys):
    rounds = ("--repetitions", "1", "--warmup", "0", "--output-tokens", "3", "--prompt-tokens", "4")
    small = ("--batch-sizes", "2", "--prefill-tokens", "8", "--kv-cache-memory", "128MiB")
    code, out, _ = outcome(capsys, "offline", "smollm2-135m", *small, *rounds, "--threads", "1", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["prefill"][0]["tokens_per_s"] > 0
    assert found["decode"][0]["steps"] == 2
    assert 0 <= found["decode"][0]["overhead_share"] < 1
    load = ("--concurrency", "2", "--requests", "3", "--input-tokens", "12", "--output-tokens", "3", "--warmup", "0")
    flags = ("--max-lateness", "30", "--json", "--", "--threads", "1", "--kv-cache-memory", "128MiB")
    code, out, err = outcome(capsys, "serve", "smollm2-135m", *load, *flags)
    assert code == 0, err
    found = json.loads(out)
    assert found["requests"] | {"error_messages": {}} == {
        "sent": 3,
        "answered": 3,
        "failed": 0,
        "errors": {},
        "error_messages": {},
        "short_outputs": 0,
        "prompt_mismatches": 0,
    }
