"""Model and hardware FLOPs utilisation with declared conventions.

Both divide by the dense peak of the precision computed in. MFU counts what the model needs, experts that a token visits
only; HFU counts what ran, recomputation included (Chowdhery et al. 2022, appendix B; Korthikanti et al. 2022, section 6).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from argosy.cost.activations import Recompute
from argosy.cost.checks import at_least_one, not_negative, positive
from argosy.cost.device import Device, Precision
from argosy.cost.model_arithmetic import ActiveConvention, active_parameters
from argosy.cost.model_spec import Gqa, Layer, LinearAttention, ModelSpec
from argosy.errors import MeasurementError


class FlopConvention(enum.StrEnum):
    """What a token's training FLOPs count; P is of active parameters, without the input embedding."""

    PARAMETERS = "6P"  # Kaplan et al. 2020
    FULL_ATTENTION = "6P + 12LHQT"  # Chowdhery et al. 2022: every token with every token
    CAUSAL_ATTENTION = "6P + 6LHQT"  # only what a causal mask leaves


def attention_flops_per_token(layer: Layer, sequence: int, *, causal: bool) -> float:
    """Forward FLOPs of scores and values per token and layer, a token on average seeing half the sequence if `causal`.

    2H(Q + V) per token seen, Q and V the widths of a head's query and value; windows and sparse top-k cap the tokens seen.
    Linear attention costs 8 per state element whatever the sequence.

    Raises:
        ConfigError: a sequence below one.
    """
    at_least_one(sequence=sequence)
    attention = layer.attention
    if isinstance(attention, LinearAttention):
        return 8.0 * attention.heads * attention.key_dim * attention.value_dim
    if isinstance(attention, Gqa):
        widths, limit = 2 * attention.head_dim, attention.window
    else:
        widths = attention.nope_dim + attention.rope_dim + attention.v_dim
        limit = None if attention.index is None else attention.index.top_k
    seen = min(sequence, limit or sequence)
    # The first `seen` tokens see seen/2 on average, the rest all of their window.
    mean = seen - seen * seen / (2 * sequence) if causal else float(seen)
    return 2.0 * attention.heads * widths * mean


def model_flops_per_token(
    spec: ModelSpec, sequence: int, convention: FlopConvention = FlopConvention.FULL_ATTENTION
) -> float:
    """Training FLOPs (forward and backward) that the model needs per token of a sequence of `sequence`.

    Raises:
        ConfigError: a sequence below one.
    """
    at_least_one(sequence=sequence)
    matrices = 6.0 * active_parameters(spec, ActiveConvention.WITHOUT_INPUT_EMBEDDING)
    if convention is FlopConvention.PARAMETERS:
        return matrices
    causal = convention is FlopConvention.CAUSAL_ATTENTION
    return matrices + 3.0 * sum(n * attention_flops_per_token(layer, sequence, causal=causal) for n, layer in spec.layers)


def hardware_flops_per_token(
    spec: ModelSpec,
    sequence: int,
    recompute: Recompute,
    convention: FlopConvention = FlopConvention.FULL_ATTENTION,
) -> float:
    """The same with what the backward pass computes again: the layers' forward pass, or attention's products.

    The head is never computed again. Under `FlopConvention.PARAMETERS` attention counts nothing, so selective
    recomputation adds nothing.

    Raises:
        ConfigError: a sequence below one.
    """
    needed = model_flops_per_token(spec, sequence, convention)
    if recompute is Recompute.NONE:
        return needed
    matrices = 6.0 * active_parameters(spec, ActiveConvention.WITHOUT_INPUT_EMBEDDING)
    attention = (needed - matrices) / 3
    if recompute is Recompute.SELECTIVE:
        return needed + attention
    return needed + attention + matrices / 3 - 2.0 * spec.vocab_size * spec.hidden_size


@dataclass(frozen=True, slots=True)
class Utilisation:
    """MFU and HFU of a run, None where the device's peak is unknown; `note` says the conventions or why not."""

    mfu: float | None
    hfu: float | None
    note: str


def utilisation_of(flops_per_token: float, tokens_per_s: float, devices: int, peak_flop_per_s: float) -> float:
    """Share of peak: FLOPs per token x tokens/s / (devices x peak).

    Raises:
        ConfigError: an input that is not above 0.
        MeasurementError: above 1, which no device reaches: the throughput, the FLOPs or the peak is wrong.
    """
    positive(flops_per_token=flops_per_token, tokens_per_s=tokens_per_s, peak_flop_per_s=peak_flop_per_s)
    at_least_one(devices=devices)
    value = flops_per_token * tokens_per_s / (devices * peak_flop_per_s)
    if value > 1:
        raise MeasurementError(
            f"utilisation of {value:.0%}: {tokens_per_s:g} tokens/s at {flops_per_token:g} FLOP each exceed "
            f"{devices} x {peak_flop_per_s:g} FLOP/s; are the parameters the active ones, the tokens those of all devices?"
        )
    return value


def training_utilisation(
    spec: ModelSpec,
    *,
    tokens_per_s: float,
    devices: int,
    sequence: int,
    device: Device | None,
    precision: Precision = Precision.BF16,
    recompute: Recompute = Recompute.NONE,
    convention: FlopConvention = FlopConvention.FULL_ATTENTION,
) -> Utilisation:
    """MFU and HFU of a training run; not reported, instead of guessed, for a device nobody knows or without such a peak.

    Raises:
        ConfigError: an input that is not above 0.
        MeasurementError: MFU or HFU above 1.
    """
    not_negative(tokens_per_s=tokens_per_s)
    if device is None:
        return Utilisation(None, None, "MFU not reported: the device is unknown; name one of the catalogue")
    if precision not in device.peak:
        return Utilisation(None, None, f"MFU not reported: no {precision} peak is known of {device.name}")
    peak = device.peak_flop_per_s(precision)
    mfu = utilisation_of(model_flops_per_token(spec, sequence, convention), tokens_per_s, devices, peak)
    hfu = utilisation_of(hardware_flops_per_token(spec, sequence, recompute, convention), tokens_per_s, devices, peak)
    note = f"{convention} of active parameters without input embedding, dense {precision} peak of {device.name}"
    return Utilisation(mfu, hfu, note)
