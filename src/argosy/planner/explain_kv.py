"""Transfer KV or rebuild it, and the chunk size that a TPOT target leaves."""

from __future__ import annotations

import numpy as np

from argosy.cost.catalogue import all_links
from argosy.cost.checks import at_least_one, positive
from argosy.cost.formats import WeightFormat
from argosy.cost.model_arithmetic import kv_bytes, state_bytes
from argosy.cost.parallel import ParallelPlan
from argosy.cost.serving_arithmetic import KvSource, transfer_or_rebuild, transfer_s
from argosy.cost.serving_time import prefill_time
from argosy.planner.explanation import Case, Explanation, Row, largest, ms

_MOST_CHUNK = 32768


def explain_kv_transfer(
    case: Case, plan: ParallelPlan, tokens: int, *, weights: WeightFormat = WeightFormat.BASE, chunk_tokens: int = 8192
) -> Explanation:
    """Move the KV of `tokens` from another replica, each device its shard, or compute the prompt again.

    Raises:
        ConfigError: a plan that does not divide the model.
    """
    at_least_one(tokens=tokens)
    deployment = case.deployment(plan, weights)
    rebuild_s = prefill_time(case.model(deployment), tokens, chunk_tokens=chunk_tokens).latency_s
    moved = kv_bytes(case.spec, tokens, deployment.precisions.kv) + state_bytes(case.spec)
    shards = plan.tensor * plan.pipeline
    break_even = moved / shards / rebuild_s
    rows, verdicts = [], []
    for link in sorted(all_links(), key=lambda link: link.bandwidth.value):
        seconds = transfer_s(moved, link.bandwidth.value, shards=shards, latency_s=link.latency.value)
        rows.append(Row(link.name, {"GB/s": link.bandwidth.value / 1e9, "transfer ms": seconds * 1e3}))
        verdicts.append(transfer_or_rebuild(seconds, rebuild_s))
    slower = [row.label for row, verdict in zip(rows, verdicts, strict=True) if verdict is KvSource.REBUILD]
    because = (
        f"KV of {tokens} tokens is {moved / 1e9:.3g} GB, {moved / shards / 1e9:.3g} GB for each of {shards} devices",
        f"computing the prompt again takes {ms(rebuild_s)}, {tokens / rebuild_s:.0f} tokens/s",
        f"over {', '.join(slower)} it would take longer than that" if slower else "every link known is faster than that",
    )
    verdict = f"transfer over more than {break_even / 1e9:.3g} GB/s per device, rebuild below"
    return Explanation(f"KV of {tokens} tokens of {case.spec.name}", verdict, because, tuple(rows))


def explain_chunk_size(
    case: Case,
    plan: ParallelPlan,
    tpot_target_s: float,
    *,
    sequences: int = 32,
    weights: WeightFormat = WeightFormat.BASE,
) -> Explanation:
    """The most prompt tokens that a step beside `sequences` decoding ones may carry within a TPOT target.

    Raises:
        ConfigError: a target that is not above 0, or a plan that does not divide the model.
    """
    positive(tpot_target_s=tpot_target_s)
    at_least_one(sequences=sequences)
    model = case.model(case.deployment(plan, weights))
    rank = max(1.0, sequences / plan.data)
    past = case.prompt.mean / 2

    def step_s(chunk: int) -> float:
        count, new = np.array([[rank], [1.0]]), np.array([[1.0], [float(chunk)]])
        context = np.array([[case.context], [past]])
        return float(model.times(count, new, context, rank + 1).latency_s[0])

    alone_s = float(model.decode(rank, case.context).latency_s[0])
    chunk = largest(1, _MOST_CHUNK, lambda tokens: step_s(tokens) <= tpot_target_s)
    sizes = [size for size in (128, 256, 512, 1024, 2048, 4096, 8192) if size != chunk] + ([chunk] if chunk else [])
    rows = []
    for size in sorted(sizes):
        seconds = step_s(size)
        figures = {"step ms": seconds * 1e3, "prompt tokens/s": size / seconds, "added ms": (seconds - alone_s) * 1e3}
        rows.append(Row(f"{size} tokens", figures))
    topic = f"chunk size of {case.spec.name} beside {sequences} sequences within {ms(tpot_target_s)}"
    because = [f"a decode step of {sequences} sequences alone takes {ms(alone_s)}"]
    if chunk is None:
        verdict = f"none: a step is {ms(step_s(1))} already with one prompt token"
        return Explanation(topic, verdict, tuple(because), tuple(rows))
    best = max(rows, key=lambda row: row.figures["prompt tokens/s"])
    at = next(row for row in rows if row.label == f"{chunk} tokens")
    rate, most = at.figures["prompt tokens/s"], best.figures["prompt tokens/s"]
    because.append(
        f"{chunk} prompt tokens make it {ms(at.figures['step ms'] / 1e3)} and compute {rate:.0f} prompt tokens/s, "
        f"{rate / most:.0%} of the {most:.0f} at {best.label}"
    )
    return Explanation(topic, f"at most {chunk} prompt tokens a step", tuple(because), tuple(rows))
