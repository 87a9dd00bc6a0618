"""Sums over the last minute, and spending per period: constant work per request, nothing to do while nothing happens.

A fixed window lets twice its limit pass around its boundary, and a token bucket does in its first minute. Here no interval
of the window's length ever holds more than was allowed: the window slides in steps of 1/60 of its length.

    slot      0    1    2  …  59   60   61
            | a  | b  |    …  |    |    |
    time    0    1    2    …  59   60   61 s      a counts until 61 s, so that also its latest instant, just before 1 s,
                                                  has left every interval of 60 s by then
"""

from __future__ import annotations

import math

from argosy.fleet.policies.limits import NANO_USD_PER_USD

SLOTS = 60


class SlidingWindow:
    """The sum of what was added within the last `length_s` seconds; at most 61 slots are remembered.

    What is added counts for at least `length_s` and at most 1/60 longer. Times must not be negative. A time before the
    latest one seen is taken for that one, so that a clock that is set back frees nothing twice.
    """

    __slots__ = ("_amounts", "_latest", "_oldest", "_slots_per_s", "total")

    def __init__(self, length_s: float = 60.0) -> None:
        self._slots_per_s = SLOTS / length_s
        self._amounts: dict[int, int] = {}  # by slot, oldest first
        self._oldest = self._latest = 0
        self.total = 0

    def used(self, now_s: float) -> int:
        """The sum at `now_s`. Mutates: what is too old is forgotten."""
        slot = int(now_s * self._slots_per_s)
        if slot > self._latest:
            self._latest = slot
            if slot - self._oldest > SLOTS and self._amounts:
                self._forget(slot - SLOTS)
        return self.total

    def _forget(self, first_kept: int) -> None:
        amounts = self._amounts
        while amounts:
            slot = next(iter(amounts))
            if slot >= first_kept:
                self._oldest = slot
                return
            self.total -= amounts.pop(slot)

    def add(self, amount: int, now_s: float) -> int:
        """Count `amount`; returns the slot it is in, to be given to `take_back`."""
        if int(now_s * self._slots_per_s) > self._latest:
            self.used(now_s)
        slot, amounts = self._latest, self._amounts
        if slot in amounts:
            amounts[slot] += amount
        else:
            if not amounts:
                self._oldest = slot
            amounts[slot] = amount
        self.total += amount
        return slot

    def take_back(self, amount: int, slot: int) -> None:
        """Uncount `amount` of what was added in `slot`; nothing happens if the slot is forgotten already."""
        if slot in self._amounts:
            self._amounts[slot] -= amount
            self.total -= amount

    def wait_s(self, excess: int, now_s: float) -> float:
        """Seconds until at least `excess` of the sum is forgotten, or all of it if there is less."""
        self.used(now_s)
        last = self._latest
        for slot, amount in self._amounts.items():
            excess -= amount
            if excess <= 0:
                last = slot
                break
        return max(0.0, (last + SLOTS + 1) / self._slots_per_s - now_s)

    def reset_s(self, now_s: float) -> float:
        """Seconds until everything that was added is forgotten."""
        self.used(now_s)
        if not self._amounts:
            return 0.0
        return max(0.0, (next(reversed(self._amounts)) + SLOTS + 1) / self._slots_per_s - now_s)

    def check_invariants(self) -> None:
        """Raise `AssertionError` unless the sum is that of the slots, of which there are at most 61."""
        assert self.total == sum(self._amounts.values()), "total of a window is not the sum of its slots"
        assert all(amount >= 0 for amount in self._amounts.values()), "a slot of a window is negative"
        assert len(self._amounts) <= SLOTS + 1, "a window remembers too many slots"
        assert list(self._amounts) == sorted(self._amounts), "slots of a window are out of order"


class BudgetPeriod:
    """Nano-dollars spent in the current period, and those reserved by requests in flight, which outlive periods.

    Periods of one length follow one another from the Unix epoch, so that every process begins them at the same time.
    """

    __slots__ = ("reserved", "spent", "start_s")

    def __init__(self) -> None:
        self.start_s = -math.inf
        self.spent = 0
        self.reserved = 0

    def used(self, period_s: float | None, unix_s: float) -> int:
        """Spent and reserved. Mutates: in another period than the last time, nothing is spent yet. None never ends."""
        if period_s is not None and unix_s - self.start_s >= period_s:
            self.start_s = unix_s // period_s * period_s
            self.spent = 0
        return self.spent + self.reserved

    def left_s(self, period_s: float, unix_s: float) -> float:
        """Seconds until the period ends."""
        return max(0.0, self.start_s + period_s - unix_s)

    @property
    def spent_usd(self) -> float:
        """Dollars spent."""
        return self.spent / NANO_USD_PER_USD
