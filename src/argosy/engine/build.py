"""From settings to a running engine."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from argosy.engine.admission import Admission
from argosy.engine.args import EngineArgs
from argosy.engine.async_engine import AsyncEngine
from argosy.engine.client import EngineInfo
from argosy.engine.core.clock import Clock
from argosy.engine.core.scheduler import Scheduler
from argosy.engine.executor_choice import build_executor, chooses_kernels
from argosy.engine.monotonic_clock import MonotonicClock
from argosy.engine.step_loop import StepLoop
from argosy.engine.step_recorder import OnRecord, RecordingScheduler
from argosy.errors import ConfigError
from argosy.models.cache import Progress
from argosy.models.loaded import LoadedModel
from argosy.models.loader import load_model
from argosy.observe.stats import StatsSink

if TYPE_CHECKING:
    from argosy.engine.kv_publisher import KVPublisher

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of, before anything drives it. Whoever submits holds to `info.max_waiting`."""

    step_loop: StepLoop
    admission: Admission
    info: EngineInfo
    clock: Clock


def build_parts(
    args: EngineArgs,
    *,
    progress: Progress | None = None,
    sink: StatsSink | None = None,
    on_record: OnRecord | None = None,
) -> EngineParts:
    """Fetch the model if need be, load it, and set up executor and scheduler.

    With `on_record` the scheduler tells it of everything, on the engine's thread; see `RecordingScheduler`.

    Sets the number of torch's threads, for the whole process: to `args.threads` if that says one and torch runs the model;
    to 1 where the kernels do, whose threads those of torch would only stand in the way of.

    Raises:
        ConfigError: a setting does not fit the model or this machine.
        ArgosyError: whatever `load_model` raises.
    """
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
            keep_stored=lambda checkpoint: chooses_kernels(args, checkpoint),
        )
    except ConfigError as error:
        if error.param != "max_positions":
            raise
        # The loader calls it by what it does there; the user knows it by the name of the setting.
        message = error.message.replace("max_positions", "max_model_len")
        raise ConfigError(message, param="max_model_len") from None
    return assemble(args, loaded, sink=sink, on_record=on_record)


def assemble(
    args: EngineArgs, loaded: LoadedModel, *, sink: StatsSink | None = None, on_record: OnRecord | None = None
) -> EngineParts:
    """Set up executor and scheduler for a loaded model; it must have been loaded as `args` says.

    Raises:
        ConfigError: the KV pool is too small, or has no room on the device; KV events cannot be published.
    """
    built = build_executor(args, loaded)
    executor, config = built.executor, built.config
    clock = MonotonicClock()
    publisher = make_publisher(args)
    if on_record is None:
        scheduler = Scheduler(config, kv_listener=publisher)
    else:
        scheduler = RecordingScheduler(config, on_record=on_record, clock=clock, kv_listener=publisher)
    rng = random.Random(args.seed)  # noqa: S311, it seeds samples, it guards nothing
    return EngineParts(
        step_loop=StepLoop(
            scheduler,
            executor,
            loaded.tokenizer,
            clock=clock,
            sink=sink,
            check_invariants=args.check_invariants,
            on_close=None if publisher is None else publisher.close,
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
            num_blocks=executor.num_blocks,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_waiting=args.max_waiting,
            dtype=built.dtype,
            kv_dtype=executor.kv_dtype,
            device=args.device,
            deterministic=args.deterministic,
            enable_prefix_caching=args.enable_prefix_caching,
            follows_priority="priority" in (args.scheduling_policy, args.eviction_policy),
            default_sampling=loaded.default_sampling,
        ),
        clock=clock,
    )


def make_publisher(args: EngineArgs) -> KVPublisher | None:
    """A started publisher of KV events; None if they are not asked for.

    Raises:
        ConfigError: an address cannot be bound, or a package is missing.
    """
    if args.kv_events_endpoint is None:
        return None
    from argosy.engine.kv_publisher import KVPublisher, PublisherSettings

    publisher = KVPublisher(PublisherSettings(args.kv_events_endpoint, args.kv_events_replay_endpoint, args.kv_events_topic))
    publisher.start()
    return publisher


def build_async_engine(args: EngineArgs, *, progress: Progress | None = None, sink: StatsSink | None = None) -> AsyncEngine:
    """A started engine; as `build_parts`. Blocks while the model loads."""
    return start_async_engine(build_parts(args, progress=progress, sink=sink))


def start_async_engine(parts: EngineParts) -> AsyncEngine:
    """Drive the parts by a thread of their own."""
    engine = AsyncEngine(parts.step_loop, parts.admission, parts.info, clock=parts.clock)
    engine.start()
    return engine
