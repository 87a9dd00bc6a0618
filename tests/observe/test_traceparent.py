import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.observe.traceparent import TraceParent, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("03", True), ("02", False)])
def test_the_parts_of_a_traceparent(flags, sampled):
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-{flags}") == TraceParent(TRACE, SPAN, sampled)


def test_a_later_version_may_say_more():
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-01-more") == TraceParent(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0g",
    ],
)
def test_what_is_no_traceparent_is_as_if_absent(value):
    assert parse_traceparent(value) is None


@given(st.text(max_size=80))
def test_anything_may_come(value):
    parse_traceparent(value)
