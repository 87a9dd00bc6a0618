"""Serving on the back of an envelope: closed forms that the memory and time models use or are checked against."""

from __future__ import annotations

import enum
import math

from argosy.cost.checks import at_least_one, fraction, not_negative, positive


def usable_kv_bytes(
    total_bytes: float, weight_bytes: float, activation_bytes: float, overhead_bytes: float, kv_fraction: float = 0.9
) -> float:
    """Bytes for KV: what weights, activations and overheads leave, times `kv_fraction`; negative when they do not fit."""
    not_negative(
        total_bytes=total_bytes, weight_bytes=weight_bytes, activation_bytes=activation_bytes, overhead_bytes=overhead_bytes
    )
    fraction(kv_fraction=kv_fraction)
    left = total_bytes - weight_bytes - activation_bytes - overhead_bytes
    return left * kv_fraction if left > 0 else left


def concurrent_sequences(usable_bytes: float, sequence_bytes: float) -> int:
    """Sequences of `sequence_bytes` each that fit into `usable_bytes`; 0 if none."""
    positive(sequence_bytes=sequence_bytes)
    return max(0, math.floor(usable_bytes / sequence_bytes))


def shared_prefix_kv_bytes(users: int, shared_tokens: int, own_tokens: int, token_bytes: float) -> tuple[float, float]:
    """KV bytes of `users` with a common prefix: (each with a copy of it, all on one copy)."""
    at_least_one(users=users)
    not_negative(shared_tokens=shared_tokens, own_tokens=own_tokens, token_bytes=token_bytes)
    return users * (shared_tokens + own_tokens) * token_bytes, (shared_tokens + users * own_tokens) * token_bytes


def devices_needed(resident_bytes: float, device_bytes: float) -> int:
    """Devices (or nodes) of `device_bytes` over which `resident_bytes` must be spread."""
    positive(resident_bytes=resident_bytes, device_bytes=device_bytes)
    return math.ceil(resident_bytes / device_bytes)


def decode_bound_s(bytes_read: float, bandwidth_bytes_per_s: float, devices: int = 1) -> float:
    """Least seconds of a decode step: weights and KV are read once, shared by the batch and by the devices."""
    not_negative(bytes_read=bytes_read)
    positive(bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    at_least_one(devices=devices)
    return bytes_read / (devices * bandwidth_bytes_per_s)


def tensor_parallel_layer_s(parts_s: tuple[float, ...], tensor: int, all_reduce_s: float) -> float:
    """A layer whose `parts_s` (attention, feed-forward) are each split over `tensor` devices, then all-reduced."""
    not_negative(all_reduce_s=all_reduce_s, **{f"part_{index}_s": part for index, part in enumerate(parts_s)})
    at_least_one(tensor=tensor)
    communication = len(parts_s) * all_reduce_s if tensor > 1 else 0.0
    return sum(parts_s) / tensor + communication


def chunk_tokens(slice_s: float, prefill_tokens_per_s: float) -> int:
    """Prompt tokens that fit into a slice of `slice_s` between decode steps."""
    positive(slice_s=slice_s, prefill_tokens_per_s=prefill_tokens_per_s)
    return math.floor(slice_s * prefill_tokens_per_s + 1e-9)


def imbalance_utilisation(imbalance: float) -> float:
    """Utilisation of expert ranks when the busiest has (1 + `imbalance`) times the mean load."""
    not_negative(imbalance=imbalance)
    return 1.0 / (1.0 + imbalance)


class KvSource(enum.StrEnum):
    """Where a replica that lacks a sequence's KV gets it from."""

    TRANSFER = "transfer"
    REBUILD = "rebuild"


def transfer_s(kv_bytes: float, bandwidth_bytes_per_s: float, *, shards: int = 1, latency_s: float = 0.0) -> float:
    """Seconds to move a sequence's KV whose `shards` go in parallel, each over a link of its own."""
    not_negative(kv_bytes=kv_bytes, latency_s=latency_s)
    positive(bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    at_least_one(shards=shards)
    return latency_s + kv_bytes / shards / bandwidth_bytes_per_s


def transfer_or_rebuild(moving_s: float, prefill_s: float) -> KvSource:
    """Transfer if it is faster than computing the prompt again."""
    not_negative(moving_s=moving_s, prefill_s=prefill_s)
    return KvSource.TRANSFER if moving_s < prefill_s else KvSource.REBUILD


def time_per_output_token_s(request_s: float, ttft_s: float, output_tokens: int) -> float | None:
    """(E2E - TTFT)/(OSL - 1); undefined (None) for one token, which has no interval."""
    not_negative(request_s=request_s, ttft_s=ttft_s)
    at_least_one(output_tokens=output_tokens)
    return None if output_tokens == 1 else (request_s - ttft_s) / (output_tokens - 1)
