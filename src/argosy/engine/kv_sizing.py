"""How large the KV pool is."""

from __future__ import annotations

from argosy.engine.args import EngineArgs
from argosy.errors import ConfigError
from argosy.models.config import ModelConfig

_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
CPU_SHARE = 0.25
CPU_LIMIT_BYTES = 2 * 2**30
DEVICE_SHARE = 0.85


def block_bytes(config: ModelConfig, block_size: int, kv_dtype: str) -> int:
    """Bytes of K and V of one block over all layers; `kv_dtype` is one of `args.KV_DTYPES`."""
    return block_size * config.kv_bytes_per_token // 4 * _ELEMENT_BYTES[kv_dtype]


def choose_num_blocks(
    args: EngineArgs, config: ModelConfig, *, kv_dtype: str, max_model_len: int, available_bytes: int
) -> int:
    """The number of KV blocks.

    `num_blocks_override` if given, else what `kv_cache_memory_bytes` holds. Without either: as much as `max_num_seqs`
    sequences of `max_model_len` tokens can fill, but on a CPU no more than a quarter of the memory that is available beside
    the loaded weights and no more than 2 GiB, since a machine has other things to do; on another device no more than 85 %
    of what is free there, the rest being for activations.

    Args:
        available_bytes: free memory where the pool will live, measured with the weights loaded.

    Raises:
        ConfigError: that is not even one block.
    """
    if args.num_blocks_override is not None:
        return args.num_blocks_override
    per_block = block_bytes(config, args.block_size, kv_dtype)
    if args.kv_cache_memory_bytes is not None:
        budget, source = args.kv_cache_memory_bytes, "kv_cache_memory_bytes"
    elif args.device == "cpu":
        budget, source = min(int(available_bytes * CPU_SHARE), CPU_LIMIT_BYTES), "a quarter of the available memory"
    else:
        budget, source = int(available_bytes * DEVICE_SHARE), "85 % of the free device memory"
    num_blocks = budget // per_block
    if num_blocks < 1:
        raise ConfigError(
            f"{source} is {budget} bytes, but one KV block of {args.block_size} tokens takes {per_block}: "
            "free memory, set kv_cache_memory_bytes, or use a smaller block_size or kv_cache_dtype"
        )
    if args.kv_cache_memory_bytes is not None:
        return num_blocks
    return min(num_blocks, args.max_num_seqs * -(-max_model_len // args.block_size))


def parse_available_bytes(meminfo: str) -> int:
    """Memory that can be had without swapping, from the text of Linux's `/proc/meminfo` (its MemAvailable, in KiB).

    Raises:
        ConfigError: the line is not there.
    """
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise ConfigError("cannot tell how much memory is available: set kv_cache_memory_bytes", param="kv_cache_memory_bytes")
