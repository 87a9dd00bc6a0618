from hypothesis import given
from hypothesis import strategies as st

from argosy.fleet.policies.windows import BudgetPeriod, SlidingWindow

additions = st.lists(st.tuples(st.floats(0.0, 45.0), st.integers(1, 100)), max_size=80)


@given(additions)
def test_a_window_counts_for_its_length_and_at_most_a_sixtieth_longer(steps):
    window, added, now_s = SlidingWindow(), [], 0.0
    for gap_s, amount in steps:
        now_s += gap_s
        used = window.used(now_s)
        at_least = sum(a for t, a in added if now_s - t < 60.0)
        at_most = sum(a for t, a in added if now_s - t < 61.0 + 1e-9)
        assert at_least <= used <= at_most
        window.add(amount, now_s)
        added.append((now_s, amount))
        window.check_invariants()


@given(additions, st.integers(1, 500))
def test_after_the_time_to_wait_so_much_is_forgotten_and_not_long_before(steps, excess):
    window, now_s = SlidingWindow(), 0.0
    for gap_s, amount in steps:
        now_s += gap_s
        window.add(amount, now_s)
    before = window.used(now_s)
    excess = min(excess, before)
    wait_s = window.wait_s(excess, now_s)
    if excess:
        assert window.used(now_s + wait_s - 1.01) > before - excess
    assert window.used(now_s + wait_s + 1e-6) <= before - excess


def test_what_is_taken_back_leaves_its_slot_and_nothing_of_a_slot_that_is_forgotten():
    window = SlidingWindow()
    first = window.add(50, 0.0)
    window.add(7, 30.0)
    window.take_back(20, first)
    assert window.total == 37
    assert window.used(61.0) == 7
    window.take_back(30, first)
    assert window.total == 7
    window.check_invariants()


def test_slots_are_forgotten_one_by_one():
    window = SlidingWindow()
    for now_s in range(5):
        window.add(10**now_s, now_s + 0.5)
    assert [window.used(now_s) for now_s in (60.9, 61.0, 61.9, 62.0, 63.0, 64.0, 65.0)] == [
        11111, 11110, 11110, 11100, 11000, 10000, 0,
    ]  # fmt: skip


def test_a_clock_that_is_set_back_frees_nothing():
    window = SlidingWindow()
    window.add(5, 100.0)
    window.add(6, 40.0)
    assert window.used(40.0) == 11
    assert window.used(160.0) == 11
    assert window.used(161.0) == 0


def test_reset_is_when_the_last_amount_is_forgotten():
    window = SlidingWindow()
    assert window.reset_s(5.0) == 0.0
    window.add(1, 10.5)
    window.add(1, 20.5)
    assert window.reset_s(30.5) == 50.5


def test_windows_of_another_length_move_in_steps_of_a_sixtieth():
    window = SlidingWindow(6.0)
    window.add(1, 0.0)
    assert window.used(6.05) == 1
    assert window.used(6.11) == 0


def test_budget_periods_follow_the_epoch_and_what_is_reserved_outlives_them():
    budget = BudgetPeriod()
    assert budget.used(100.0, 250.0) == 0
    budget.spent, budget.reserved = 70, 5
    assert budget.left_s(100.0, 250.0) == 50.0
    assert budget.used(100.0, 299.0) == 75
    assert budget.used(100.0, 300.0) == 5
    assert budget.used(100.0, 1234.0) == 5
    assert budget.left_s(100.0, 1234.0) == 66.0


def test_a_budget_without_a_period_never_ends():
    budget = BudgetPeriod()
    budget.spent = 3
    assert budget.used(None, 1e12) == 3
