"""Quantise a GGUF file again with llama.cpp's own quantiser.

usage: python llamacpp_quantize.py IN OUT q4_0|q4_1|q8_0 THREADS

Losses add up, which speed does not care about; the output appears under its name only when it is complete.
"""

from __future__ import annotations

import os
import sys

import llama_cpp

TYPES = {
    "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_1,
    "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
}


def main() -> None:
    source, target, kind, threads = sys.argv[1:]
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = TYPES[kind], int(threads), True
    unfinished = f"{target}.part"
    status = llama_cpp.llama_model_quantize(source.encode(), unfinished.encode(), params)
    if status != 0:
        sys.exit(f"llama_model_quantize failed with {status}")
    os.replace(unfinished, target)


if __name__ == "__main__":
    main()
