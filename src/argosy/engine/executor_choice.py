"""Which executor runs a model, and how it is set up."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from argosy.engine.args import EngineArgs
from argosy.engine.core.config import SchedulerConfig
from argosy.engine.executors.base import Executor
from argosy.engine.kv_sizing import choose_num_blocks, parse_available_bytes
from argosy.errors import ConfigError
from argosy.models.checkpoint import Checkpoint
from argosy.models.loaded import LoadedModel

logger = logging.getLogger(__name__)

KERNELS_KV_DTYPE = "float16"
"""What "auto" is for the kernels: half of float32's memory and traffic, with eight times the precision of bfloat16."""


@dataclass(frozen=True, slots=True)
class BuiltExecutor:
    """An executor and what was settled on the way. `dtype` is that of the weights, for people to read."""

    executor: Executor
    config: SchedulerConfig
    dtype: str


def chooses_kernels(args: EngineArgs, checkpoint: Checkpoint) -> bool:
    """Whether the CPU kernels run `checkpoint`.

    Raises:
        ConfigError: `args` insist on kernels, which cannot run it.
    """
    if args.executor == "torch" or args.device != "cpu" or args.dtype != "auto":
        return False
    try:
        from argosy.engine.executors.cpu_support import unsupported_reason
    except ModuleNotFoundError as error:
        reason = f"they need {error.name}: pip install 'argosy[serve]'"
    else:
        reason = unsupported_reason(checkpoint)
    if not reason:
        return True
    line = f"the CPU kernels cannot run {checkpoint.name}: {reason}"
    if args.executor == "kernels":
        raise ConfigError(f"{line}; set executor to torch", param="executor")
    logger.warning("%s; it runs on torch, slower", line)
    return False


def build_executor(args: EngineArgs, loaded: LoadedModel) -> BuiltExecutor:
    """The executor of a model that was loaded as `args` say.

    Raises:
        ConfigError: the KV pool is too small, or has no room on the device.
    """
    return _build_torch(args, loaded) if loaded.stored is None else _build_kernels(args, loaded)


def _build_kernels(args: EngineArgs, loaded: LoadedModel) -> BuiltExecutor:
    import torch

    from argosy.kernels.compile_ahead import compile_ops

    compile_ops(logger.warning)
    from argosy.engine.executors.cpu_executor import CpuExecutor
    from argosy.engine.executors.cpu_int8_weights import quantize_weights
    from argosy.engine.executors.cpu_weights import pack_weights
    from argosy.kernels.cores import usable_cores

    assert loaded.stored is not None
    torch.set_num_threads(1)
    read = quantize_weights if args.weights == "int8" else pack_weights
    num_threads = usable_cores() if args.threads is None else args.threads
    weights = read(loaded.config, loaded.stored, num_threads=num_threads)
    kv_dtype = KERNELS_KV_DTYPE if args.kv_cache_dtype == "auto" else args.kv_cache_dtype
    config = _scheduler_config(args, loaded, kv_dtype)
    executor = CpuExecutor(
        loaded.config,
        weights,
        num_blocks=config.num_blocks,
        block_size=args.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_positions=config.max_model_len,
        num_threads=num_threads,
        kv_dtype=kv_dtype,
        refine_outliers=args.refine_outliers,
    )
    return BuiltExecutor(executor, config, weights.main_kind)


def _build_torch(args: EngineArgs, loaded: LoadedModel) -> BuiltExecutor:
    import torch

    from argosy.engine.executors.torch_executor import TorchExecutor

    assert loaded.decoder is not None
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    dtype = str(next(loaded.decoder.parameters()).dtype).removeprefix("torch.")
    kv_dtype = dtype if args.kv_cache_dtype == "auto" else args.kv_cache_dtype
    config = _scheduler_config(args, loaded, kv_dtype)
    executor = TorchExecutor(
        loaded.decoder,
        num_blocks=config.num_blocks,
        block_size=args.block_size,
        kv_dtype=kv_dtype,
        device=args.device,
        deterministic=args.deterministic,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
    return BuiltExecutor(executor, config, dtype)


def _scheduler_config(args: EngineArgs, loaded: LoadedModel, kv_dtype: str) -> SchedulerConfig:
    """The scheduler's settings, with a KV pool that fits into the memory that the weights leave."""
    wanted_len = loaded.max_positions if args.max_model_len is None else args.max_model_len
    num_blocks = choose_num_blocks(
        args,
        loaded.config,
        kv_dtype=kv_dtype,
        max_model_len=wanted_len,
        available_bytes=_available_bytes(args.device),
    )
    config = args.scheduler_config(num_blocks=num_blocks, max_model_len=wanted_len, kv_dtype=kv_dtype)
    _log_pool(config, wanted_len)
    return config


def _available_bytes(device: str) -> int:
    if device == "cpu":
        try:
            return parse_available_bytes(Path("/proc/meminfo").read_text())
        except OSError as error:
            raise ConfigError(
                "cannot tell how much memory is available: set kv_cache_memory_bytes", param="kv_cache_memory_bytes"
            ) from error
    import torch

    return int(torch.cuda.mem_get_info(torch.device(device))[0])


def _log_pool(config: SchedulerConfig, wanted_len: int) -> None:
    num_tokens = config.num_blocks * config.block_size
    logger.info("KV pool: %d blocks x %d tokens = %d tokens", config.num_blocks, config.block_size, num_tokens)
    if config.effective_max_len < wanted_len:
        logger.warning(
            "max_model_len is %d instead of %d, because the KV pool holds no more: raise kv_cache_memory_bytes",
            config.effective_max_len,
            wanted_len,
        )
