import pytest

from argosy.cost.activations import Recompute
from argosy.cost.catalogue import find_device, find_model
from argosy.cost.device import Precision
from argosy.cost.mfu import (
    FlopConvention,
    attention_flops_per_token,
    hardware_flops_per_token,
    model_flops_per_token,
    training_utilisation,
    utilisation_of,
)
from argosy.cost.model_arithmetic import parameter_count
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, LinearAttention, Mla, ModelSpec, SparseIndex
from argosy.errors import ConfigError, MeasurementError

H100 = find_device("H100 SXM")
LLAMA = find_model("Llama-3.1-8B")


def gpt(layers: int, hidden: int, heads: int, vocab: int) -> ModelSpec:
    layer = Layer(Gqa(heads, heads, hidden // heads), DenseFfn(4 * hidden, gated=False))
    return ModelSpec("gpt", vocab, hidden, ((layers, layer),), True, 2048)


def test_known_run_has_the_utilisation_its_numbers_give():
    # PaLM 540B (Chowdhery et al. 2022): 238.3 K tokens/s on 6144 TPU v4 of 275 TFLOP/s; 46.2 % with attention.
    with_attention = 6 * 540.35e9 + 12 * 118 * 48 * 256 * 2048
    assert utilisation_of(with_attention, 238.3e3, 6144, 275e12) == pytest.approx(0.462, abs=0.001)
    assert utilisation_of(6 * 540.35e9, 238.3e3, 6144, 275e12) == pytest.approx(0.457, abs=0.001)


def test_attention_of_a_gpt_is_12_l_h_q_t_in_training():
    spec = gpt(118, 48 * 256, 48, 256000)
    with_attention = model_flops_per_token(spec, 2048, FlopConvention.FULL_ATTENTION)
    without = model_flops_per_token(spec, 2048, FlopConvention.PARAMETERS)
    assert with_attention - without == pytest.approx(12 * 118 * 48 * 256 * 2048)
    causal = model_flops_per_token(spec, 2048, FlopConvention.CAUSAL_ATTENTION)
    assert causal - without == pytest.approx(6 * 118 * 48 * 256 * 2048)


def test_only_experts_that_a_token_visits_count():
    spec = find_model("Qwen3-30B-A3B")
    flops = model_flops_per_token(spec, 4096, FlopConvention.PARAMETERS)
    assert flops < 6 * 3.5e9 < 6 * parameter_count(spec)


def test_more_than_the_peak_is_a_measurement_error_not_a_number():
    with pytest.raises(MeasurementError, match="563%"):
        utilisation_of(6 * 7e9, 5.63 * 989e12 / (6 * 7e9), 1, 989e12)
    impossible = 1.01 * 989e12 / model_flops_per_token(LLAMA, 8192)
    with pytest.raises(MeasurementError, match="utilisation of 101%"):
        training_utilisation(LLAMA, tokens_per_s=impossible, devices=1, sequence=8192, device=H100)


def test_peak_depends_on_the_precision():
    def mfu(precision: Precision) -> float:
        result = training_utilisation(
            LLAMA, tokens_per_s=8e3, devices=1, sequence=8192, device=H100, precision=precision
        ).mfu
        assert result is not None
        return result

    assert 0 < mfu(Precision.FP8) < mfu(Precision.BF16) < 1
    assert mfu(Precision.BF16) / mfu(Precision.FP8) == pytest.approx(1978 / 989, rel=0.01)


def test_unknown_device_or_peak_reports_nothing_instead_of_guessing():
    unknown = training_utilisation(LLAMA, tokens_per_s=1e4, devices=1, sequence=8192, device=None)
    assert (unknown.mfu, unknown.hfu) == (None, None)
    assert "not reported" in unknown.note
    without = training_utilisation(LLAMA, tokens_per_s=1e4, devices=1, sequence=8192, device=H100, precision=Precision.FP4)
    assert without.mfu is None
    assert "fp4" in without.note


def test_note_names_convention_and_peak():
    result = training_utilisation(LLAMA, tokens_per_s=1e4, devices=1, sequence=8192, device=H100)
    assert all(word in result.note for word in ("12LHQT", "bf16", H100.name, "active parameters"))


def test_hardware_utilisation_counts_what_is_computed_again():
    needed = model_flops_per_token(LLAMA, 8192)
    ratios = [hardware_flops_per_token(LLAMA, 8192, recompute) / needed for recompute in Recompute]
    assert ratios[0] == 1
    attention = 32 * attention_flops_per_token(next(LLAMA.each_layer()), 8192, causal=False)
    assert ratios[1] == pytest.approx(1 + attention / needed)
    assert ratios[1] < ratios[2] < 4 / 3
    head = 2 * LLAMA.vocab_size * LLAMA.hidden_size
    assert ratios[2] == pytest.approx(4 / 3 - head / needed)


def test_a_window_caps_what_a_token_sees():
    local = Layer(Gqa(8, 8, 64, window=128), DenseFfn(64))
    whole = Layer(Gqa(8, 8, 64), DenseFfn(64))
    assert attention_flops_per_token(local, 1024, causal=False) * 8 == attention_flops_per_token(whole, 1024, causal=False)
    # Exactly: token j sees min(j, 128), up to the half token that the closed form leaves out.
    seen = sum(min(j + 0.5, 128) for j in range(1024)) / 1024
    assert attention_flops_per_token(local, 1024, causal=True) == pytest.approx(4 * 8 * 64 * seen, rel=1e-4)


def test_attention_of_other_kinds_counted_by_hand():
    mla = Layer(Mla(16, None, 512, 128, 64, 128), DenseFfn(64))
    assert attention_flops_per_token(mla, 1024, causal=False) == 2 * 16 * (128 + 64 + 128) * 1024
    sparse = Layer(Mla(16, None, 512, 128, 64, 128, SparseIndex(4, 32, 256)), DenseFfn(64))
    assert attention_flops_per_token(sparse, 1024, causal=False) == 2 * 16 * 320 * 256
    linear = Layer(LinearAttention(32, 16, 128, 64, 4), DenseFfn(64))
    for length in (128, 4096):
        assert attention_flops_per_token(linear, length, causal=True) == 8 * 32 * 128 * 64


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: utilisation_of(1, -1, 1, 1), "tokens_per_s"),
        (lambda: utilisation_of(float("nan"), 1, 1, 1), "flops_per_token"),
        (lambda: utilisation_of(1, 1, 0, 1), "devices"),
        (lambda: utilisation_of(1, 1, 1, 0), "peak_flop_per_s"),
        (lambda: model_flops_per_token(LLAMA, 0), "sequence"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
