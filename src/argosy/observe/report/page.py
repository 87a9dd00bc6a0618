"""HTML pages in one file: no script, no font, no picture from elsewhere; light and dark by the reader's setting.

Functions take plain text and escape it; `Html` marks what is HTML already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NewType

from argosy.observe.report.svg import SERIES_COLOURS, colour

Html = NewType("Html", str)
NOTHING = Html("")

# Okabe and Ito's colours, told apart with any colour vision; lighter on dark ground. Second: text on top of them.
_LIGHT = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a7a00", "#777777")
_DARK = ("#4ba3e0", "#f0b429", "#2fc39b", "#e09cc4", "#f08040", "#8fd0f5", "#d8cc40", "#a8a8a8")
_ON_LIGHT = ("#ffffff", "#000000", "#000000", "#000000", "#000000", "#000000", "#ffffff", "#000000")


def _palette(colours: Sequence[str]) -> str:
    return " ".join(f"--series-{index}: {value};" for index, value in enumerate(colours))


_ON = "\n".join(f"svg .on-{index} {{ fill: {value}; }}" for index, value in enumerate(_ON_LIGHT))
_ON_DARK = " ".join(f"svg .on-{index} {{ fill: #000000; }}" for index in range(SERIES_COLOURS))

STYLE = f"""
:root {{ color-scheme: light dark; --ground: #ffffff; --text: #1b1f24; --quiet: #57606a; --rule: #d5dae0;
  --soft: #f4f6f8; {_palette(_LIGHT)} }}
{_ON}
@media (prefers-color-scheme: dark) {{
  :root {{ --ground: #14181d; --text: #e6e9ed; --quiet: #9aa4af; --rule: #343b44; --soft: #1d232a; {_palette(_DARK)} }}
  {_ON_DARK}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; margin: 0 0 .4rem; }}
h2 {{ font-size: 1.15rem; margin: 2.4rem 0 .6rem; padding-top: .7rem; border-top: 1px solid var(--rule); }}
p, ul, dl {{ margin: .5rem 0; max-width: 52rem; }}
.lead {{ font-size: 1.1rem; }}
.quiet, figcaption {{ color: var(--quiet); font-size: .875rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--rule); }}
th {{ color: var(--quiet); font-weight: 600; white-space: nowrap; }}
th.number, td.number {{ text-align: right; white-space: nowrap; }}
td:first-child {{ white-space: nowrap; }}
td.wide {{ min-width: 15rem; }}
tr.chosen td {{ background: var(--soft); }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .7rem; margin: 1.2rem 0; }}
.card {{ background: var(--soft); border-radius: .5rem; padding: .7rem .9rem; }}
.card b {{ display: block; font-size: 1.15rem; white-space: nowrap; font-variant-numeric: tabular-nums; }}
.card span {{ color: var(--quiet); font-size: .8rem; }}
summary {{ cursor: pointer; color: var(--quiet); }}
figure {{ margin: .8rem 0 1.4rem; }}
svg {{ width: 100%; height: auto; display: block; font-family: inherit; font-size: 12px; }}
svg text {{ fill: var(--text); }}
svg .mark {{ paint-order: stroke; stroke: var(--ground); stroke-width: 3px; stroke-linejoin: round; }}
svg .tick {{ fill: var(--quiet); font-size: 11px; }}
svg .label {{ fill: var(--quiet); }}
svg .grid {{ stroke: var(--rule); stroke-width: 1; }}
svg .axis {{ stroke: var(--quiet); stroke-width: 1; }}
svg .point {{ fill-opacity: .85; }}
svg .point:hover, svg .point:focus {{ fill-opacity: 1; stroke: var(--text); stroke-width: 2; outline: none; }}
svg .limit {{ stroke: var(--text); stroke-width: 3; }}
svg .part {{ stroke: var(--quiet); stroke-width: 1; }}
.key {{ display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .875rem; padding: 0; list-style: none; }}
.key i {{ display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem; }}
.panels {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: .4rem 2rem; }}
.panels figure {{ margin: .6rem 0; }}
.panels figcaption {{ color: var(--text); font-size: .95rem; font-weight: 600; }}
.panels svg {{ font-size: 15px; }}
.panels svg .tick {{ font-size: 14px; }}
pre {{ font-size: .8rem; line-height: 1.45; background: var(--soft); border-radius: .5rem; padding: .8rem 1rem; }}
@media print {{ body {{ padding: 0; }} .scroll {{ overflow: visible; }} h2 {{ break-after: avoid; }}
  figure, tr {{ break-inside: avoid; }} }}
"""


def text(value: str) -> Html:
    """Plain text, escaped."""
    return Html(escape(value))


def paragraph(value: str, kind: str = "") -> Html:
    """A paragraph; `kind` is "lead" or "quiet"."""
    return Html(f'<p class="{kind}">{escape(value)}</p>' if kind else f"<p>{escape(value)}</p>")


def bullets(lines: Iterable[str]) -> Html:
    """A list; empty without lines."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return Html(f"<ul>{items}</ul>" if items else "")


def cards(figures: Iterable[tuple[str, str]]) -> Html:
    """Large figures as (what it is, figure)."""
    items = "".join(f'<div class="card"><span>{escape(name)}</span><b>{escape(value)}</b></div>' for name, value in figures)
    return Html(f'<div class="cards">{items}</div>')


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Iterable[int] = (),
    wide: Iterable[int] = (),
    chosen: int | None = None,
) -> Html:
    """A table of text; columns in `numbers` are set to the right, those in `wide` keep room, row `chosen` stands out."""
    kinds = dict.fromkeys(numbers, ' class="number"') | dict.fromkeys(wide, ' class="wide"')

    def row(tag: str, values: Sequence[str], kind: str = "") -> str:
        cells = "".join(f"<{tag}{kinds.get(index, '')}>{escape(value)}</{tag}>" for index, value in enumerate(values))
        return f"<tr{kind}>{cells}</tr>"

    body = "\n".join(row("td", values, ' class="chosen"' if number == chosen else "") for number, values in enumerate(rows))
    return Html(f'<div class="scroll"><table><thead>{row("th", columns)}</thead><tbody>\n{body}\n</tbody></table></div>')


