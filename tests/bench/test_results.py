import re

import pytest

from argosy.bench.generator import Run
from argosy.bench.load import fixed_lengths
from argosy.bench.percentiles import Percentiles
from argosy.bench.records import RequestRecord
from argosy.bench.serve_report import requests_in_flight, serve_report
from argosy.bench.serve_result import check_generator, rows, summarise
from argosy.bench.slo import ServiceLevel
from argosy.errors import ConfigError, MeasurementError


def record(due=0.0, sent=None, arrivals=(), done=0.0, output=None, prompt=8, text="", error="", wanted=4) -> RequestRecord:
    (planned,) = fixed_lengths(1, 8, wanted)
    sent = due if sent is None else sent
    return RequestRecord(
        planned, due, sent, tuple(arrivals), done, prompt, output, text, error, error and f"because {error}"
    )


def run(*records, lateness=(), lag=()) -> Run:
    return Run(tuple(records), 0.0, tuple(lateness), tuple(lag))


def test_latencies_count_from_when_a_request_was_due_not_sent():
    result = summarise(run(record(due=1.0, sent=3.0, arrivals=[4.0, 5.0, 7.0], done=7.5, output=4)))
    latencies = result.latencies
    assert latencies.ttft.p50 == 3.0
    assert latencies.tpot.p50 == 1.0  # 3 s over the 3 tokens after the first, though they came as 2 events
    assert (latencies.itl.count, latencies.itl.max) == (2, 2.0)
    assert latencies.e2e.p50 == 6.5


def test_throughput_is_over_the_time_to_the_last_answer_and_of_answered_requests():
    result = summarise(
        run(
            record(arrivals=[1.0, 2.0], done=2.0, output=4),
            record(arrivals=[3.0], done=4.0, output=2),
            record(arrivals=[1.0], done=5.0, error="cut"),
        )
    )
    assert result.output_tokens_per_s == 6 / 5
    assert result.requests_per_s == 2 / 5
    assert (result.errors, result.messages) == ({"cut": 1}, {"cut": "because cut"})
    assert result.short_outputs == 1
    assert result.as_dict()["throughput"]["total_tokens_per_s"] == (6 + 16) / 5


def test_tokens_come_from_usage_then_the_tokenizer_then_events():
    given = record(arrivals=[1.0, 2.0], done=2.0, output=9, text="a b c")
    counted = record(arrivals=[1.0, 2.0], done=2.0, text="a b c")
    assert summarise(run(given), count_output=lambda text: 3).output_tokens == 9
    assert summarise(run(counted), count_output=lambda text: len(text.split())).output_tokens == 3
    assert summarise(run(counted)).output_tokens == 2
    sources = summarise(run(given, counted)).as_dict()["throughput"]["output_tokens_counted_by"]
    assert sources == {"usage": 1, "events": 1}


def test_goodput_counts_requests_that_keep_every_limit_among_all_sent():
    good = record(arrivals=[0.2, 0.4], done=0.5, output=2)
    late = record(arrivals=[0.8, 0.9], done=1.0, output=2)
    slow = record(arrivals=[0.1, 1.9], done=2.0, output=2)
    single = record(arrivals=[0.1], done=0.2, output=1)
    failed = record(done=4.0, error="http_500")
    result = summarise(run(good, late, slow, single, failed), slo=ServiceLevel.parse("ttft=0.5,tpot=500ms"))
    assert result.goodput.share == 2 / 5
    assert result.goodput.requests_per_s == 2 / 4
    assert summarise(run(good), slo=ServiceLevel.parse("e2e=499ms")).goodput.share == 0.0
    assert summarise(run(good)).goodput is None


@pytest.mark.parametrize("text", ["", "ttft", "ttft=", "ttft=0", "ttft=-1", "ttft=1,ttft=2", "tftt=1", "tpot=5min", "e2e=x"])
def test_a_service_level_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="--slo"):
        ServiceLevel.parse(text)


def test_a_service_level_has_seconds_or_units():
    assert ServiceLevel.parse("ttft=0.5, tpot=50ms,e2e=20s") == ServiceLevel(0.5, 0.05, 20.0)


def test_a_late_generator_is_refused():
    fine = record(arrivals=[1.0], done=1.0, output=1)
    check_generator(summarise(run(fine, lateness=[0.001] * 100, lag=[0.002] * 100)), 0.05)
    for late in ({"lateness": [0.2] * 5 + [0.0] * 95}, {"lag": [0.2] * 5 + [0.0] * 95}):
        with pytest.raises(MeasurementError, match=r"up to 200 ms late \(p99\), more than the 50 ms of --max-lateness"):
            check_generator(summarise(run(fine, **late)), 0.05)


def test_percentiles_are_interpolated():
    found = Percentiles.of(list(range(101)))
    assert (found.count, found.mean, found.p50, found.p95, found.p99, found.max) == (101, 50.0, 50.0, 95.0, 99.0, 100.0)
    assert Percentiles.of([1.0, 2.0]).p50 == 1.5
    assert Percentiles.of([]) is None


def test_rows_are_relative_to_the_start():
    records = (
        record(due=11.0, sent=11.5, arrivals=[12.0, 13.0], done=14.0, output=4),
        record(due=12.0, done=12.5, error="cut"),
    )
    started = Run(records, 10.0, (), ())
    first, second = rows(started, summarise(started))
    assert (first["due_s"], first["sent_s"], first["first_text_s"], first["last_text_s"], first["done_s"]) == (
        1,
        1.5,
        2,
        3,
        4,
    )
    assert (second["first_text_s"], second["error"]) == (None, "cut")


def test_the_page_stands_on_its_own_and_names_everything():
    records = [record(due=i / 10, arrivals=[i / 10 + 0.1, i / 10 + 0.3], done=i / 10 + 0.4, output=4) for i in range(30)]
    broken = record(due=1.0, done=2.0, error="http_503")
    whole = run(*records, broken, lateness=[0.001] * 31)
    page = serve_report("a <run>", [("model", "m & n")], whole, summarise(whole, slo=ServiceLevel(ttft_s=0.2)))
    assert "a &lt;run&gt;" in page
    assert "m &amp; n" in page
    assert page.count("<svg ") == 3
    assert "because http_503" in page
    assert re.search(r"keep the SLO</span><b>97 %", page)
    for outside in ("<script", "http://", "https://", "@import", "url("):
        assert outside not in page


def test_a_run_without_an_answer_still_has_a_page():
    failed = run(record(done=1.0, error="connect"))
    assert "No request was answered." in serve_report("t", [], failed, summarise(failed))


def test_requests_in_flight_are_those_sent_and_not_yet_done():
    whole = Run((record(sent=10.0, done=14.0), record(sent=12.0, done=20.0), record(sent=15.0, done=16.0)), 10.0, (), ())
    curve = requests_in_flight(whole, 10.0)

    def at(moment: float) -> float:
        return max(curve, key=lambda point: -abs(point[0] - moment))[1]

    assert (curve[0], curve[-1]) == ((0.0, 1.0), (10.0, 0.0))
    assert [at(moment) for moment in (1.0, 3.0, 4.5, 5.5, 8.0)] == [1, 2, 1, 2, 1]
