"""`argosy serve`."""

from __future__ import annotations

import ipaddress
import logging
import shutil
import sys
from pathlib import Path

import typer

from argosy.cli import flags
from argosy.cli.terminal import warn
from argosy.engine.args import EngineArgs
from argosy.errors import ConfigError
from argosy.server.config import ServerConfig

_ENGINE, _SERVER = EngineArgs(model="-"), ServerConfig()

EPILOG = """\
\b
Examples:
  argosy serve smollm2-135m
  argosy serve ./model.gguf --port 9000 --kv-cache-memory 2GiB
  argosy serve hf:org/name --host 0.0.0.0 --api-key-file keys.txt

SIGTERM or Ctrl-C lets running requests finish (--drain-timeout); a second one quits at once.
"""


def serve(
    model: flags.Model,
    host: flags.Host = _SERVER.host,
    port: flags.Port = _SERVER.port,
    api_key: flags.ApiKeys = None,
    api_key_file: flags.ApiKeyFile = None,
    served_model_name: flags.ServedModelNames = None,
    max_body_size: flags.MaxBodySize = _SERVER.max_body_bytes,
    max_prompts: flags.MaxPrompts = _SERVER.max_prompts,
    max_concurrent_requests: flags.MaxConcurrentRequests = _SERVER.max_concurrent_requests,
    drain_timeout: flags.DrainTimeout = _SERVER.drain_timeout_s,
    timeout_keep_alive: flags.KeepAliveTimeout = _SERVER.keep_alive_timeout_s,
    ping_interval: flags.PingInterval = _SERVER.ping_interval_s,
    docs: flags.Docs = _SERVER.docs,
    kv_events_endpoint: flags.KvEventsEndpoint = _ENGINE.kv_events_endpoint,
    kv_events_replay_endpoint: flags.KvEventsReplayEndpoint = _ENGINE.kv_events_replay_endpoint,
    kv_events_topic: flags.KvEventsTopic = _ENGINE.kv_events_topic,
    max_model_len: flags.MaxModelLen = _ENGINE.max_model_len,
    max_num_seqs: flags.MaxNumSeqs = _ENGINE.max_num_seqs,
    max_num_batched_tokens: flags.MaxNumBatchedTokens = _ENGINE.max_num_batched_tokens,
    max_waiting: flags.MaxWaiting = _ENGINE.max_waiting,
    kv_cache_memory: flags.KvCacheMemory = _ENGINE.kv_cache_memory_bytes,
    num_gpu_blocks_override: flags.NumBlocks = _ENGINE.num_blocks_override,
    block_size: flags.BlockSize = _ENGINE.block_size,
    enable_prefix_caching: flags.PrefixCaching = _ENGINE.enable_prefix_caching,
    prefill_share: flags.PrefillShare = _ENGINE.prefill_share,
    watermark: flags.Watermark = _ENGINE.watermark,
    max_preemptions: flags.MaxPreemptions = _ENGINE.max_preemptions,
    scheduling_policy: flags.SchedulingPolicy = _ENGINE.scheduling_policy,
    eviction_policy: flags.EvictionPolicy = _ENGINE.eviction_policy,
    seed: flags.Seed = _ENGINE.seed,
    deterministic: flags.Deterministic = _ENGINE.deterministic,
    check_invariants: flags.CheckInvariants = _ENGINE.check_invariants,
    dtype: flags.DType = _ENGINE.dtype,
    kv_cache_dtype: flags.KvCacheDType = _ENGINE.kv_cache_dtype,
    device: flags.Device = _ENGINE.device,
    executor: flags.ExecutorName = _ENGINE.executor,
    weights: flags.Weights = _ENGINE.weights,
    refine_outliers: flags.RefineOutliers = _ENGINE.refine_outliers,
    threads: flags.Threads = _ENGINE.threads,
    chat_template: flags.ChatTemplate = None,
    offline: flags.Offline = _ENGINE.offline,
    download_dir: flags.CacheDir = _ENGINE.cache_dir,
    log_level: flags.LogLevel = _SERVER.log_level,
    log_format: flags.LogFormat = _SERVER.log_format,
    log_prompts: flags.LogPrompts = _SERVER.log_prompts,
) -> None:
    """Serve a model over the OpenAI API."""
    engine_args = EngineArgs(
        model=model,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_waiting=max_waiting,
        kv_cache_memory_bytes=kv_cache_memory,
        num_blocks_override=num_gpu_blocks_override,
        block_size=block_size,
        enable_prefix_caching=enable_prefix_caching,
        prefill_share=prefill_share,
        watermark=watermark,
        max_preemptions=max_preemptions,
        scheduling_policy=scheduling_policy,
        eviction_policy=eviction_policy,
        seed=seed,
        deterministic=deterministic,
        check_invariants=check_invariants,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        device=device,
        executor=executor,
        weights=weights,
        refine_outliers=refine_outliers,
        threads=threads,
        chat_template=flags.read_template(chat_template),
        kv_events_endpoint=kv_events_endpoint,
        kv_events_replay_endpoint=kv_events_replay_endpoint,
        kv_events_topic=kv_events_topic,
        offline=offline,
        cache_dir=download_dir,
    )
    config = ServerConfig(
        host=host,
        port=port,
        api_keys=_read_keys(api_key or [], api_key_file),
        served_model_names=tuple(served_model_name or ()),
        max_body_bytes=max_body_size,
        max_prompts=max_prompts,
        max_concurrent_requests=max_concurrent_requests,
        drain_timeout_s=drain_timeout,
        keep_alive_timeout_s=timeout_keep_alive,
        ping_interval_s=ping_interval,
        docs=docs,
        log_level=log_level,
        log_format=log_format,
        log_prompts=log_prompts,
    )
    raise typer.Exit(run(engine_args, config))


