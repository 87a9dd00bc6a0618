"""Tapes and the threads that run them."""

from __future__ import annotations

import gc
import itertools
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numba import cfunc, njit, types

from argosy.errors import EngineUnavailable
from argosy.kernels import team as team_module
from argosy.kernels.atomics import add_i64, compare_and_swap_i64, load_i64, sleep_us, store_i64
from argosy.kernels.tape import PerThread, Tape, TapeBuilder
from argosy.kernels.team import Team

OP = types.void(types.CPointer(types.int64), types.int64, types.int64, types.int64)


@cfunc(OP, nopython=True)
def _add_total_of_previous(args, begin, end, thread):
    """out[i] = i + the sum of all `size` words of `previous`: wrong if any of them was not written yet."""
    previous, out, size = args[0], args[1], args[2]
    for i in range(begin, end):
        total = 0
        for j in range(size):
            total += load_i64(previous + 8 * j)
        store_i64(out + 8 * i, total + i)


@cfunc(OP, nopython=True)
def _count(args, begin, end, thread):
    for i in range(begin, end):
        add_i64(args[0] + 8 * i, 1)


@cfunc(OP, nopython=True)
def _add_sum(args, begin, end, thread):
    for i in range(args[2]):
        add_i64(args[1], load_i64(args[0] + 8 * i))


@cfunc(OP, nopython=True)
def _sleep_as_thread_1(args, begin, end, thread):
    """The first `args[1]` times that thread 1 comes here it sleeps; then counts."""
    if thread == 1 and add_i64(args[1], -1) > 0:
        sleep_us(args[2])
    for i in range(begin, end):
        add_i64(args[0] + 8 * i, 1)


@cfunc(OP, nopython=True)
def _note_thread(args, begin, end, thread):
    store_i64(args[0], thread + 1)
    store_i64(args[0] + 8, end - begin)
    store_i64(args[0] + 16, args[1])


@cfunc(OP, nopython=True)
def _wait_for_word(args, begin, end, thread):
    while load_i64(args[0]) == 0:
        sleep_us(100)


@njit
def _swap(address, expected, desired):
    return compare_and_swap_i64(address, expected, desired)


class ScriptedCrew:
    """Sizes in turn, whatever the steps were like."""

    def __init__(self, *sizes: int) -> None:
        self._sizes = itertools.cycle(sizes)
        self.active = next(self._sizes)

    def after_step(self, now_s: float, duration_s: float, waited_s: float) -> int:
        assert waited_s >= 0
        assert 0 < duration_s < 60
        self.active = next(self._sizes)
        return self.active


@pytest.fixture
def team_of() -> Iterator[Callable[[int], Team]]:
    teams: list[Team] = []

    def make(num_threads: int) -> Team:
        teams.append(Team(num_threads))
        return teams[-1]

    yield make
    for team in teams:
        team.close()


def _chain(num_threads: int, buffers: np.ndarray, items: int, chunk: int) -> Tape:
    builder = TapeBuilder(num_threads)
    for previous, out in itertools.pairwise(buffers):
        args = [previous.ctypes.data, out.ctypes.data, len(out)]
        builder.add(_add_total_of_previous.address, args, items=items, chunk=chunk)
    return builder.build()


def _chain_expected(num_ops: int, size: int) -> np.ndarray:
    expected = np.zeros((num_ops + 1, size), dtype=np.int64)
    for op in range(num_ops):
        expected[op + 1] = expected[op].sum() + np.arange(size)
    return expected


@pytest.mark.parametrize("num_threads", [1, 2, 3, 4])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_an_op_begins_when_the_one_before_it_is_done(team_of, num_threads, chunk):
    size, num_ops = 7, 12
    expected = _chain_expected(num_ops, size)
    buffers = np.zeros_like(expected)
    tape = _chain(num_threads, buffers, size, chunk)
    team = team_of(num_threads)
    for _ in range(300):
        buffers[1:] = -(10**9)
        team.run(tape)
        np.testing.assert_array_equal(buffers, expected)


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_every_item_is_done_once_whatever_the_step_holds(team_of, num_threads):
    counts, team = np.zeros((5, 64), dtype=np.int64), team_of(num_threads)
    builder = TapeBuilder(num_threads)
    ops = np.array([builder.add(_count.address, [row.ctypes.data], chunk=3) for row in counts])
    tape, expected = builder.build(), np.zeros_like(counts)
    rng = np.random.default_rng(0)
    for step in range(4000):
        items = int(rng.integers(0, 65))
        chosen = ops[step % 2 :: 2]
        tape.set_items(chosen, items)
        team.run(tape)
        for op in ops:
            expected[op, : tape.items(op)] += 1
    np.testing.assert_array_equal(counts, expected)


def test_an_empty_tape_and_an_op_without_items_are_over_at_once(team_of):
    team = team_of(2)
    team.run(TapeBuilder(2).build())
    builder = TapeBuilder(2)
    builder.add(_count.address, [0], items=0)
    team.run(builder.build())


