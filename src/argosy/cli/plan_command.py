"""`argosy plan`: what a model takes, before anything is bought or run. Needs neither torch nor a device."""

from __future__ import annotations

import typer

from argosy.cli import plan_compare, plan_memory, plan_serve, plan_train
from argosy.cli import plan_flags as flags

EPILOG = """\
\b
Examples:
  argosy plan serve llama-3.1-8b --qps 5 --input-tokens 1000 --output-tokens 300 --device h100-sxm:16
  argosy plan train llama-3.1-8b --tokens 2T --device h100-sxm:512 --deadline 45d
  argosy plan memory llama-3.3-70b --device h100-sxm --tensor 4 --context 8k --concurrency 32
  argosy plan compare llama-3.1-8b --device l40s --device h100-sxm --device h200-sxm
  argosy plan devices h100-sxm

Every figure carries a mark that says whether it was measured, fitted, derived, or how good its source is.
"""
app = typer.Typer(rich_markup_mode=None, epilog=EPILOG, no_args_is_help=True)


@app.callback()
def plan() -> None:
    """Plan what to buy and how to shard it: latency, memory, price, and what limits them."""


app.command("serve", epilog=plan_serve.EPILOG, short_help="Cheapest plans to serve a model within a service level.")(
    plan_serve.serve
)
app.command("train", epilog=plan_train.EPILOG, short_help="Cheapest plans to train a model by a deadline.")(plan_train.train)
app.command("memory", epilog=plan_memory.EPILOG, short_help="What a layout takes of a device's memory.")(plan_memory.memory)
app.command("compare", epilog=plan_compare.EPILOG, short_help="Devices side by side for a model.")(plan_compare.compare)


@app.command("devices", short_help="Devices with peaks, memory, links, prices, sources.")
def devices(names: flags.Names = None, as_json: flags.AsJson = False) -> None:
    """List devices with peaks, memory, links and prices; with NAMEs, every number's source, date and grade."""
    from argosy.cli.plan_catalogue import show_devices

    show_devices(names or [], as_json=as_json)


@app.command("models", short_help="Models with parameters and KV bytes.")
def models(names: flags.Names = None, as_json: flags.AsJson = False) -> None:
    """List models with parameters and KV bytes; with NAMEs, where their shapes are from."""
    from argosy.cli.plan_catalogue import show_models

    show_models(names or [], as_json=as_json)
