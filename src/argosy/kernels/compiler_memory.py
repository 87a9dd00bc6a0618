"""Gives the memory of the compiler's code back once everything is compiled.

Loading kernels from the disk cache goes through LLVM, which leaves tens of MB of its library resident. They are read-only
pages of a file: dropped, they come back from the page cache when the compiler is called again.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator

_LIBRARY = "libllvmlite"
_MADV_DONTNEED = 4


def code_ranges(maps: Iterable[str], library: str) -> Iterator[tuple[int, int]]:
    """Address ranges of the executable pages of `library`, from lines as of /proc/PID/maps (proc(5)).

    Only mappings that are not writable: no page of them differs from the file.
    """
    for line in maps:
        addresses, permissions, *_, path = line.split(None, 5)
        if permissions == "r-xp" and library in path.rpartition("/")[2]:
            begin, end = (int(address, 16) for address in addresses.split("-"))
            yield begin, end


def drop_compiler_code() -> None:
    """Take the compiler's code out of the resident set; nothing where the system is not Linux or refuses."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for begin, end in list(code_ranges(maps, _LIBRARY)):
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)
