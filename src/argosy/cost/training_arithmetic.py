"""Closed forms of training: compute, days, devices for a deadline, batches, and how many tokens a budget deserves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from argosy.cost.checks import at_least_one, positive, utilisation
from argosy.errors import ConfigError

_DAY_S = 86_400.0
# Hoffmann et al. 2022: fit of approach 3, L(N, D) = E + A/N^a + B/D^b.
_LOSS_FLOOR, _LOSS_A, _LOSS_ALPHA, _LOSS_B, _LOSS_BETA = 1.69, 406.4, 0.34, 410.7, 0.28
TOKENS_PER_PARAMETER = 20.0


def training_flops(parameters: float, tokens: float) -> float:
    """6PD: forward 2 and backward 4 FLOPs per parameter and token, active parameters of a mixture (Kaplan et al. 2020).

    Raises:
        ConfigError: an input that is not above 0.
    """
    positive(parameters=parameters, tokens=tokens)
    return 6.0 * parameters * tokens


def gpt_training_flops(
    *, batch: int, sequence: int, layers: int, hidden: int, vocab: int, full_recompute: bool = False
) -> float:
    """FLOPs of one step of a GPT: 72BLsh^2(1 + s/6h + V/12Lh), or 96BLsh^2(1 + s/6h + V/16Lh) with full recomputation.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", appendix.

    Raises:
        ConfigError: a size below one.
    """
    at_least_one(batch=batch, sequence=sequence, layers=layers, hidden=hidden, vocab=vocab)
    passes = 4 if full_recompute else 3
    layer = 24.0 * batch * sequence * hidden**2 * (1 + sequence / (6 * hidden))
    return passes * layers * layer + 6.0 * batch * sequence * hidden * vocab


def training_days(flops: float, *, devices: int, mfu: float, peak_flop_per_s: float) -> float:
    """Days of `flops` model FLOPs on `devices`: C / (N x MFU x peak x 86400).

    Raises:
        ConfigError: an input out of range; MFU is above 0 and at most 1.
    """
    positive(flops=flops, peak_flop_per_s=peak_flop_per_s)
    at_least_one(devices=devices)
    utilisation(mfu=mfu)
    return flops / (devices * mfu * peak_flop_per_s * _DAY_S)


def devices_for_deadline(flops: float, *, days: float, mfu: float, peak_flop_per_s: float, multiple_of: int = 1) -> int:
    """Fewest devices, in whole multiples (nodes, model replicas), that do `flops` within `days` at this MFU.

    Raises:
        ConfigError: an input out of range.
    """
    positive(days=days)
    at_least_one(multiple_of=multiple_of)
    alone = training_days(flops, devices=1, mfu=mfu, peak_flop_per_s=peak_flop_per_s)
    return multiple_of * math.ceil(alone / days / multiple_of)


@dataclass(frozen=True, slots=True)
class ComputeOptimal:
    """A model size and token count that spend a budget well."""

    parameters: float
    tokens: float

    @property
    def flops(self) -> float:
        """6PD of the two."""
        return training_flops(self.parameters, self.tokens)


def chinchilla_tokens(parameters: float, tokens_per_parameter: float = TOKENS_PER_PARAMETER) -> float:
    """Compute-optimal tokens of a model: about 20 per parameter (Hoffmann et al. 2022, table 3).

    Raises:
        ConfigError: an input that is not above 0.
    """
    positive(parameters=parameters, tokens_per_parameter=tokens_per_parameter)
    return tokens_per_parameter * parameters


def compute_optimal(flops: float, tokens_per_parameter: float = TOKENS_PER_PARAMETER) -> ComputeOptimal:
    """P and D = kP with 6PD = `flops`: P = sqrt(C / 6k) (Hoffmann et al. 2022).

    Raises:
        ConfigError: an input that is not above 0.
    """
    positive(flops=flops, tokens_per_parameter=tokens_per_parameter)
    parameters = math.sqrt(flops / (6 * tokens_per_parameter))
    return ComputeOptimal(parameters, tokens_per_parameter * parameters)


def chinchilla_loss(parameters: float, tokens: float) -> float:
    """Predicted loss in nats per token: 1.69 + 406.4/P^0.34 + 410.7/D^0.28 (Hoffmann et al. 2022, section 3.3).

    Of their data, tokenizer and fit; for comparing budgets, not for predicting a run of another recipe.

    Raises:
        ConfigError: an input that is not above 0.
    """
    positive(parameters=parameters, tokens=tokens)
    return _LOSS_FLOOR + _LOSS_A / math.pow(parameters, _LOSS_ALPHA) + _LOSS_B / math.pow(tokens, _LOSS_BETA)


def effective_batch(micro_batch: int, data_parallel: int, accumulation: int) -> int:
    """Sequences per optimizer step: micro-batch x data-parallel ranks x accumulation steps.

    Raises:
        ConfigError: a factor below one.
    """
    at_least_one(micro_batch=micro_batch, data_parallel=data_parallel, accumulation=accumulation)
    return micro_batch * data_parallel * accumulation


def accumulation_steps(effective: int, micro_batch: int, data_parallel: int) -> int:
    """Accumulation steps that give `effective` sequences per optimizer step.

    Raises:
        ConfigError: a factor below one, or an effective batch that is not a multiple of micro-batch x ranks.
    """
    at_least_one(effective_batch=effective, micro_batch=micro_batch, data_parallel=data_parallel)
    per_pass = micro_batch * data_parallel
    if effective % per_pass:
        raise ConfigError(f"effective_batch {effective} is not a multiple of micro_batch x data_parallel = {per_pass}")
    return effective // per_pass
