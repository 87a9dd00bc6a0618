import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import TraceFileError
from argosy.sim.workload.recorded_trace import header_line, recorded_requests, request_line
from argosy.sim.workload.trace_request import Segment, TraceRequest

HEADER = header_line().rstrip()
Write = Callable[..., Path]
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
SEGMENTS = st.lists(
    st.builds(Segment, st.integers(0, (1 << 64) - 1), st.integers(1, 1 << 20), st.integers(0, 1 << 20)),
    min_size=1,
    max_size=5,
).map(tuple)


@st.composite
def requests(draw: st.DrawFn) -> TraceRequest:
    output_segments = draw(st.just(()) | SEGMENTS)
    return TraceRequest(
        request_id=draw(NAMES.filter(bool)),
        arrival_s=draw(st.floats(0, 1e8)),
        segments=draw(SEGMENTS),
        output_tokens=sum(part.num_tokens for part in output_segments) or draw(st.integers(1, 1 << 24)),
        session_id=draw(NAMES),
        tenant=draw(NAMES),
        priority=draw(st.integers(-(1 << 31), 1 << 31)),
        timeout_s=draw(st.none() | st.floats(1e-9, 1e8)),
        output_segments=output_segments,
    )


def line(**changes: object) -> str:
    return json.dumps({"id": "a", "arrival_s": 0.5, "prompt": 3, "output": 4} | changes)


@given(st.lists(requests(), max_size=5))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, written: list[TraceRequest]):
    written.sort(key=lambda request: request.arrival_s)
    path = tmp_path_factory.mktemp("r") / "t.ndjson"
    path.write_text(header_line() + "".join(map(request_line, written)), encoding="utf-8")
    assert list(recorded_requests(path)) == written


def test_the_form_is_as_documented(write: Write):
    rows = (
        '{"id":"7","arrival_s":0.25,"prompt":[["00000000000000a1",16],["9f3c11d2e0b47756",5]],"output":12,"session":"s3"}',
        '{"id":"8","arrival_s":0.5,"prompt":900,"output":[["9f3c11d2e0b47756",11,5]],"tenant":"acme","priority":1,'
        '"timeout_s":30.0}',
    )
    path = write("t.ndjson", '{"format":"argosy-trace","version":1}', *rows)
    first, second = recorded_requests(path)
    assert first == TraceRequest("7", 0.25, (Segment(0xA1, 16), Segment(0x9F3C11D2E0B47756, 5)), 12, session_id="s3")
    assert (second.num_prompt_tokens, second.output_tokens) == (900, 11)
    assert second.output_segments == (Segment(0x9F3C11D2E0B47756, 11, 5),)
    assert (second.tenant, second.priority, second.timeout_s) == ("acme", 1, 30.0)
    assert request_line(first).rstrip() == rows[0]


def test_plain_lengths_are_texts_of_their_own(write: Write):
    first, second = recorded_requests(write("t.ndjson", HEADER, line(), line(id="b")))
    assert first.segments != second.segments


def test_a_prefix_goes_before_ids_and_names_of_contents_keep_texts_apart(write: Write):
    path = write(
        "t.ndjson", HEADER, line(prompt=[["00000000000000a1", 3]]), line(id="b", prompt=[["00000000000000a1", 2]]), line()
    )
    plain, one, other = (list(recorded_requests(path, "x", contents)) for contents in ("", "one", "other"))
    assert [request.request_id for request in one] == ["x/a", "x/b", "x/a"]
    assert plain[0].segments == (Segment(0xA1, 3),)
    assert one[0].token_ids(1000)[:2] == one[1].token_ids(1000)
    for position in (0, 2):
        assert len({requests[position].segments for requests in (plain, one, other)}) == 3
    # Passes of one trace over the same contents share them, whatever the ids.
    assert list(recorded_requests(path, "y", "one"))[2].segments == one[2].segments


def test_contents_that_differ_still_do_under_a_name(write: Write):
    path = write("t.ndjson", HEADER, line(prompt=[[f"{1 << bit:016x}", 1] for bit in range(64)]))
    (request,) = recorded_requests(path, contents="one")
    assert len({segment.content_id for segment in request.segments}) == 64


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ('{"format":"argosy-trace"}', "has no version"),
        ('{"format":"argosy-trace","version":2}', "version 2 is not known; this release reads version 1"),
        ('{"format":"argosy-trace","version":true}', "version True is not known"),
        ('{"format":"other","version":1}', "the format must be 'argosy-trace'"),
        ('{"format":"argosy-trace","version":1,"block":16}', "has a key 'block'"),
        ("", "is empty"),
    ],
)
def test_another_header_is_refused(write: Write, header: str, words: str):
    with pytest.raises(TraceFileError, match=f"line 1: {words}"):
        list(recorded_requests(write("t.ndjson", header, line())))


def test_an_empty_file_is_refused(write: Write):
    with pytest.raises(TraceFileError, match="is empty"):
        list(recorded_requests(write("t.ndjson")))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("", "is empty"),
        ('{"id":"a"', "is not JSON"),
        (line(id=3), "id must be a text"),
        (line(id=""), "id must not be empty"),
        (line(id="x" * 257), "id must be a text of at most 256"),
        (line(arrival_s=-1), "arrival_s must be a number of at least 0"),
        (line(arrival_s="0"), "arrival_s must be a number"),
        (line(arrival_s=1e12), "arrival_s is .*, more than ten years"),
        (line(arrival_s=0.25), "arrives before the line above"),
        (line(prompt=0), "prompt must be a whole number"),
        (line(prompt=2.0), "prompt must be a whole number"),
        (line(prompt=None), "prompt must be a whole number"),
        (line(prompt=[]), "prompt must have at least one segment"),
        (line(prompt=[3]), "prompt must be segments"),
        (line(prompt=[["00000000000000a1"]]), "prompt must be segments"),
        (line(prompt=[["00000000000000a1", 1, 2, 3]]), "prompt must be segments"),
        (line(prompt=[["00000000000000A1", 1]]), "prompt must be segments"),
        (line(prompt=[["a1", 1]]), "prompt must be segments"),
        (line(prompt=[[161, 1]]), "prompt must be segments"),
        (line(prompt=[["00000000000000a1", 0]]), "a segment of prompt must be"),
        (line(prompt=[["00000000000000a1", 1, -1]]), "the start of a segment of prompt must be"),
        (line(prompt=[["00000000000000a1", 1 << 24]] * 2), "prompt is 33554432, above"),
        (line(output=0), "output must be a whole number"),
        (line(output=[]), "output must have at least one segment"),
        (line(output=True), "output must be a whole number"),
        (line(priority=0.5), "priority must be a whole number"),
        (line(priority=True), "priority must be a whole number"),
        (line(timeout_s=0), "timeout_s must be above 0"),
        (line(timeout_s="1"), "timeout_s must be a number"),
        (line(session=None), "session must be a text"),
        (line(tenant=1), "tenant must be a text"),
        (line(user="x"), "has a key 'user'"),
        ('{"id":"a","arrival_s":0.5,"prompt":3}', "has no output"),
    ],
)
def test_a_wrong_line_is_named(write: Write, row: str, words: str):
    with pytest.raises(TraceFileError, match=f"line 3: {words}"):
        list(recorded_requests(write("t.ndjson", HEADER, line(id="first"), row)))
