"""Threads that run tapes together: dynamic chunks, bounded spinning, and nobody waits for a thread that does nothing.

Each op of a tape has two words of 64 bits, both (generation << 32 | items): the items that nobody has taken yet, and those
that are not done yet. A thread takes a chunk by compare-and-swap on the first, does it, and subtracts it from the second; an
op is over when the second is down to zero. So

- a thread that is not scheduled holds up the others only if it holds a chunk, and then for no longer than it takes the
  scheduler to bring it back; the others sleep meanwhile, which gives the scheduler a free core to bring it back on;
- a thread that wakes up late finds a word of another generation where it left off, and goes to look for the present step. A
  swap that succeeds proves that the step is still running, so only then are the row's sizes trusted.

Waiting is spinning for `SPIN_US` and then sleeping on the word (futex), between steps too: an idle team costs nothing. Where
threads wait for each other all the same, because a core is shared with another process, fewer take part (`crew_size.py`).
"""

from __future__ import annotations

import os
import threading
import time
import weakref

import numpy as np
from numba import njit
from numpy.typing import NDArray

from argosy.errors import EngineUnavailable
from argosy.kernels.atomics import (
    add_i64,
    call_op,
    compare_and_swap_i64,
    load_i64,
    monotonic_ns,
    pause,
    peek_i64,
    sleep_while,
    store_i64,
    wake,
)
from argosy.kernels.crew_size import CrewSize
from argosy.kernels.tape import ARGS, CHUNK, FLAGS, FUNCTION, ITEMS, REPLICATED, ROW_WORDS, Tape

SPIN_US = 40
"""How long a thread spins before it sleeps: a few times what waking up costs, and far below a scheduler's time slice."""

_LATE_WAKE_NS = 20_000_000
"""A thread that fell asleep over a step long over looks again after this time."""

# Words of the team's state; each on a cache line of its own.
_EPOCH, _TAPE, _STOP, _IDLE, _WAITING, _TIMEOUT, _WAITED_NS, _ACTIVE = (8 * 8 * line for line in range(8))
_STATE_WORDS = 8 * 8

_COUNT_MASK = 0xFFFFFFFF
_GENERATION_MASK = 0x7FFFFFFF
_ROW_BYTES = 8 * ROW_WORDS
_COUNTER_BYTES = 16


