from hypothesis import given
from hypothesis import strategies as st

from argosy.bench.sse import EventParser

EVENTS = st.lists(st.lists(st.binary(max_size=12).filter(lambda b: not set(b) & set(b"\r\n")), min_size=1, max_size=3))


@given(EVENTS, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.data())
def test_events_are_the_same_wherever_the_bytes_are_cut(events, end, data):
    text = b"".join(b"".join(b"data: " + line + end for line in lines) + b": ping" + end + end for lines in events)
    # An event ends with the byte after it where lines end with CR alone.
    text += b": end\n"
    parser, found, at = EventParser(), [], 0
    while at < len(text):
        step = data.draw(st.integers(1, len(text) - at))
        found += parser.feed(text[at : at + step])
        at += step
    assert found == [b"\n".join(lines) for lines in events]


def test_one_space_after_the_colon_is_no_part_of_the_data():
    assert EventParser().feed(b"data:  two\ndata:none\n\nid: 3\n\n") == [b" two\nnone"]


def test_an_unfinished_event_is_held():
    parser = EventParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\n") == [b"a"]