@pytest.mark.timeout(40)
def test_a_thread_asleep_with_a_chunk_is_waited_for_and_wakes_who_waits(team_of, monkeypatch):
    """Were nobody woken, every nap would cost a second."""
    monkeypatch.setattr(team_module, "_LATE_WAKE_NS", 999_999_999)
    counts, naps = np.zeros(40, dtype=np.int64), np.array([60], dtype=np.int64)
    builder = TapeBuilder(2)
    builder.add(_sleep_as_thread_1.address, [counts.ctypes.data, naps.ctypes.data, 3_000], items=40)
    builder.add(_count.address, [counts.ctypes.data], items=40)
    tape, team = builder.build(), team_of(2)
    team._crew = ScriptedCrew(2)
    deadline_s, steps = time.monotonic() + 30, 0
    while naps[0] > 0:
        team.run(tape)
        steps += 1
        np.testing.assert_array_equal(counts, 2 * steps)
        assert time.monotonic() < deadline_s, "thread 1 never took a chunk"


def test_a_thread_late_by_many_steps_changes_nothing(team_of):
    counts, scratch, naps = np.zeros(8, dtype=np.int64), np.zeros((2, 8), dtype=np.int64), np.array([2], dtype=np.int64)
    builder = TapeBuilder(2)
    private = PerThread(scratch.ctypes.data, scratch.strides[0])
    builder.add(_sleep_as_thread_1.address, [private, naps.ctypes.data, 50_000], items=8, replicated=True)
    for _ in range(4):
        builder.add(_count.address, [counts.ctypes.data], items=8)
    tape, team = builder.build(), team_of(2)
    team._crew = ScriptedCrew(2)
    deadline_s, steps = time.monotonic() + 30, 0
    while naps[0] > 0 or steps < 2000:
        team.run(tape)
        steps += 1
        np.testing.assert_array_equal(counts, 4 * steps)
        assert time.monotonic() < deadline_s, "thread 1 never ran the replicated op"
    assert scratch[0, 0] == steps


def test_a_late_thread_begins_nothing_before_its_time(team_of):
    """It goes on in the middle of a tape whose ops read what the ones before them wrote in the same step; a step that was
    computed in another order leaves its mark in the sum over all steps."""
    size, num_ops = 3, 8
    buffers, naps, total = (
        np.zeros((num_ops + 1, size), dtype=np.int64),
        np.array([60], dtype=np.int64),
        np.zeros(1, np.int64),
    )
    scratch = np.zeros((2, 8), dtype=np.int64)
    builder = TapeBuilder(2)
    builder.add(_count.address, [buffers.ctypes.data], items=1)
    private = PerThread(scratch.ctypes.data, scratch.strides[0])
    builder.add(_sleep_as_thread_1.address, [private, naps.ctypes.data, 1_000], items=1, replicated=True)
    for previous, out in itertools.pairwise(buffers):
        builder.add(_add_total_of_previous.address, [previous.ctypes.data, out.ctypes.data, size], items=size)
    builder.add(_add_sum.address, [buffers[-1].ctypes.data, total.ctypes.data, size], items=1)
    tape, team = builder.build(), team_of(2)
    team._crew = ScriptedCrew(2)
    deadline_s, steps = time.monotonic() + 30, 0
    while naps[0] > 0:
        for _ in range(50):
            team.run(tape)
        steps += 50
        assert time.monotonic() < deadline_s, "thread 1 never ran the replicated op"
    expected = 0
    for step in range(1, steps + 1):
        row = np.array([step, 0, 0])
        for _ in range(num_ops):
            row = row.sum() + np.arange(size)
        expected += int(row.sum())
    assert total[0] == expected


def test_fewer_threads_may_take_part_and_come_back(team_of):
    counts = np.zeros((6, 40), dtype=np.int64)
    builder = TapeBuilder(4)
    for row in counts:
        builder.add(_count.address, [row.ctypes.data], items=40)
    tape, team = builder.build(), team_of(4)
    team._crew = ScriptedCrew(4, 1, 1, 3, 2, 4, 1)
    for _ in range(3000):
        team.run(tape)
    np.testing.assert_array_equal(counts, 3000)


def test_who_is_left_out_does_nothing_until_called_back_or_closed(team_of):
    notes = np.zeros((3, 3), dtype=np.int64)
    builder = TapeBuilder(3)
    builder.add(_note_thread.address, [PerThread(notes.ctypes.data, 24), 0], items=1, replicated=True)
    tape, team = builder.build(), team_of(3)
    team._crew = ScriptedCrew(3, 1)
    team.run(tape)
    assert team.num_active == 1
    team._crew = ScriptedCrew(1)
    time.sleep(0.05)
    notes[:] = 0
    for _ in range(100):
        team.run(tape)
    time.sleep(0.05)
    assert notes[:, 0].tolist() == [1, 0, 0]
    team._crew = ScriptedCrew(1, 3)
    deadline_s = time.monotonic() + 30
    while not notes[:, 0].all() and time.monotonic() < deadline_s:
        team.run(tape)
    assert notes[:, 0].tolist() == [1, 2, 3]
    team._crew = ScriptedCrew(3, 1)
    team.run(tape)
    team.close()
    assert _num_team_threads() == 0


