"""The clock of a live engine."""

from __future__ import annotations

import time


class MonotonicClock:
    """The operating system's monotonic clock (a `Clock`)."""

    def now_s(self) -> float:
        """Seconds since an arbitrary zero that is fixed while the machine is up."""
        return time.monotonic()
