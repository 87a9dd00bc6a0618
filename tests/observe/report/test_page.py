import re
from html.parser import HTMLParser

from argosy.observe.report import page


class Balanced(HTMLParser):
    """Fails on tags that are not closed in order."""

    VOID = ("meta",)

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_escapes_text_and_closes_every_tag():
    parts = [
        page.paragraph("a < b", "lead"),
        page.bullets(["x & y"]),
        page.cards([("name", "<1>")]),
        page.table(("col <", "n"), [("a", "1"), ("b", "2")], numbers=(1,), wide=(0,), chosen=1),
        page.section("head & tail", page.folded("more <", page.text("<i>"))),
        page.figure("<svg></svg>", "caption <", page.key(["one", "two"])),
    ]
    text = page.page("title <script>", *parts)
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert "<script" not in text
    assert "<title>title &lt;script&gt;</title>" in text
    assert '<tr class="chosen"><td class="wide">b</td><td class="number">2</td></tr>' in text
    for escaped in ("a &lt; b", "x &amp; y", "&lt;1&gt;", "head &amp; tail", "caption &lt;", "&lt;i&gt;"):
        assert escaped in text


def test_a_page_needs_nothing_from_elsewhere_and_follows_the_readers_colours():
    text = page.page("t", page.paragraph("p"))
    assert not re.search(r"https?://|//[a-z]|src=|href=|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_is_readable_in_both_colour_schemes():
    light, dark = page.STYLE.split("@media (prefers-color-scheme: dark)", 1)
    for part in (light, dark):
        colours = dict(re.findall(r"--([a-z]+(?:-\d)?): (#[0-9a-f]{6})", part))
        for kind in ("text", "quiet"):
            assert contrast(colours[kind], colours["ground"]) >= 4.5
            assert contrast(colours[kind], colours["soft"]) >= 4.5
    fills = dict(re.findall(r"--series-(\d): (#[0-9a-f]{6})", light))
    inks = dict(re.findall(r"svg \.on-(\d) \{ fill: (#[0-9a-f]{6})", light))
    for series, fill in fills.items():
        assert contrast(fill, inks[series]) >= 4.0, series
    for fill in dict(re.findall(r"--series-(\d): (#[0-9a-f]{6})", dark)).values():
        assert contrast(fill, "#000000") >= 4.5
