"""From settings to a running engine."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from pathlib import Path

from argosy.engine.admission import Admission
from argosy.engine.args import EngineArgs
from argosy.engine.async_engine import AsyncEngine
from argosy.engine.client import EngineInfo
from argosy.engine.core.clock import Clock
from argosy.engine.core.scheduler import Scheduler
from argosy.engine.kv_sizing import choose_num_blocks, parse_available_bytes
from argosy.engine.monotonic_clock import MonotonicClock
from argosy.engine.step_loop import StepLoop
from argosy.errors import ConfigError
from argosy.models.cache import Progress
from argosy.models.loaded import LoadedModel
from argosy.models.loader import load_model
from argosy.observe.stats import StatsSink

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of, before anything drives it. Whoever submits holds to `info.max_waiting`."""

    step_loop: StepLoop
    admission: Admission
    info: EngineInfo
    clock: Clock


def build_parts(args: EngineArgs, *, progress: Progress | None = None, sink: StatsSink | None = None) -> EngineParts:
    """Fetch the model if need be, load it, and set up executor and scheduler.

    Sets the number of torch's threads, for the whole process, if `args.threads` says one.

    Raises:
        ConfigError: a setting does not fit the model or this machine.
        ArgosyError: whatever `load_model` raises.
    """
    if args.threads is not None:
        _set_threads(args.threads)
    try:
        loaded = load_model(
            args.model,
            dtype=args.dtype,
            device=args.device,
            cache_dir=args.cache_dir,
            offline=args.offline,
            progress=progress,
            chat_template=args.chat_template,
            max_positions=args.max_model_len,
        )
    except ConfigError as error:
        if error.param != "max_positions":
            raise
        # The loader calls it by what it does there; the user knows it by the name of the setting.
        message = error.message.replace("max_positions", "max_model_len")
        raise ConfigError(message, param="max_model_len") from None
    return assemble(args, loaded, sink=sink)


def assemble(args: EngineArgs, loaded: LoadedModel, *, sink: StatsSink | None = None) -> EngineParts:
    """Set up executor and scheduler for a loaded model; it must have been loaded as `args` says.

    Raises:
        ConfigError: the KV pool is too small, or has no room on the device.
    """
    from argosy.engine.executors.torch_executor import TorchExecutor

    dtype = str(next(loaded.decoder.parameters()).dtype).removeprefix("torch.")
    kv_dtype = dtype if args.kv_cache_dtype == "auto" else args.kv_cache_dtype
    wanted_len = loaded.decoder.max_positions if args.max_model_len is None else args.max_model_len
    num_blocks = choose_num_blocks(
        args,
        loaded.config,
        kv_dtype=kv_dtype,
        max_model_len=wanted_len,
        available_bytes=_available_bytes(args.device),
    )
    config = args.scheduler_config(num_blocks=num_blocks, max_model_len=wanted_len, kv_dtype=kv_dtype)
    _log_pool(num_blocks, args.block_size, wanted_len, config.effective_max_len)
    executor = TorchExecutor(
        loaded.decoder,
        num_blocks=num_blocks,
        block_size=args.block_size,
        kv_dtype=kv_dtype,
        device=args.device,
        deterministic=args.deterministic,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
    clock = MonotonicClock()
    rng = random.Random(args.seed)  # noqa: S311, it seeds samples, it guards nothing
    return EngineParts(
        step_loop=StepLoop(
            Scheduler(config),
            executor,
            loaded.tokenizer,
            clock=clock,
            sink=sink,
            check_invariants=args.check_invariants,
        ),
        admission=Admission(
            tokenizer=loaded.tokenizer,
            logits_width=executor.vocab_size,
            max_model_len=config.effective_max_len,
            eos_token_ids=loaded.eos_token_ids,
            draw_seed=lambda: rng.getrandbits(64),
        ),
        info=EngineInfo(
            model_name=loaded.name,
            model_path=str(loaded.path),
            max_model_len=config.effective_max_len,
            logits_width=executor.vocab_size,
            block_size=args.block_size,
            num_blocks=num_blocks,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_waiting=args.max_waiting,
            dtype=dtype,
            kv_dtype=kv_dtype,
            device=args.device,
            deterministic=args.deterministic,
            enable_prefix_caching=args.enable_prefix_caching,
            follows_priority="priority" in (args.scheduling_policy, args.eviction_policy),
            default_sampling=loaded.default_sampling,
        ),
        clock=clock,
    )


def build_async_engine(args: EngineArgs, *, progress: Progress | None = None, sink: StatsSink | None = None) -> AsyncEngine:
    """A started engine; as `build_parts`. Blocks while the model loads."""
    return start_async_engine(build_parts(args, progress=progress, sink=sink))


def start_async_engine(parts: EngineParts) -> AsyncEngine:
    """Drive the parts by a thread of their own."""
    engine = AsyncEngine(parts.step_loop, parts.admission, parts.info, clock=parts.clock)
    engine.start()
    return engine


def _set_threads(threads: int) -> None:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ConfigError("running a model needs torch: pip install 'argosy[serve]'") from error
    torch.set_num_threads(threads)


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


def _log_pool(num_blocks: int, block_size: int, wanted_len: int, effective_len: int) -> None:
    logger.info("KV pool: %d blocks x %d tokens = %d tokens", num_blocks, block_size, num_blocks * block_size)
    if effective_len < wanted_len:
        logger.warning(
            "max_model_len is %d instead of %d, because the KV pool holds no more: raise kv_cache_memory_bytes",
            effective_len,
            wanted_len,
        )
