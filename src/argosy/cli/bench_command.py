"""`argosy bench`: the engine in this process, and servers under load."""

from __future__ import annotations

import typer

from argosy.cli import bench_offline, bench_serve

EPILOG = """\
\b
Examples:
  argosy bench offline smollm2-135m                       prefill and decode rates of the engine in this process
  argosy bench serve smollm2-135m --concurrency 16        a server of ours under load
  argosy bench serve --base-url http://host:8000 --rate 4 any OpenAI-compatible server
"""

app = typer.Typer(
    name="bench",
    help="Measure the engine, or a server under load.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("offline", epilog=bench_offline.EPILOG)(bench_offline.offline)
app.command(
    "serve", epilog=bench_serve.EPILOG, context_settings={"allow_extra_args": True, "ignore_unknown_options": False}
)(bench_serve.serve)
