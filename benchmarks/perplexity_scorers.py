"""What a way of computing a model says about a window of text, compared row by row with reference probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from argosy import LLM, SamplingParams
from argosy.engine.core.plan import TokenLogprob
from argosy.models.architectures.attention import SingleSequenceAttention
from argosy.models.architectures.decoder import Decoder

TOP = 20


@dataclass(frozen=True, slots=True)
class Scored:
    """Of the tokens after the first of a window; all f64 or i64[tokens - 1], natural logarithms.

    Attributes:
        logprobs: of the tokens that follow.
        largest: the likeliest tokens.
        kl: Kullback-Leibler divergence of this distribution from the reference, per token in nats.
    """

    logprobs: Tensor
    largest: Tensor
    kl: Tensor


class Scorer(Protocol):
    """A way of computing a model. `kl_kind` says what its divergence is."""

    @property
    def name(self) -> str: ...

    @property
    def kl_kind(self) -> str: ...

    def score(self, token_ids: Sequence[int], reference: Tensor) -> Scored:
        """Compare with `reference`, f32[tokens, vocab] of log probabilities for the token after each."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...


class DecoderScorer:
    """The torch decoder on one whole sequence, without a cache; the reference when in float32."""

    kl_kind = "full"

    def __init__(self, name: str, decoder: Decoder) -> None:
        self.name = name
        self._decoder = decoder

    @torch.inference_mode()
    def log_probabilities(self, token_ids: Sequence[int]) -> Tensor:
        """f32[tokens, vocab]."""
        ids = torch.tensor(token_ids)
        hidden = self._decoder(ids, torch.arange(len(ids)), SingleSequenceAttention())
        return self._decoder.logits(hidden).log_softmax(dim=-1)

    def score(self, token_ids: Sequence[int], reference: Tensor) -> Scored:
        """As `Scorer`."""
        return compare(self.log_probabilities(token_ids), token_ids, reference)

    def close(self) -> None:
        """As `Scorer`."""
        del self._decoder


class ExecutorScorer:
    """An executor that gives the logits of a whole sequence: `score(token_ids)` -> f32[tokens, vocab]."""

    kl_kind = "full"

    def __init__(self, name: str, llm: LLM, executor: Any) -> None:
        self.name = name
        self._llm = llm
        self._executor = executor

    @torch.inference_mode()
    def score(self, token_ids: Sequence[int], reference: Tensor) -> Scored:
        """As `Scorer`."""
        return compare(self._executor.score(tuple(token_ids)).log_softmax(dim=-1), token_ids, reference)

    def close(self) -> None:
        """As `Scorer`."""
        self._llm.close()


class EngineScorer:
    """Any engine through its prompt logprobs. It sees the `TOP` likeliest tokens of a row, so that its divergence is one
    between distributions over these tokens and one for all others: a lower bound (data processing inequality)."""

    kl_kind = f"lower bound from the top {TOP}"

    def __init__(self, name: str, llm: LLM) -> None:
        self.name = name
        self._llm = llm

    def score(self, token_ids: Sequence[int], reference: Tensor) -> Scored:
        """As `Scorer`."""
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=TOP)
        output = self._llm.generate([list(token_ids)], params)[0]
        assert output.prompt_logprobs is not None, output.completions[0].error
        rows = [row for row in output.prompt_logprobs if row is not None]
        top = [row.top[:TOP] for row in rows]
        ids = torch.tensor([[token for token, _ in row] for row in top])
        own = torch.tensor([[logprob for _, logprob in row] for row in top], dtype=torch.float64)
        return Scored(
            torch.tensor([row.logprob for row in rows], dtype=torch.float64),
            _largest(rows),
            _coarse_kl(reference[:-1].gather(1, ids).double(), own),
        )

    def close(self) -> None:
        """As `Scorer`."""
        self._llm.close()


def compare(own: Tensor, token_ids: Sequence[int], reference: Tensor) -> Scored:
    """From f32[tokens, vocab] of log probabilities. Rows are taken in parts, so that no third table of that size exists."""
    targets = torch.tensor(token_ids[1:])
    kl = torch.cat(
        [
            (theirs.double().exp() * (theirs.double() - ours.double())).nan_to_num(0.0).sum(dim=-1)
            for ours, theirs in zip(own[:-1].split(64), reference[:-1].split(64), strict=True)
        ]
    )
    return Scored(own[:-1].gather(1, targets[:, None])[:, 0].double(), own[:-1].argmax(dim=-1), kl)


def _largest(rows: Sequence[TokenLogprob]) -> Tensor:
    return torch.tensor([row.top[0][0] for row in rows])


def _coarse_kl(reference: Tensor, own: Tensor) -> Tensor:
    """Divergence of f64[rows, TOP] of log probabilities, what is left of each row taken as one more outcome."""
    p, q = reference.exp(), own.exp()
    rest_p, rest_q = (1.0 - p.sum(dim=1)).clamp_min(1e-12), (1.0 - q.sum(dim=1)).clamp_min(1e-12)
    return (p * (reference - own)).sum(dim=1) + rest_p * (rest_p / rest_q).log()
