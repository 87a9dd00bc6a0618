import io
import itertools
from collections import defaultdict

import orjson

from argosy.sim.outcome import StepSpan
from argosy.sim.perfetto import PerfettoTrace


def document(ran):
    return orjson.loads(ran.trace)


def test_it_is_one_json_document_with_a_process_for_each_replica(simulated):
    trace = document(simulated("faults: [{kind: crash, at_s: 8, replica: a-0}]\nclients: {timeout_s: 20}\n"))
    names = {event["args"]["name"]: event["pid"] for event in trace["traceEvents"] if event.get("name") == "process_name"}
    assert {"a-0", "a-1"} <= names.keys()
    assert len(set(names.values())) == len(names)
    assert {event["pid"] for event in trace["traceEvents"]} == set(names.values())
    assert trace["otherData"] == {"time": "simulated"}


def test_steps_of_a_replica_do_not_overlap_and_cover_its_busy_time(simulated):
    ran = simulated()
    by_process = defaultdict(list)
    for event in document(ran)["traceEvents"]:
        if event["ph"] == "X":
            by_process[event["pid"]].append(event)
    assert len(by_process) == 2
    for steps, replica in zip(by_process.values(), ran.run.results.replicas, strict=True):
        for before, after in itertools.pairwise(steps):
            assert after["ts"] >= before["ts"] + before["dur"] - 0.01
        assert abs(sum(step["dur"] for step in steps) / 1e6 - replica.busy_s) < 1e-3
        assert sum(step["args"]["steps"] for step in steps) == replica.steps


def test_phases_lie_within_their_request_and_follow_each_other(simulated):
    ran = simulated()
    slices = defaultdict(list)
    for event in document(ran)["traceEvents"]:
        if event["ph"] in "be":
            slices[event["id"]].append(event)
    assert len(slices) == ran.run.results.submitted
    for events in slices.values():
        begins = {event["name"]: event["ts"] for event in events if event["ph"] == "b"}
        ends = {event["name"]: event["ts"] for event in events if event["ph"] == "e"}
        whole = next(name for name in begins if name not in ("queued", "prefill", "decode"))
        assert begins[whole] == begins["queued"]
        assert ends["queued"] == begins["prefill"]
        assert ends["prefill"] == begins["decode"]
        assert ends["decode"] == ends[whole]


def test_it_stays_within_its_bound_and_says_from_where_on_it_is_cut(simulated):
    ran = simulated(max_events=120)
    trace = document(ran)
    assert 100 <= len(trace["traceEvents"]) <= 130
    latest_s = max(event["ts"] for event in trace["traceEvents"] if "ts" in event) / 1e6
    cut = trace["otherData"]["left out"]
    assert cut.startswith("everything from ")
    assert abs(float(cut.split()[2]) - latest_s) < 1.0
    assert latest_s < 10.0


def test_an_empty_trace_is_a_document_too():
    stream = io.BytesIO()
    PerfettoTrace(stream).close()
    assert orjson.loads(stream.getvalue())["traceEvents"] == []


def test_steps_in_a_row_are_one_slice():
    stream = io.BytesIO()
    trace = PerfettoTrace(stream)
    trace.steps("a", StepSpan(5, 1.0, [1.5, 2.0, 3.0], 4, 4, 4, 0, 100, 4, 4, 0, 10, 0))
    trace.close()
    (step,) = [event for event in orjson.loads(stream.getvalue())["traceEvents"] if event["ph"] == "X"]
    assert (step["name"], step["ts"], step["dur"], step["args"]["steps"]) == ("decode 4 x 3", 1e6, 2e6, 3)
