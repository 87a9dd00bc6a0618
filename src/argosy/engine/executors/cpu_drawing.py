"""Draws tokens from rows of logits with the threads that computed them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executors.cpu_buffers import FloatArray
from argosy.kernels.sampling import SampleArgs, sample_op
from argosy.kernels.tape import TapeBuilder, op_address
from argosy.kernels.team import Team


class Drawing:
    """A tape of one op that draws from rows of `logits`, f32 [rows, vocab], which it leaves as they are."""

    def __init__(self, logits: FloatArray, team: Team) -> None:
        max_rows, vocab = logits.shape
        self._team = team
        self._temperatures = np.ones(max_rows, np.float32)
        self._top_ks, self._rows, self._token_ids = (np.zeros(max_rows, np.int64) for _ in range(3))
        self._top_ps, self._min_ps = (np.zeros(max_rows, np.float64) for _ in range(2))
        self._keys = np.zeros(max_rows, np.uint64)
        args = SampleArgs(
            logits=logits.ctypes.data,
            vocab=vocab,
            temperatures=self._temperatures.ctypes.data,
            top_ks=self._top_ks.ctypes.data,
            top_ps=self._top_ps.ctypes.data,
            min_ps=self._min_ps.ctypes.data,
            keys=self._keys.ctypes.data,
            token_ids=self._token_ids.ctypes.data,
            rows=self._rows.ctypes.data,
        )
        builder = TapeBuilder(team.num_threads)
        self._op = np.array([builder.add(op_address(sample_op), args)])
        self._tape = builder.build()

    def draw(self, rows: Sequence[int], params: Sequence[SamplingParams], keys: NDArray[np.uint64]) -> Sequence[int]:
        """See `sampler.Draw`; the rows hold a greatest logit that is finite."""
        count = len(rows)
        self._rows[:count] = rows
        self._temperatures[:count] = [p.temperature for p in params]
        self._top_ks[:count] = [max(p.top_k, 0) for p in params]
        self._top_ps[:count] = [p.top_p for p in params]
        self._min_ps[:count] = [p.min_p for p in params]
        self._keys[:count] = keys
        self._tape.set_items(self._op, count)
        self._team.run(self._tape)
        token_ids: list[int] = self._token_ids[:count].tolist()
        return token_ids