def test_waiting_is_told_to_who_decides_the_size(team_of):
    """Thread 1 naps in a chunk; the caller has nothing left to do meanwhile."""
    naps, told = np.array([5], dtype=np.int64), []
    counts = np.zeros(2, dtype=np.int64)
    builder = TapeBuilder(2)
    builder.add(_sleep_as_thread_1.address, [counts.ctypes.data, naps.ctypes.data, 10_000], items=2)
    tape, team = builder.build(), team_of(2)
    team._crew.after_step = lambda now_s, duration_s, waited_s: told.append((duration_s, waited_s)) or 2
    deadline_s = time.monotonic() + 30
    while naps[0] > 0 and time.monotonic() < deadline_s:
        team.run(tape)
    assert sum(0.005 < waited_s <= duration_s for duration_s, waited_s in told) >= 4


def test_tapes_of_one_team_take_turns(team_of):
    counts, team = np.zeros((3, 16), dtype=np.int64), team_of(3)
    tapes = []
    for row in range(3):
        builder = TapeBuilder(3)
        for _ in range(2 + row):
            builder.add(_count.address, [counts[row].ctypes.data], items=16, chunk=2)
        tapes.append(builder.build())
    for _ in range(1000):
        for tape in tapes:
            team.run(tape)
    assert [set(row) for row in counts] == [{2000}, {3000}, {4000}]


def test_a_replicated_op_runs_in_every_thread_with_its_own_args(team_of):
    notes, go = np.zeros((3, 3), dtype=np.int64), np.zeros(1, dtype=np.int64)
    builder = TapeBuilder(3)
    builder.add(_note_thread.address, [PerThread(notes.ctypes.data, 24), 0.5], items=9, replicated=True)
    builder.add(_wait_for_word.address, [go.ctypes.data], items=1)
    tape, team = builder.build(), team_of(3)
    runner = threading.Thread(target=team.run, args=(tape,))
    runner.start()
    deadline_s = time.monotonic() + 30
    while not notes[:, 0].all() and time.monotonic() < deadline_s:
        time.sleep(0.001)
    go[0] = 1
    runner.join()
    bits = struct.unpack("<q", struct.pack("<d", 0.5))[0]
    assert notes.tolist() == [[1, 9, bits], [2, 9, bits], [3, 9, bits]]


def test_one_step_at_a_time(team_of):
    go = np.zeros(1, dtype=np.int64)
    builder = TapeBuilder(1)
    builder.add(_wait_for_word.address, [go.ctypes.data], items=1)
    tape, team = builder.build(), team_of(1)
    runner = threading.Thread(target=team.run, args=(tape,))
    runner.start()
    deadline_s = time.monotonic() + 30
    while not team._running.locked() and time.monotonic() < deadline_s:
        time.sleep(0.001)
    with pytest.raises(EngineUnavailable, match="one step at a time"):
        team.run(tape)
    go[0] = 1
    runner.join()
    team.run(tape)


def test_an_idle_team_uses_no_processor_time(team_of):
    counts = np.zeros(4, dtype=np.int64)
    builder = TapeBuilder(4)
    builder.add(_count.address, [counts.ctypes.data], items=4)
    team = team_of(4)
    team.run(builder.build())
    time.sleep(0.05)
    before_s = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before_s < 0.1


def test_closing_ends_the_threads_and_then_nothing_runs():
    team = Team(3)
    tape = TapeBuilder(3).build()
    assert _num_team_threads() == 2
    team.close()
    team.close()
    assert _num_team_threads() == 0
    with pytest.raises(EngineUnavailable, match="closed"):
        team.run(tape)


def test_a_forgotten_team_ends_its_threads():
    team = Team(2)
    team.run(TapeBuilder(2).build())
    del team
    gc.collect()
    assert _num_team_threads() == 0


def _num_team_threads() -> int:
    return sum(t.name.startswith("argosy-") and t.is_alive() for t in threading.enumerate())


_FORKING = """
import os, sys
from argosy.errors import EngineUnavailable
from argosy.kernels import team as team_module
from argosy.kernels.tape import TapeBuilder
from argosy.kernels.team import Team
team, tape = Team(2), TapeBuilder(2).build()
team.run(tape)
child = os.fork()
if child == 0:
    try:
        team.run(tape)
    except EngineUnavailable as error:
        assert "forked" in str(error)
        sys.exit(7)  # through the finalizers
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
team.run(tape)
print("done")
"""


def test_fork_and_exit_with_an_open_team():
    finished = subprocess.run([sys.executable, "-c", _FORKING], capture_output=True, text=True, timeout=60)
    assert (finished.returncode, finished.stdout.strip()) == (0, "done"), finished.stderr


def test_compare_and_swap_tells_whether_it_did():
    word = np.array([5], dtype=np.int64)
    assert not _swap(word.ctypes.data, 4, 9)
    assert word[0] == 5
    assert _swap(word.ctypes.data, 5, 9)
    assert word[0] == 9
