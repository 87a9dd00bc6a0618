"""`argosy plan serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from argosy.cli import plan_flags as flags
from argosy.cli.terminal import print_json

if TYPE_CHECKING:
    from argosy.planner.serving_answer import ServingAnswer
    from argosy.planner.serving_question import ServingQuestion
    from argosy.planner.verify import Verification

EPILOG = """\
\b
Examples:
  what to buy for 5 requests a second, 95 % of them within 2 s and 50 ms a token
    argosy plan serve llama-3.3-70b --qps 5 --input-tokens 1000 --output-tokens 300 \\
        --ttft 2s@p95 --tpot 50ms@p95 --device h100-sxm:16 --device h200-sxm:16
  with your own prices, 2.10 to 2.90 $ per device and hour, and weights in 16 bit only
    argosy plan serve llama-3.3-70b --qps 5 --input-tokens 1000 --output-tokens 300 \\
        --device h100-sxm:16@2.1-2.9 --weights bf16
  from a trace of what runs today, twice as much of it, with a report to hand on
    argosy plan serve qwen3-30b-a3b --trace requests.csv --trace-scale 2 --device l40s --html plan.html
  do the plans hold in the simulator, with the production scheduler?
    argosy plan serve llama-3.3-70b --qps 5 --input-tokens 1000 --output-tokens 300 \\
        --ttft 2s@p95 --tpot 50ms@p95 --device h100-sxm:16 --top 3 --verify
  does speculation pay?
    argosy plan serve llama-3.3-70b --qps 0.5 --input-tokens 1000 --output-tokens 300 \\
        --device h100-sxm:8 --draft llama-3.2-1b --acceptance 0.7

Without a plan that keeps the service level the exit code is 1, and the smallest changes that allow one are shown.
Counts are written like 8k (8000), 8Ki (8192), 2T; times like 50ms, 2s, 45d; rates like 5, 300/min; shares like 0.6, 60%.
"""


def serve(
    model: flags.Model,
    qps: flags.Qps = None,
    input_tokens: flags.InputTokens = None,
    output_tokens: flags.OutputTokens = None,
    input_cv: flags.InputCv = None,
    output_cv: flags.OutputCv = None,
    prefix_share: flags.PrefixShare = None,
    burstiness: flags.Burstiness = None,
    trace: flags.Trace = None,
    trace_scale: flags.TraceScale = 1.0,
    trace_peak: flags.TracePeak = False,
    ttft: flags.Ttft = None,
    tpot: flags.Tpot = None,
    device: flags.Devices = None,
    term: flags.PriceTerm = "on-demand",
    region: flags.PriceRegion = None,
    max_gpus: flags.MaxGpus = None,
    max_usd_per_hour: flags.MaxUsdPerHour = None,
    weights: flags.Weights = "auto",
    kv: flags.Kv = "auto",
    tensor: flags.Tensor = None,
    pipeline: flags.Pipeline = None,
    data: flags.Data = None,
    expert: flags.Expert = None,
    chunk_tokens: flags.ChunkTokens = None,
    max_batch: flags.MaxBatch = None,
    prefix_caching: flags.PrefixCaching = "auto",
    disaggregate: flags.Disaggregate = True,
    draft: flags.Draft = None,
    acceptance: flags.Acceptance = None,
    drafts: flags.Drafts = None,
    engine: flags.Engine = "vllm",
    expert_imbalance: flags.ExpertImbalance = 0.0,
    top: flags.Top = 5,
    verify: flags.Verify = False,
    explain: flags.Explain = False,
    as_json: flags.AsJson = False,
    html: flags.HtmlFile = None,
) -> None:
    """Find the cheapest ways to serve MODEL for a traffic within a service level, and say what limits them."""
    from argosy.cli import plan_questions as questions
    from argosy.planner.explain import explain_plan
    from argosy.planner.serving import plan_serving
    from argosy.planner.serving_question import SearchSpace, ServingQuestion

    flags.check_html(html)
    with flags.told_in_flags():
        figures = {"input_cv": input_cv, "output_cv": output_cv, "prefix_share": prefix_share, "burstiness": burstiness}
        if trace is None:
            traffic = questions.stated_traffic(qps, input_tokens, output_tokens, **figures)
        else:
            stated: dict[str, object] = {"--qps": qps, "--input-tokens": input_tokens, "--output-tokens": output_tokens}
            stated |= {f"--{name.replace('_', '-')}": value for name, value in figures.items()}
            traffic = questions.traced_traffic(trace, trace_scale, trace_peak, stated)
        space = SearchSpace(
            tensor=tensor,
            pipeline=pipeline,
            data=data,
            expert=expert,
            weights=questions.weight_formats(weights),
            kv=questions.kv_types(kv),
            chunk_tokens=chunk_tokens or SearchSpace().chunk_tokens,
            max_batch=max_batch,
            prefix_caching=questions.caching(prefix_caching),
            disaggregate=disaggregate,
        )
        price = questions.price_term(term)
        question = ServingQuestion(
            model,
            traffic,
            questions.targets(ttft, tpot),
            tuple(questions.device_offer(choice, price, region) for choice in flags.required("--device", device)),
            space=space,
            draft=questions.draft_model(draft, acceptance, drafts),
            max_usd_per_h=max_usd_per_hour,
            max_devices=max_gpus,
            engine=engine,
            expert_imbalance=expert_imbalance,
            top=top,
        )
        answer = plan_serving(question)
    reasons = explain_plan(question, answer.best) if explain and answer.best is not None else ()
    if html is not None:
        from argosy.planner.serving_report import serving_report

        html.write_text(serving_report(question, answer), encoding="utf-8")
    verified = _verified(question, answer, trace) if verify else []
    if as_json:
        described = answer.to_json()
        described |= {"explanations": [reason.to_json() for reason in reasons]} if explain else {}
        described |= {"verified": [one.to_json() for one in verified]} if verify else {}
        print_json(described)
    else:
        from argosy.cli.plan_serving_tables import show_serving

        show_serving(question, answer, reasons, verified)
        flags.say_where(html)
    raise typer.Exit(0 if answer.best is not None else flags.NO_PLAN)


def _verified(question: ServingQuestion, answer: ServingAnswer, trace: Path | None) -> list[Verification]:
    """Every plan in the simulator, with progress on stderr."""
    from argosy.cli.simulate_progress import simulation_progress
    from argosy.planner.verify import verify_plans
    from argosy.planner.verify_traffic import TraceTraffic

    traced = None if trace is None else TraceTraffic.of(trace)
    with simulation_progress() as report:
        shown = verify_plans(question, answer, trace=traced, report=lambda number, progress: report(progress))  # noqa: ARG005
        return list(shown)
