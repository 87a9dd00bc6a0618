"""The clock that moves when told to."""

import pytest

from argosy.engine.core.clock import ManualClock


def test_moves_forward_only():
    clock = ManualClock(2.0)
    clock.advance(0.5)
    assert clock.now_s() == 2.5
    with pytest.raises(ValueError, match="forward only"):
        clock.advance(-0.1)