def run(engine_args: EngineArgs, config: ServerConfig) -> int:
    """Load the model and serve it until told to stop; returns the exit code.

    Raises:
        ConfigError: the address cannot be bound; found out before the model is loaded.
        ArgosyError: whatever loading raises.
    """
    if not config.api_key_digests and not is_loopback(config.host):
        warn(f"{config.host} can be reached by others, and no --api-key is set: anyone who can may use the model")
    for endpoint in (engine_args.kv_events_endpoint, engine_args.kv_events_replay_endpoint):
        if endpoint is not None and not _is_local(endpoint):
            warn(f"{endpoint} can be reached by others: anyone who can may read the tokens of every prompt")
    from argosy.cli.progress import fetch_model
    from argosy.observe.logs import configure_logging, log_event
    from argosy.server.run import bind, run_server

    logger = configure_logging(config.log_level, config.log_format)
    bind(config).close()
    found = fetch_model(engine_args)
    log_event(logger, logging.INFO, "loading", model=found.name, path=str(found.path), size_bytes=found.size_bytes)
    from argosy.cli.loading import load_measured_engine

    engine, metrics = load_measured_engine(engine_args, next(iter(config.served_model_names), None))
    name = next(iter(config.served_model_names), engine.info.model_name)

    def greet(url: str) -> None:
        if config.log_format == "text":
            typer.echo(how_to_talk(url, name, needs_key=bool(config.api_key_digests)))

    try:
        return run_server(engine, config, metrics, on_started=greet)
    finally:
        engine.close()


def _own_command() -> str:
    """How this program is called from here: by its path where the shell would not find it."""
    called = Path(sys.argv[0])
    if shutil.which("argosy") or called.name != "argosy":
        return "argosy"
    return str(called)


def how_to_talk(url: str, model: str, *, needs_key: bool) -> str:
    """What to type to use the server, with curl and with the openai package."""
    key = "$KEY" if needs_key else "none"
    header = f' \\\n      -H "Authorization: Bearer {key}"' if needs_key else ""
    python_key = "KEY" if needs_key else "none"
    return f"""
{model} is served at {url} (API document: {url}/docs). Talk to it:

  curl {url}/v1/chat/completions -H "Content-Type: application/json"{header} \\
      -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="{python_key}")
  answer = client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello!"}}])
  print(answer.choices[0].message.content)

  {_own_command()} chat --url {url}{" --api-key $KEY" if needs_key else ""}

Ctrl-C stops.
"""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; a name other than localhost is taken to be reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_local(endpoint: str) -> bool:
    """Whether only this machine can reach an address of ZeroMQ's."""
    scheme, _, rest = endpoint.partition("://")
    return scheme == "ipc" or is_loopback(rest.rpartition(":")[0].strip("[]"))


def _read_keys(keys: list[str], file: Path | None) -> list[str]:
    """The keys given as flags and those in the file, one per line; a file without a key would leave the door open."""
    if file is None:
        return keys
    lines = [line.strip() for line in flags.read_text(file, "--api-key-file").splitlines()]
    found = [line for line in lines if line]
    if not found:
        raise ConfigError(f"--api-key-file: {file} has no key in it")
    return keys + found
