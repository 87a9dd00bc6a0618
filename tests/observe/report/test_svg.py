import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.observe.report.svg import Axis, Bar, Line, Point, plot, stacked_bars


@given(st.floats(1e-6, 1e12), st.floats(1.001, 1e6), st.booleans())
def test_ticks_lie_within_the_axis_and_are_few_but_not_none(low, factor, log):
    axis = Axis("x", low if log else 0.0, low * factor, log)
    ticks = axis.ticks()
    assert all(axis.low <= tick <= axis.high for tick in ticks)
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 19
    if not log:
        assert len(ticks) >= 3


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=20), st.booleans())
def test_an_axis_over_values_holds_them_all(values, log):
    axis = Axis.over("x", values, log=log)
    assert all(0 <= axis.share(value) <= 1 for value in values)


def test_a_logarithmic_axis_puts_decades_at_equal_distances():
    axis = Axis("x", 1, 1000, log=True)
    assert [axis.share(value) for value in (1, 10, 100, 1000)] == pytest.approx([0, 1 / 3, 2 / 3, 1])


def plotted(**options):
    axis = Axis("a < b", 0, 10)
    return plot("two & more", axis, axis, **options)


def test_a_plot_is_xml_with_a_title_per_mark_and_everything_escaped():
    points = [Point(1, 2, "first <b>", label="one & only"), Point(3, 4, "second", series=1)]
    text = plotted(points=points, lines=[Line(((0, 0), (10, 10)), "roof <", label="top")])
    root = ET.fromstring(text)
    assert root.attrib["aria-label"] == "two & more"
    assert [title.text for title in root.iter("title")] == ["roof <", "first <b>", "second"]
    assert {"a < b", "one & only", "top"} <= {element.text for element in root.iter("text")}


def test_points_are_where_their_values_say():
    (mark,) = re.findall(r'class="point" tabindex="0" d="M([\d.]+) ([\d.]+)', plotted(points=[Point(5, 10, "t", radius=4)]))
    left, top = float(mark[0]), float(mark[1])
    width, first = 760 - 84 - 20, 84
    assert left == pytest.approx(first + width / 2 - 4)
    assert top == pytest.approx(14)


def test_a_point_outside_the_axes_is_our_bug():
    with pytest.raises(AssertionError, match="outside"):
        plotted(points=[Point(11, 1, "t")])


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=25))
def test_labels_cover_neither_marks_nor_each_other(spots):
    points = [Point(x, y, "t", label=f"label {index}") for index, (x, y) in enumerate(spots)]
    text = plotted(points=points)
    written = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="start" class="mark">(label \d+)</text>', text)
    boxes = [(float(x), float(y) - 10, float(x) + 6 * len(label), float(y) + 2) for x, y, label in written]
    marks = re.findall(r'tabindex="0" d="M([\d.]+) ([\d.]+)', text)
    boxes += [(float(x) + 1, float(y) - 4, float(x) + 9, float(y) + 4) for x, y in marks]
    for index, one in enumerate(boxes[: len(written)]):
        for other in boxes[index + 1 :]:
            assert not (one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3])


def test_a_lone_label_is_written_beside_its_mark():
    assert 'text-anchor="start" class="mark">here</text>' in plotted(points=[Point(5, 5, "t", label="here")])


def test_series_differ_in_shape_not_only_in_colour():
    outlines = [re.search(r'tabindex="0" d="([^"]*)"', plotted(points=[Point(5, 5, "t", series=n)]))[1] for n in range(5)]
    shapes = {re.sub(r"[^a-z]", "", outline) for outline in outlines}
    assert len(shapes) == 5


def test_bars_share_one_scale_and_name_their_parts():
    bars = [Bar("one", (("weights", 30.0), ("free", 10.0)), 40.0), Bar("two", (("weights", 80.0),), 80.0)]
    text = stacked_bars("memory", bars, lambda value: f"{value:g} GiB")
    root = ET.fromstring(text)
    widths = [float(rect.attrib["width"]) for rect in root.iter("rect")]
    assert widths[0] / widths[2] == pytest.approx(30 / 80, abs=1e-3)
    assert [title.text for title in root.iter("title")] == [
        "weights: 30 GiB (75%)",
        "free: 10 GiB (25%)",
        "weights: 80 GiB (100%)",
    ]
    fills = [rect.attrib["fill"] for rect in root.iter("rect")]
    assert fills[0] == fills[2] != fills[1] == "none"


def test_a_bar_beyond_its_total_shows_where_that_ends():
    text = stacked_bars(
        "memory", [Bar("one", (("weights", 60.0), ("none", 0.0), ("free", -20.0)), 40.0)], lambda value: f"{value:g}"
    )
    assert text.count("<rect") == 1
    assert "ends at 40" in text
    assert 'class="limit"' in text
