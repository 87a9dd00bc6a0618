from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.kernels.attention_plan import COMBINE_WORDS, SPLIT_KEYS, WORK_WORDS, max_work_rows, plan_attention


@settings(deadline=None)
@given(
    chunks=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 60)), min_size=1, max_size=5),
    window=st.sampled_from([0, 1, 300]),
    tokens_per_tile=st.integers(1, 30),
    max_work_to_split=st.sampled_from([0, 2, 1000]),
    max_partials=st.sampled_from([0, 5, 500]),
)
def test_every_token_sees_every_split_once(chunks, window, tokens_per_tile, max_work_to_split, max_partials):
    starts, counts = (np.array(column, dtype=np.int64) for column in zip(*chunks, strict=True))
    first_rows = np.concatenate(([0], np.cumsum(counts)))
    tokens, offsets = int(first_rows[-1]), np.arange(len(chunks)) * 1000
    work = np.full((max_work_rows(tokens, len(chunks), max_partials), WORK_WORDS), -9, np.int64)
    combine = np.full((len(work), COMBINE_WORDS), -9, np.int64)
    limits = (tokens_per_tile, max_work_to_split, max_partials)
    num_work, num_combine = plan_attention(starts, counts, first_rows, offsets, window, *limits, work, combine)

    seen: dict[int, list[int]] = {row: [] for row in range(tokens)}
    parts: dict[int, tuple[int, int]] = {}  # by partial result: its row and split
    for row, count, position, table, first_split, stop_split, partial in work[:num_work].tolist():
        sequence = int(np.searchsorted(first_rows, row, side="right")) - 1
        assert position == starts[sequence] + row - first_rows[sequence]
        assert table == offsets[sequence]
        assert 1 <= count <= tokens_per_tile
        for token in range(count):
            seen[row + token] += range(first_split, stop_split)
            if partial >= 0:
                assert stop_split == first_split + 1
                assert partial + token not in parts
                assert partial + token < max_partials
                parts[partial + token] = (row + token, first_split)
    for row, splits in seen.items():
        sequence = int(np.searchsorted(first_rows, row, side="right")) - 1
        position = int(starts[sequence] + row - first_rows[sequence])
        needed = range(max(0, position - window + 1) // SPLIT_KEYS if window else 0, position // SPLIT_KEYS + 1)
        assert sorted(splits) == splits
        assert len(set(splits)) == len(splits)
        assert set(needed) <= set(splits)

    combined: set[int] = set()
    for row, count, partial, splits in combine[:num_combine].tolist():
        for split in range(splits):
            for token in range(count):
                place = partial + split * count + token
                assert parts[place] == (row + token, parts[partial][1] + split)
                combined.add(place)
    assert combined == set(parts)
