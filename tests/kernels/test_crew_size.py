from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from argosy.kernels.crew_size import FIRST_PAUSE_S, LONGEST_PAUSE_S, MOST_WAITING, WINDOW_S, CrewSize


class Clock:
    """Feeds steps of 5 ms in which threads waited for a given share of the time."""

    def __init__(self, num_threads: int) -> None:
        self.crew = CrewSize(num_threads)
        self.now_s = 100.0

    def run(self, duration_s: float, waiting) -> list[int]:
        """The sizes after each step; `waiting` is a share, or a function of the size."""
        sizes, end_s = [], self.now_s + duration_s - 1e-9
        while self.now_s < end_s:
            self.now_s += 0.005
            share = waiting(self.crew.active) if callable(waiting) else waiting
            sizes.append(self.crew.after_step(self.now_s, 0.005, share * 0.005))
        return sizes


def test_without_waiting_everybody_takes_part():
    assert set(Clock(4).run(2.0, MOST_WAITING)) == {4}


def test_one_is_left_out_after_a_window_of_waiting_and_the_last_never():
    clock = Clock(3)
    assert clock.run(WINDOW_S, 0.5) == [3, 3, 3, 2]
    assert clock.run(WINDOW_S, 0.5)[-1] == 1
    assert set(clock.run(FIRST_PAUSE_S - WINDOW_S, 0.5)) == {1}


def test_a_core_that_is_free_again_is_used_after_the_pause():
    clock = Clock(2)
    clock.run(WINDOW_S, 0.5)
    sizes = clock.run(FIRST_PAUSE_S + 2 * WINDOW_S, 0.0)
    assert sizes[0] == 1
    assert set(sizes[-4:]) == {2}
    clock.run(WINDOW_S, 0.5)
    assert 2 in clock.run(FIRST_PAUSE_S + WINDOW_S, 0.0), "a try that went well begins anew with short pauses"


def test_a_neighbour_that_stays_is_tried_ever_less_often():
    clock = Clock(2)
    sizes = clock.run(60.0, lambda size: 0.5 if size == 2 else 0.0)
    tried = [i for i, (a, b) in enumerate(itertools.pairwise(sizes)) if (a, b) == (1, 2)]
    gaps_s = [(j - i) * 0.005 for i, j in itertools.pairwise(tried)]
    assert gaps_s == sorted(gaps_s)
    assert gaps_s[0] < 4 * FIRST_PAUSE_S
    assert LONGEST_PAUSE_S <= gaps_s[-1] <= LONGEST_PAUSE_S + 3 * WINDOW_S
    assert sizes.count(2) * 0.005 < 0.05 * 60


def test_with_many_threads_only_so_many_stay_out_as_wait():
    """Two of eight cores are taken: the waiting ends with the sixth thread."""
    clock = Clock(8)
    sizes = clock.run(30.0, lambda size: 0.6 if size > 6 else 0.05)
    assert sizes[-200:].count(6) > 180
    assert set(sizes[-200:]) <= {6, 7}


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.floats(1e-5, 0.3), st.floats(0.0, 3.0), st.floats(0.0, 1.0)), max_size=200),
)
def test_it_is_never_below_one_or_above_all(num_threads, steps):
    crew, now_s = CrewSize(num_threads), 0.0
    for duration_s, share, idle_s in steps:
        now_s += duration_s + idle_s
        before = crew.active
        active = crew.after_step(now_s, duration_s, share * duration_s)
        assert 1 <= active <= num_threads
        assert abs(active - before) <= 1
        assert active == crew.active