@njit(nogil=True, cache=True)
def _take_part(state: int, row: int, counter: int, generation: int, thread: int, parts: int) -> bool:
    """Do chunks of one op until none is left to take; False if the step is over.

    A chunk is one of `parts` of what is left, but not less than the op's own chunk: large ones first, small ones to end
    together (guided self-scheduling, Polychronopoulos and Kuck 1987).
    """
    if peek_i64(row + 8 * FLAGS) & REPLICATED:
        if load_i64(counter) >> 32 != generation:
            return False
        call_op(peek_i64(row + 8 * FUNCTION), row + 8 * ARGS, 0, peek_i64(row + 8 * ITEMS), thread)
        return True
    while True:
        word = load_i64(counter)
        if word >> 32 != generation:
            return False
        left = word & _COUNT_MASK
        if left == 0:
            return True
        chunk = min(max(left // parts, peek_i64(row + 8 * CHUNK)), left)
        if compare_and_swap_i64(counter, word, word - chunk):
            begin = peek_i64(row + 8 * ITEMS) - left
            call_op(peek_i64(row + 8 * FUNCTION), row + 8 * ARGS, begin, begin + chunk, thread)
            undone = (add_i64(counter + 8, -chunk) & _COUNT_MASK) - chunk
            if undone == 0 and load_i64(state + _WAITING) > 0:
                wake(counter + 8)


@njit(nogil=True, cache=True)
def _is_over(undone: int, generation: int) -> bool:
    return (undone & _COUNT_MASK) == 0 or undone >> 32 != generation


@njit(nogil=True, cache=True)
def _await_op(state: int, counter: int, generation: int, spins: int) -> None:
    """Wait until all chunks of an op are done."""
    for _ in range(spins):
        if _is_over(load_i64(counter + 8), generation):
            return
        pause()
    started_ns = monotonic_ns()
    add_i64(state + _WAITING, 1)
    while True:
        undone = load_i64(counter + 8)
        if _is_over(undone, generation):
            break
        # The low half may be the same in a later step; then nobody wakes this thread, and the timeout does.
        sleep_while(counter + 8, undone, state + _TIMEOUT)
    add_i64(state + _WAITING, -1)
    add_i64(state + _WAITED_NS, monotonic_ns() - started_ns)


@njit(nogil=True, cache=True)
def _run_ops(state: int, tape: int, generation: int, thread: int, spins: int) -> None:
    """One thread's way through a tape; ends early when it turns out that the step is over."""
    counter = peek_i64(tape + 8)
    num_ops = peek_i64(tape + 16)
    row = peek_i64(tape) + thread * peek_i64(tape + 24)
    parts = peek_i64(tape + 32)
    for _ in range(num_ops):
        if not _take_part(state, row, counter, generation, thread, parts):
            return
        if (peek_i64(row + 8 * FLAGS) & REPLICATED) == 0:
            _await_op(state, counter, generation, spins)
        row += _ROW_BYTES
        counter += _COUNTER_BYTES


@njit(nogil=True, cache=True)
def _await_step(state: int, seen: int, spins: int) -> int:
    """Wait for an epoch other than `seen`, and return it."""
    for _ in range(spins):
        epoch: int = load_i64(state + _EPOCH)
        if epoch != seen:
            return epoch
        pause()
    add_i64(state + _IDLE, 1)
    while True:
        epoch = load_i64(state + _EPOCH)
        if epoch != seen:
            break
        sleep_while(state + _EPOCH, seen, 0)
    add_i64(state + _IDLE, -1)
    return epoch


@njit(nogil=True, cache=True)
def _serve(state: int, thread: int, spins: int) -> None:
    """The life of a thread other than the caller's: take part in steps until told to stop."""
    seen = 0
    while True:
        seen = _await_step(state, seen, spins)
        active = load_i64(state + _ACTIVE)
        while thread >= active and load_i64(state + _STOP) == 0:
            sleep_while(state + _ACTIVE, active, 0)
            active = load_i64(state + _ACTIVE)
            seen = load_i64(state + _EPOCH)
        if load_i64(state + _STOP) != 0:
            return
        # If this is late, the tape is that of a later step, whose words are all of a later generation.
        _run_ops(state, load_i64(state + _TAPE), seen & _GENERATION_MASK, thread, spins)


@njit(nogil=True, cache=True)
def _run_step(state: int, tape: int, spins: int) -> None:
    """Thread 0: renew the tape's words, call the others, take part, return when the last op is done."""
    epoch = peek_i64(state + _EPOCH) + 1
    generation = epoch & _GENERATION_MASK
    row, counter = peek_i64(tape), peek_i64(tape + 8)
    for _ in range(peek_i64(tape + 16)):
        items = 0 if peek_i64(row + 8 * FLAGS) & REPLICATED else peek_i64(row + 8 * ITEMS)
        word = generation << 32 | items
        store_i64(counter + 8, word)
        store_i64(counter, word)
        row += _ROW_BYTES
        counter += _COUNTER_BYTES
    store_i64(state + _TAPE, tape)
    store_i64(state + _EPOCH, epoch)
    if load_i64(state + _IDLE) > 0:
        wake(state + _EPOCH)
    _run_ops(state, tape, generation, 0, spins)


@njit(nogil=True, cache=True)
def _set_active(state: int, count: int) -> None:
    """Let threads below `count` take part from the next step on."""
    store_i64(state + _ACTIVE, count)
    wake(state + _ACTIVE)


@njit(nogil=True, cache=True)
def _dismiss(state: int) -> None:
    """Let the other threads end."""
    store_i64(state + _STOP, 1)
    store_i64(state + _EPOCH, peek_i64(state + _EPOCH) + 1)
    wake(state + _EPOCH)
    _set_active(state, _COUNT_MASK)


@njit(nogil=True, cache=True)
def _spin(count: int) -> None:
    for _ in range(count):
        pause()


class Team:
    """Up to `num_threads` threads, the caller's being thread 0; the others live until `close` or garbage collection.

    Not for use in a forked child, where the other threads do not exist.
    """

    def __init__(self, num_threads: int) -> None:
        assert num_threads >= 1
        self.num_threads = num_threads
        self._spins = _spins_for(SPIN_US)
        self._state = _cache_aligned(_STATE_WORDS)
        self._state[_TIMEOUT // 8 + 1] = _LATE_WAKE_NS
        self._state[_ACTIVE // 8] = num_threads
        self._crew = CrewSize(num_threads)
        self._pid = os.getpid()
        self._running = threading.Lock()
        self._tapes: dict[int, Tape] = {}  # a late thread may still look at a tape run long ago
        threads = [
            threading.Thread(target=_live, args=(self._state, n, self._spins), name=f"argosy-{n}", daemon=True)
            for n in range(1, num_threads)
        ]
        for thread in threads:
            thread.start()
        self._finalizer = weakref.finalize(self, _end, self._state, threads, self._pid)

    def run(self, tape: Tape) -> None:
        """Run all ops of `tape`; returns when the last one is done. The GIL is free meanwhile.

        Raises:
            EngineUnavailable: the team is closed, or belongs to the process that this one was forked from.
        """
        assert tape.num_threads == self.num_threads, "a tape is built for the threads that run it"
        if not self._finalizer.alive:
            raise EngineUnavailable("the threads that run the model have been closed")
        if os.getpid() != self._pid:
            raise EngineUnavailable(
                "a forked process has no threads to run the model: start it with spawn, or load after the fork"
            )
        if not self._running.acquire(blocking=False):
            raise EngineUnavailable("a team of threads runs one step at a time")
        try:
            self._tapes[id(tape)] = tape
            self._run(tape)
        finally:
            self._running.release()

    @property
    def num_active(self) -> int:
        """Threads that take part in the next step."""
        return self._crew.active

    def _run(self, tape: Tape) -> None:
        waited_ns, active = int(self._state[_WAITED_NS // 8]), self._crew.active
        started_s = time.perf_counter()
        _run_step(self._state.ctypes.data, tape.descriptor.ctypes.data, self._spins)
        now_s = time.perf_counter()
        waited_s = (int(self._state[_WAITED_NS // 8]) - waited_ns) * 1e-9
        if self._crew.after_step(now_s, now_s - started_s, waited_s) != active:
            _set_active(self._state.ctypes.data, self._crew.active)

    def close(self) -> None:
        """End the threads and wait for them. May be called again. Must not be called while a step runs."""
        self._finalizer()


def _live(state: NDArray[np.int64], thread: int, spins: int) -> None:
    _serve(state.ctypes.data, thread, spins)


def _end(state: NDArray[np.int64], threads: list[threading.Thread], pid: int) -> None:
    if os.getpid() != pid:
        return
    _dismiss(state.ctypes.data)
    for thread in threads:
        thread.join()


def _spins_for(duration_us: float) -> int:
    """How many pauses take about `duration_us`; the processors' differ by a factor of ten."""
    count = 2000
    _spin(count)
    fastest_s = min(_time_spin(count) for _ in range(5))
    return max(1, round(count * duration_us * 1e-6 / fastest_s))


def _time_spin(count: int) -> float:
    started_s = time.perf_counter()
    _spin(count)
    return time.perf_counter() - started_s


def _cache_aligned(words: int) -> NDArray[np.int64]:
    """Zeroed int64 words that begin on a cache line."""
    padded = np.zeros(words + 8, dtype=np.int64)
    skipped = -padded.ctypes.data % 64 // 8
    return padded[skipped : skipped + words]