def key(names: Sequence[str]) -> Html:
    """What the colours of a stacked bar or of series stand for, in their order."""
    items = "".join(f'<li><i style="background:{colour(index)}"></i>{escape(name)}</li>' for index, name in enumerate(names))
    return Html(f'<ul class="key">{items}</ul>')


def figure(svg: str, caption: str, legend: Html = NOTHING) -> Html:
    """A plot with its caption."""
    return Html(f"<figure>{legend}{svg}<figcaption>{escape(caption)}</figcaption></figure>")


def preformatted(value: str) -> Html:
    """Text as it stands, lines and spaces kept."""
    return Html(f'<div class="scroll"><pre>{escape(value)}</pre></div>')


def panels(parts: Iterable[Html]) -> Html:
    """Small plots beside each other, as many as there is room for; those that are `NOTHING` take none."""
    shown = "\n".join(part for part in parts if part)
    return Html(f'<div class="panels">{shown}</div>' if shown else "")


def panel(title: str, svg: str, legend: Html = NOTHING) -> Html:
    """A small plot under its title."""
    return Html(f"<figure><figcaption>{escape(title)}</figcaption>{svg}{legend}</figure>")


def folded(summary: str, *parts: Html) -> Html:
    """Parts that show when the reader opens them."""
    return Html("\n".join((f"<details><summary>{escape(summary)}</summary>", *parts, "</details>")))


def section(heading: str, *parts: Html) -> Html:
    """A part of a page under a heading."""
    return Html("\n".join((f"<section><h2>{escape(heading)}</h2>", *parts, "</section>")))


def page(title: str, *parts: Html) -> str:
    """The whole document."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )
