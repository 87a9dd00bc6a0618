from __future__ import annotations

import subprocess
import sys

import pytest

from argosy.kernels.compiler_memory import code_ranges

MAPS = [
    "7f0000000000-7f0000001000 r--p 00000000 08:01 7 /lib/libllvmlite.so\n",
    "7f0000001000-7f0000003000 r-xp 00001000 08:01 7 /lib/libllvmlite.so\n",
    "7f0000003000-7f0000004000 rw-p 00003000 08:01 7 /lib/libllvmlite.so\n",
    "7f0000005000-7f0000006000 r-xp 00000000 08:01 8 /lib/libllvmlite/libc.so\n",
    "7f0000007000-7f0000008000 rwxp 00000000 00:00 0 \n",
]

PROGRAM = """
import numba
from argosy.kernels.compiler_memory import code_ranges, drop_compiler_code

def resident_kb():
    total, counts = 0, False
    for line in open("/proc/self/smaps"):
        fields = line.split()
        if "-" in fields[0] and not fields[0].endswith(":"):
            counts = fields[1] == "r-xp" and "libllvmlite" in line
        total += int(fields[1]) if counts and fields[0] == "Rss:" else 0
    return total

assert numba.njit(lambda x: x + 1)(1) == 2
before = resident_kb()
drop_compiler_code()
after = resident_kb()
assert numba.njit(lambda x: x * 3)(2) == 6
print(before, after)
"""


def test_only_code_of_the_library_and_nothing_that_is_written():
    assert list(code_ranges(MAPS, "libllvmlite")) == [(0x7F0000001000, 0x7F0000003000)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_compiler_works_on_after_its_code_was_dropped():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before_kb, after_kb = map(int, done.stdout.split())
    assert after_kb < before_kb / 4, done.stdout
