"""Named random streams: one seed, and no stream feels how much another has been drawn from."""

from __future__ import annotations

import hashlib
from random import Random

import numpy as np


class RandomStreams:
    """Streams keyed by (seed, name).

    The key is a hash of both, not a position in some sequence of draws, so that a stream added elsewhere, or one more draw
    from another, changes nothing. Asking twice for a name gives the same stream, in the state it is in.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._python: dict[str, Random] = {}
        self._numpy: dict[str, np.random.Generator] = {}

    def python(self, name: str) -> Random:
        """The stream `name` as the standard library's generator."""
        if name not in self._python:
            self._python[name] = Random(self.key("python", name))  # noqa: S311
        return self._python[name]

    def numpy(self, name: str) -> np.random.Generator:
        """The stream `name` as numpy's generator (PCG64); independent of `python(name)`."""
        if name not in self._numpy:
            self._numpy[name] = np.random.Generator(np.random.PCG64(self.key("numpy", name)))
        return self._numpy[name]

    def key(self, kind: str, name: str) -> int:
        """256 bits that depend on the seed, the kind and the name alone."""
        text = f"{self.seed}\0{kind}\0{name}".encode()
        return int.from_bytes(hashlib.sha256(text).digest(), "big")
