"""`argosy bench offline`."""

from __future__ import annotations

from typing import Annotated, Any

from argosy.cli import bench_flags, flags
from argosy.cli.terminal import print_json
from argosy.engine.args import EngineArgs

_ENGINE = EngineArgs(model="-")

EPILOG = """\
\b
Examples:
  argosy bench offline smollm2-135m
  argosy bench offline smollm2-135m --batch-sizes 1,16 --output-tokens 32 --repetitions 3 --threads 2
  argosy bench offline ./model.gguf --prefill-tokens 128,512,2048 --batch-sizes "" --json

Prompts are random tokens, answers greedy and of full length, the prefix cache is off. Rates are medians over rounds.
"""


def offline(
    model: flags.Model,
    prefill_tokens: Annotated[
        str, bench_flags.option("Load", "Lengths of single prompts whose prefill is measured.", "--prefill-tokens")
    ] = "512",
    batch_sizes: Annotated[
        str, bench_flags.option("Load", "Sequences that decode together.", "--batch-sizes")
    ] = "1,8,16,32",
    prompt_tokens: Annotated[int, bench_flags.option("Load", "Prompt of each decoding sequence.", "--prompt-tokens")] = 32,
    output_tokens: Annotated[int, bench_flags.option("Load", "Output of each decoding sequence.", "--output-tokens")] = 64,
    repetitions: Annotated[int, bench_flags.option("Load", "Rounds that count.", "--repetitions")] = 5,
    warmup: Annotated[int, bench_flags.option("Load", "Rounds before them that do not.", "--warmup")] = 1,
    seed: bench_flags.Seed = 0,
    dtype: flags.DType = _ENGINE.dtype,
    kv_cache_dtype: flags.KvCacheDType = _ENGINE.kv_cache_dtype,
    device: flags.Device = _ENGINE.device,
    executor: flags.ExecutorName = _ENGINE.executor,
    weights: flags.Weights = _ENGINE.weights,
    refine_outliers: flags.RefineOutliers = _ENGINE.refine_outliers,
    threads: flags.Threads = _ENGINE.threads,
    max_num_batched_tokens: flags.MaxNumBatchedTokens = None,
    kv_cache_memory: flags.KvCacheMemory = None,
    block_size: flags.BlockSize = _ENGINE.block_size,
    deterministic: flags.Deterministic = _ENGINE.deterministic,
    offline_only: flags.Offline = _ENGINE.offline,
    download_dir: flags.CacheDir = _ENGINE.cache_dir,
    as_json: bench_flags.AsJson = False,
    output: bench_flags.OutputFile = None,
) -> None:
    """Measure prefill and decode of the engine in this process, and what its steps are made of."""
    from argosy.bench.offline import OfflineSettings
    from argosy.cli.bench_progress import progress
    from argosy.cli.progress import fetch_model

    bench_flags.check_writable(output, "--output")
    settings = OfflineSettings(
        prefill_tokens=bench_flags.parse_sizes(prefill_tokens),
        batch_sizes=bench_flags.parse_sizes(batch_sizes),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        repetitions=repetitions,
        warmup=warmup,
        seed=seed,
    )
    widest, longest = max((1, *settings.batch_sizes)), max((1, *settings.prefill_tokens))
    args = EngineArgs(
        model=model,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        device=device,
        executor=executor,
        weights=weights,
        refine_outliers=refine_outliers,
        threads=threads,
        max_num_seqs=widest,
        # A whole prompt in one step, as where nobody waits for a next token.
        max_num_batched_tokens=max_num_batched_tokens or max(2048, longest, widest),
        kv_cache_memory_bytes=kv_cache_memory,
        block_size=block_size,
        enable_prefix_caching=False,
        prefill_share=1.0,
        deterministic=deterministic,
        offline=offline_only,
        cache_dir=download_dir,
    )
    fetch_model(args)
    with progress() as report:
        facts, result = _measure(args, settings, report)
    value = {"model": model, "engine": facts, "settings": _plain(settings), **result.as_dict()}
    if output is not None:
        bench_flags.write_json(output, value)
    if as_json:
        print_json(value)
        return
    from argosy.cli.bench_tables import show_offline

    show_offline(model, facts, settings, result)


def _measure(args: EngineArgs, settings: Any, report: Any) -> tuple[dict[str, Any], Any]:
    from argosy.bench.offline import OfflineBench, StepSink
    from argosy.engine.build import build_parts

    sink = StepSink()
    parts = build_parts(args, sink=sink)
    try:
        info = parts.info
        facts = {"dtype": info.dtype, "kv_dtype": info.kv_dtype, "device": info.device, "threads": args.threads or "default"}
        return facts, OfflineBench(parts, sink, settings).run(report)
    finally:
        parts.step_loop.close()


def _plain(settings: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(settings)
