"""`argosy plan train`."""

from __future__ import annotations

import typer

from argosy.cli import plan_flags as flags
from argosy.cli.terminal import print_json

EPILOG = """\
\b
Examples:
  train 8 B parameters on 2 T tokens in 45 days: how many devices, how sharded, at what price?
    argosy plan train llama-3.1-8b --tokens 2T --device h100-sxm:512 --deadline 45d
  long sequences, with the batch in tokens and prices of your own
    argosy plan train llama-3.1-8b --tokens 50B --sequence 128Ki --batch-tokens 8Mi --device h200-sxm:256@2.5
  only FSDP, at a given number of devices
    argosy plan train qwen2.5-7b --tokens 100B --device h100-sxm:64 --gpus 64 --zero 3 --tensor 1 --pipeline 1

Without a plan the exit code is 1, and the smallest changes that allow one are shown.
"""

_BATCH_TOKENS, _SEQUENCE = 4 * 2**20, 4096
_DAY_S = 86_400.0


def train(
    model: flags.Model,
    tokens: flags.TrainTokens = None,
    batch_tokens: flags.BatchTokens = _BATCH_TOKENS,
    sequence: flags.Sequence = _SEQUENCE,
    deadline: flags.Deadline = None,
    max_usd: flags.MaxUsd = None,
    optimizer: flags.OptimizerName = "adam",
    compute: flags.Compute = "bf16",
    overlap_data: flags.OverlapData = 0.8,
    overlap_layers: flags.OverlapLayers = 0.0,
    device: flags.Devices = None,
    term: flags.PriceTerm = "on-demand",
    region: flags.PriceRegion = None,
    gpus: flags.Gpus = None,
    tensor: flags.Tensor = None,
    pipeline: flags.Pipeline = None,
    context_parallel: flags.ContextParallel = None,
    expert: flags.Expert = None,
    zero: flags.Zero = "auto",
    micro_batch: flags.MicroBatch = None,
    recompute: flags.RecomputeKinds = "none,full",
    schedule: flags.Schedules = "1f1b,interleaved-1f1b,zb-h1",
    top: flags.Top = 5,
    as_json: flags.AsJson = False,
    html: flags.HtmlFile = None,
) -> None:
    """Find the cheapest ways to train MODEL on so many tokens: degrees, ZeRO stage, memory, MFU, days, dollars."""
    from argosy.cli import plan_questions as questions
    from argosy.cost.training_time import Overlap
    from argosy.planner.training import plan_training
    from argosy.planner.training_question import TrainingQuestion, TrainingSpace

    flags.check_html(html)
    with flags.told_in_flags():
        price = questions.price_term(term)
        space = TrainingSpace(
            devices=gpus,
            tensor=tensor,
            pipeline=pipeline,
            context=context_parallel,
            expert=expert,
            zero=questions.zero_stages(zero),
            micro_batch=micro_batch or TrainingSpace().micro_batch,
            recompute=questions.recompute_kinds(recompute),
            schedules=questions.schedules(schedule),
        )
        question = TrainingQuestion(
            model,
            float(flags.required("--tokens", tokens)),
            batch_tokens,
            sequence,
            tuple(questions.device_offer(choice, price, region) for choice in flags.required("--device", device)),
            deadline_days=None if deadline is None else deadline / _DAY_S,
            max_usd=max_usd,
            optimizer=questions.optimizer(optimizer),
            compute=questions.compute(compute),
            space=space,
            overlap=Overlap(overlap_data, overlap_layers),
            top=top,
        )
        answer = plan_training(question)
    if html is not None:
        from argosy.planner.training_report import training_report

        html.write_text(training_report(question, answer), encoding="utf-8")
    if as_json:
        print_json(answer.to_json())
    else:
        from argosy.cli.plan_training_tables import show_training

        show_training(question, answer)
        flags.say_where(html)
    raise typer.Exit(0 if answer.best is not None else flags.NO_PLAN)
