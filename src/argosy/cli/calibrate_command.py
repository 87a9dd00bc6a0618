"""`argosy calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from argosy.cli import bench_flags, flags
from argosy.cli.terminal import print_json
from argosy.engine.args import EngineArgs

_ENGINE = EngineArgs(model="-")

EPILOG = """\
\b
Examples:
  argosy calibrate smollm2-135m                 about two minutes; leave the machine alone meanwhile
  argosy calibrate smollm2-135m --rounds 5 --json
  argosy calibrate ./model.gguf --threads 2 --output here.json

Afterwards 'this-machine' is a device of 'argosy plan' and 'argosy simulate'.
"""

Rounds = Annotated[int, bench_flags.option("Measurement", "How often every load is put on the engine.", "--rounds")]
Destination = Annotated[
    Path | None,
    bench_flags.option(
        "Output",
        "Write the calibration here in place of the user's own file.",
        "--output",
        metavar="FILE",
        default="$ARGOSY_HOME or ~/.local/share/argosy",
    ),
]


def calibrate(
    model: flags.Model,
    rounds: Rounds = 3,
    seed: bench_flags.Seed = 0,
    dtype: flags.DType = _ENGINE.dtype,
    kv_cache_dtype: flags.KvCacheDType = _ENGINE.kv_cache_dtype,
    device: flags.Device = _ENGINE.device,
    executor: flags.ExecutorName = _ENGINE.executor,
    weights: flags.Weights = _ENGINE.weights,
    refine_outliers: flags.RefineOutliers = _ENGINE.refine_outliers,
    threads: flags.Threads = _ENGINE.threads,
    max_model_len: flags.MaxModelLen = None,
    max_num_seqs: flags.MaxNumSeqs = _ENGINE.max_num_seqs,
    max_num_batched_tokens: flags.MaxNumBatchedTokens = None,
    kv_cache_memory: flags.KvCacheMemory = None,
    block_size: flags.BlockSize = _ENGINE.block_size,
    offline_only: flags.Offline = False,
    download_dir: flags.CacheDir = None,
    as_json: bench_flags.AsJson = False,
    output: Destination = None,
) -> None:
    """Measure this machine with a model, so that plans and simulations of it are of this machine."""
    from argosy.bench.calibrate import calibrate_machine
    from argosy.cli.bench_progress import progress
    from argosy.cli.progress import fetch_model
    from argosy.cost.machine_calibration import MachineCalibration, load_machine, save_machine
    from argosy.errors import ConfigError

    if rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, got {rounds}")
    if device != "cpu":
        raise ConfigError(f"--device: only a cpu can be calibrated, got {device!r}")
    bench_flags.check_writable(output, "--output")
    before = load_machine(output)
    args = EngineArgs(
        model=model,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        device=device,
        executor=executor,
        weights=weights,
        refine_outliers=refine_outliers,
        threads=threads,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_memory_bytes=kv_cache_memory,
        block_size=block_size,
        offline=offline_only,
        cache_dir=download_dir,
    )
    fetch_model(args)
    with progress() as report:
        host, measured = calibrate_machine(args, rounds=rounds, seed=seed, report=report)
    earlier = MachineCalibration(host, ()) if before is None else before
    path = save_machine(earlier.with_model(host, measured), output)
    if as_json:
        from dataclasses import asdict

        print_json({"file": str(path), **asdict(measured)})
        return
    from argosy.cli.calibrate_tables import show_calibration

    show_calibration(host, measured, path)
