"""`argosy plan memory`."""

from __future__ import annotations

import typer

from argosy.cli import plan_flags as flags
from argosy.cli.terminal import print_json

EPILOG = """\
\b
Examples:
  do 32 requests of 8192 tokens fit, and how many would?
    argosy plan memory llama-3.3-70b --device h100-sxm --tensor 4 --context 8Ki --concurrency 32
  the same on two devices, with weights and KV in fp8
    argosy plan memory llama-3.3-70b --device h100-sxm --device h200-sxm --tensor 2 --context 8Ki \\
        --concurrency 32 --weights fp8 --kv fp8

Where the requests fit on none of the devices the exit code is 1.
"""


def memory(
    model: flags.Model,
    device: flags.DeviceNames = None,
    context: flags.Context = None,
    concurrency: flags.Concurrency = 1,
    tensor: flags.TensorDegree = 1,
    pipeline: flags.PipelineDegree = 1,
    data: flags.DataDegree = 1,
    expert: flags.ExpertDegree = 1,
    weights: flags.OneWeights = "bf16",
    kv: flags.OneKv = "bf16",
    chunk_tokens: flags.ChunkSize = 8192,
    draft: flags.Draft = None,
    memory_fraction: flags.MemoryFraction = 1.0,
    kv_fraction: flags.KvFraction = 0.9,
    as_json: flags.AsJson = False,
    html: flags.HtmlFile = None,
) -> None:
    """Show what MODEL in one layout takes of a device's memory, and how many requests then fit."""
    from argosy.cli import plan_questions as questions
    from argosy.cost.serving_memory import MemoryConstants
    from argosy.planner.memory_plan import plan_memory

    flags.check_html(html)
    with flags.told_in_flags():
        answers = [
            plan_memory(
                model,
                name,
                tokens=flags.required("--context", context),
                sequences=concurrency,
                tensor=tensor,
                pipeline=pipeline,
                data=data,
                expert=expert,
                weights=questions.weight_format(weights),
                kv=questions.kv_type(kv),
                chunk_tokens=chunk_tokens,
                draft=draft,
                constants=MemoryConstants(total_fraction=memory_fraction, kv_fraction=kv_fraction),
            )
            for name in flags.required("--device", device)
        ]
    if html is not None:
        from argosy.planner.memory_report import memory_report

        html.write_text(memory_report(answers), encoding="utf-8")
    if as_json:
        print_json([answer.to_json() | {"fits": answer.fits} for answer in answers])
    else:
        from argosy.cli.plan_memory_tables import show_memory

        show_memory(answers)
        flags.say_where(html)
    raise typer.Exit(0 if any(answer.fits for answer in answers) else flags.NO_PLAN)
