"""How long KV takes from one replica to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from argosy.errors import ConfigError
from argosy.sim.event_loop import EventHandle, EventLoop
from argosy.sim.fleet.pool import Member


@dataclass(frozen=True, slots=True)
class KvLink:
    """The link by which a prefill replica sends.

    Attributes:
        bytes_per_s: of one replica, whatever its number of devices.
        latency_s: of each transfer.
        kv_bytes_per_token: of the model, all layers.
    """

    bytes_per_s: float
    kv_bytes_per_token: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the value that is out of range."""
        if not (self.bytes_per_s > 0.0 and self.kv_bytes_per_token > 0.0 and self.latency_s >= 0.0):
            raise ConfigError(
                "a KV link needs bytes_per_s and kv_bytes_per_token above 0 and a latency_s from 0 up, got "
                f"{self.bytes_per_s}, {self.kv_bytes_per_token} and {self.latency_s}"
            )

    def transfer_s(self, num_tokens: int) -> float:
        """Latency + bytes / bandwidth of the KV of `num_tokens` tokens."""
        return self.latency_s + num_tokens * self.kv_bytes_per_token / self.bytes_per_s


def send_kv(loop: EventLoop, link: KvLink, sender: Member, num_tokens: int, done: Callable[[], None]) -> EventHandle:
    """Call `done` when the KV of `num_tokens` tokens has left `sender`. Mutates its `link_free_s`.

    Transfers of one replica go one after the other, each with the whole link. Cancelling the handle stops `done`, not the
    link's being taken.
    """
    sender.link_free_s = max(sender.link_free_s, loop.now_s()) + link.transfer_s(num_tokens)
    return loop.at(sender.link_free_s, done)
