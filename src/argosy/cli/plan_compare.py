"""`argosy plan compare`."""

from __future__ import annotations

import typer

from argosy.cli import plan_flags as flags
from argosy.cli.terminal import print_json

EPILOG = """\
\b
Examples:
  which of these gives the cheapest tokens, and which the fastest?
    argosy plan compare llama-3.1-8b --device l40s --device h100-sxm --device h200-sxm
  long prompts, short answers, fp8, your own price for one of them
    argosy plan compare llama-3.3-70b --input-tokens 8k --output-tokens 200 --weights fp8 \\
        --device h100-sxm@2.4 --device h200-sxm
"""


def compare(
    model: flags.Model,
    device: flags.Devices = None,
    input_tokens: flags.InputTokens = 1000,
    output_tokens: flags.OutputTokens = 300,
    weights: flags.OneWeights = "bf16",
    kv: flags.OneKv = "bf16",
    engine: flags.Engine = "vllm",
    term: flags.PriceTerm = "on-demand",
    region: flags.PriceRegion = None,
    as_json: flags.AsJson = False,
    html: flags.HtmlFile = None,
) -> None:
    """Compare devices for MODEL, each at the fewest that hold it: one request alone, then with every batch full."""
    from argosy.cli import plan_questions as questions
    from argosy.planner.compare import compare as compare_devices

    flags.check_html(html)
    with flags.told_in_flags():
        price = questions.price_term(term)
        comparison = compare_devices(
            model,
            [questions.device_offer(choice, price, region) for choice in flags.required("--device", device)],
            prompt_tokens=flags.required("--input-tokens", input_tokens),
            output_tokens=flags.required("--output-tokens", output_tokens),
            weights=questions.weight_format(weights),
            kv=questions.kv_type(kv),
            engine=engine,
        )
    if html is not None:
        from argosy.planner.compare_report import compare_report

        html.write_text(compare_report(comparison), encoding="utf-8")
    if as_json:
        print_json(comparison.to_json())
    else:
        from argosy.cli.plan_compare_tables import show_comparison

        show_comparison(comparison)
        flags.say_where(html)
    raise typer.Exit(0 if any(row.devices for row in comparison.devices) else flags.NO_PLAN)
