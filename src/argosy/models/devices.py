"""From the names of devices and element types to torch's objects."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

import torch

from argosy.errors import ConfigError

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "float32": torch.float32,
        "float": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "half": torch.float16,
    }
)
"""The names that vLLM's `--dtype` takes, besides "auto"."""

AUTO_DTYPES: Mapping[str, torch.dtype] = MappingProxyType({"cpu": torch.float32, "cuda": torch.bfloat16})
"""What "auto" means on each kind of device: the fastest type that its matrix units run at full precision of the sums."""


def parse_device(name: str) -> torch.device:
    """The device called `name`: "cpu", "cuda" (the first one) or "cuda:1".

    Raises:
        ConfigError: no such device is known, or this machine does not have it.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in AUTO_DTYPES or (device.type == "cpu" and device.index is not None):
        raise ConfigError(f"unknown device {name!r}: use cpu, cuda or cuda:<index>", param="device")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} is not available: torch finds no CUDA device here; use cpu", param="device")
    index, count = device.index or 0, torch.cuda.device_count()
    if index >= count:
        raise ConfigError(f"device {name!r} is not available: this machine has {count} CUDA device(s)", param="device")
    return torch.device("cuda", index)


def parse_dtype(name: str, device: torch.device) -> torch.dtype:
    """The element type called `name`; "auto" is float32 on a CPU and bfloat16 on CUDA.

    Raises:
        ConfigError: no such type is known.
    """
    if name == "auto":
        return AUTO_DTYPES[device.type]
    if name not in DTYPES:
        names = ["auto", *DTYPES]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"unknown dtype {name!r}: use {', '.join(names)}{hint}", param="dtype")
    return DTYPES[name]
