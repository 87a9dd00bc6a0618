"""Log-probabilities and ranks from raw logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from argosy.engine.core.plan import TokenLogprob
from argosy.engine.executors.step_layout import to_device


def token_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprob]:
    """Score `token_ids[r]` by row r of `logits` [rows, vocab] f32, and list the `num_top[r]` most likely tokens.

    Natural logarithm. The rank is one more than the number of tokens with a greater logit. Tokens of equal logit stand in
    `top` by rising id. A token of logit -inf has log-probability -inf.
    """
    if not token_ids:
        return []
    chosen_ids = to_device(np.array(token_ids, dtype=np.int64)[:, None], logits.device)
    chosen = logits.gather(1, chosen_ids)
    log_total = torch.logsumexp(logits, dim=-1, keepdim=True)
    ranks = (logits > chosen).sum(dim=-1) + 1
    top = _top(logits, log_total, min(max(num_top), logits.shape[1]))
    scores = (chosen - log_total).squeeze(1).tolist()
    return [
        TokenLogprob(token_id, score, rank, tuple(best[:count]))
        for token_id, score, rank, best, count in zip(token_ids, scores, ranks.tolist(), top, num_top, strict=True)
    ]


def _top(logits: Tensor, log_total: Tensor, count: int) -> list[list[tuple[int, float]]]:
    if count == 0:
        return [[] for _ in range(len(logits))]
    values, ids = torch.topk(logits, count, dim=-1)
    rows = zip(ids.tolist(), (values - log_total).tolist(), strict=True)
    return [sorted(zip(*row, strict=True), key=lambda pair: (-pair[1], pair[0])) for row in rows]
