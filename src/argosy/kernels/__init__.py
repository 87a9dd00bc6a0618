"""The hot loops of the CPU executor: machine code generated for the processor at hand, beside a numpy reference for each."""

from pathlib import Path

from argosy.kernels.numba_cache import place_numba_cache

place_numba_cache(Path(__file__).parent)
