"""Counter-based random numbers: Philox4x32-10.

Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). A number is a pure function of a
key and a counter; there is no state to carry, so a draw is the same in any batch, after a preemption, on any machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK_32 = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)


def philox4x32(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The ten-round bijection: `counter` [n, 4] under `key` [n, 2], both uint32, gives [n, 4] uint32."""
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = (key[:, i].astype(np.uint64) for i in range(2))
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT_32) ^ c1 ^ k0,
            product1 & _MASK_32,
            (product0 >> _SHIFT_32) ^ c3 ^ k1,
            product0 & _MASK_32,
        )
        k0, k1 = (k0 + np.uint64(_WEYL[0])) & _MASK_32, (k1 + np.uint64(_WEYL[1])) & _MASK_32
    return np.stack((c0, c1, c2, c3), axis=1).astype(np.uint32)


def token_keys(
    seeds: NDArray[np.uint64], sample_indices: NDArray[np.uint64], positions: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """64 random bits per token to be sampled.

    The seed is the key; the token's position (64 bits) and the sequence's index among its request's samples are the
    counter. All arguments and the result are [n].
    """
    counter = np.zeros((len(seeds), 4), dtype=np.uint32)
    counter[:, 0] = positions & _MASK_32
    counter[:, 1] = positions >> _SHIFT_32
    counter[:, 2] = sample_indices & _MASK_32
    key = np.stack((seeds & _MASK_32, seeds >> _SHIFT_32), axis=1).astype(np.uint32)
    words = philox4x32(counter, key).astype(np.uint64)
    return words[:, 0] << _SHIFT_32 | words[:, 1]
