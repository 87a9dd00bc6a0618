import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.activations import (
    ActivationConventions,
    Recompute,
    classic_layer_bytes,
    classic_output_bytes,
    layer_activation_bytes,
    recompute_flops_ratio,
    working_memory_bytes,
)
from argosy.cost.device import Precision
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, LinearAttention, Mla, MoeFfn, SparseIndex
from argosy.cost.parallel import ParallelPlan
from argosy.errors import ConfigError

CLASSIC = ActivationConventions(fused_attention=False, dropout=True)
GIB, TIB = 2**30, 2**40

# Models of Korthikanti et al. 2022, table 3: heads, hidden.
MODELS = {"22B": (64, 6144), "175B": (96, 12288), "530B": (128, 20480), "1T": (160, 25600)}


def gpt_layer(hidden: int, heads: int) -> Layer:
    return Layer(Gqa(heads, heads, hidden // heads), DenseFfn(4 * hidden, gated=False))


def test_seven_billion_without_recomputation():
    with_scores = 32 * classic_layer_bytes(4096, 2, 4096, 32)
    without = 32 * classic_layer_bytes(4096, 2, 4096, 32, recompute=Recompute.SELECTIVE)
    assert with_scores / 1e9 == pytest.approx(208.3, rel=0.005)
    assert without / 1e9 == pytest.approx(36.5, rel=0.005)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tensor", [1, 8])
def test_published_table_of_layer_activations(model, tensor):
    """Every row of the table, as a multiple of sbh."""
    heads, hidden = MODELS[model]
    scores = 5 * heads * 2048 / hidden
    unit = 2048 * hidden

    def multiple(sequence_parallel: bool, recompute: Recompute) -> float:
        return (
            classic_layer_bytes(
                2048, 1, hidden, heads, tensor=tensor, sequence_parallel=sequence_parallel, recompute=recompute
            )
            / unit
        )

    assert multiple(False, Recompute.NONE) == pytest.approx(10 + 24 / tensor + scores / tensor)
    assert multiple(True, Recompute.NONE) == pytest.approx(34 / tensor + scores / tensor)
    assert multiple(False, Recompute.SELECTIVE) == pytest.approx(10 + 24 / tensor)
    assert multiple(True, Recompute.SELECTIVE) == pytest.approx(34 / tensor)
    assert multiple(False, Recompute.FULL) == 2


@pytest.mark.parametrize(("model", "scores", "saved_percent"), [("175B", 80, 70), ("530B", 64, 65)])
def test_selective_recomputation_saves_what_the_paper_prints(model, scores, saved_percent):
    heads, hidden = MODELS[model]
    assert 5 * heads * 2048 / hidden == scores
    whole = classic_layer_bytes(2048, 1, hidden, heads)
    kept = classic_layer_bytes(2048, 1, hidden, heads, recompute=Recompute.SELECTIVE)
    assert round(100 * (1 - kept / whole)) == saved_percent


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("recompute", Recompute)
@pytest.mark.parametrize(("tensor", "sequence_parallel"), [(1, False), (8, False), (8, True)])
def test_counting_the_tensors_of_a_gpt_layer_gives_the_published_form(model, recompute, tensor, sequence_parallel):
    heads, hidden = MODELS[model]
    counted = layer_activation_bytes(
        gpt_layer(hidden, heads),
        hidden,
        ParallelPlan(tensor=tensor, sequence_parallel=sequence_parallel),
        sequence=2048,
        micro_batch=4,
        recompute=recompute,
        conventions=CLASSIC,
    )
    published = classic_layer_bytes(
        2048, 4, hidden, heads, tensor=tensor, sequence_parallel=sequence_parallel, recompute=recompute
    )
    assert counted == pytest.approx(published)


# Rajbhandari et al. 2021 ("ZeRO-Infinity"), figure 2a: (layers, hidden, heads), TB of activations per node, TB of
# checkpoints per node, GB of working memory of one layer; 1024 tokens, 4 sequences per device of 16, TB and GB binary.
# Its layer keeps 16h + 2as bytes per token; its checkpoints are of 32 sequences.
INFINITY = [
    ((80, 10240, 128), "2.03", "0.05", "1.63"),
    ((100, 20480, 160), "3.91", "0.12", "2.50"),
    ((128, 25600, 256), "7.13", "0.20", "3.56"),
    ((195, 65536, 512), "24.38", "0.76", "8.00"),
    ((315, 163840, 1024), "88.59", "3.08", "18.00"),
]


@pytest.mark.parametrize(("shape", "activations", "checkpoints", "working"), INFINITY)
def test_activation_table_of_models_up_to_a_hundred_trillion_parameters(shape, activations, checkpoints, working):
    layers, hidden, heads = shape
    full = layers * classic_layer_bytes(1024, 32, hidden, heads, recompute=Recompute.FULL)
    assert f"{full / TIB + 1e-9:.2f}" == checkpoints
    layer = working_memory_bytes(1024, 4, hidden, heads)
    assert f"{layer / GIB + 1e-9:.2f}" == working
    assert f"{working_memory_bytes(1024, 16 * 4, hidden, heads, layers=layers) / TIB + 1e-9:.2f}" == activations
    assert layer < classic_layer_bytes(1024, 4, hidden, heads) < 3 * layer


def test_grouped_heads_and_gated_feed_forward_counted_by_hand():
    layer = Layer(Gqa(32, 8, 128), DenseFfn(14336))
    per_token = layer_activation_bytes(layer, 4096, ParallelPlan(), sequence=1024, micro_batch=1) / 1024
    norms_and_inputs = 2 * 4 * 4096
    attention = 2 * (4096 + 1024 + 1024 + 4096) + 4 * 32
    assert per_token == norms_and_inputs + attention + 2 * 3 * 14336


def test_unfused_gate_and_qk_norm_keep_more():
    layer = Layer(Gqa(32, 8, 128), DenseFfn(14336))

    def of(changed: Layer, **conventions: bool) -> float:
        keep = ActivationConventions(**conventions)
        return layer_activation_bytes(changed, 4096, ParallelPlan(), sequence=64, micro_batch=1, conventions=keep) / 64

    assert of(layer, fused_activation=False) - of(layer) == 2 * 14336
    normed = dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, qk_norm="per head"))
    assert of(normed) - of(layer) == 2 * (4096 + 1024)
    gated = dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, output_gate=True))
    assert of(gated) - of(layer) == 2 * 2 * 4096
    four_norms = dataclasses.replace(layer, norms=4)
    assert of(four_norms) - of(layer) == 2 * 2 * 4096


def test_experts_keep_the_rows_of_the_experts_a_token_visits():
    sparse = Layer(Gqa(32, 4, 128), MoeFfn(128, 8, 768))
    dense = Layer(Gqa(32, 4, 128), DenseFfn(768))

    def of(layer: Layer, plan: ParallelPlan) -> float:
        return layer_activation_bytes(layer, 2048, plan, sequence=64, micro_batch=1) / 64

    more = of(sparse, ParallelPlan()) - of(dense, ParallelPlan())
    assert more == 2 * (8 * 2 * 2048 + 7 * 3 * 768) + 8 * 128
    shared = Layer(Gqa(32, 4, 128), MoeFfn(128, 8, 768, shared_size=512, shared_gate=True))
    assert of(shared, ParallelPlan()) - of(sparse, ParallelPlan()) == 2 * (3 * 512 + 2048)
    # Spread over ranks in balance, each still computes as many rows as its own tokens make.
    assert of(sparse, ParallelPlan(data=8, expert=8)) == of(sparse, ParallelPlan())


def test_latent_and_linear_attention_are_counted():
    mla = Layer(Mla(128, 1536, 512, 128, 64, 128), DenseFfn(18432))
    expanded = 2 * 128 * 192 + 2 * 128 * 128
    latents = 2 * 512 + 64 + 2 * 1536
    got = layer_activation_bytes(mla, 7168, ParallelPlan(), sequence=64, micro_batch=1) / 64
    assert got == 2 * (4 * 7168 + expanded + latents + 3 * 18432) + 4 * 128
    indexed = dataclasses.replace(mla, attention=dataclasses.replace(mla.attention, index=SparseIndex(64, 128, 2048)))
    more = layer_activation_bytes(indexed, 7168, ParallelPlan(), sequence=64, micro_batch=1) / 64 - got
    assert more == 2 * (64 * 128 + 64 + 128)  # index queries, their weights, the key
    linear = Layer(LinearAttention(32, 16, 128, 128, 4), DenseFfn(4096))
    halves = [layer_activation_bytes(linear, 2048, ParallelPlan(tensor=t), sequence=64, micro_batch=1) / 64 for t in (1, 2)]
    assert halves[0] - 8 * 2048 == pytest.approx(2 * (halves[1] - 8 * 2048))


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
)
def test_more_recomputation_keeps_less_and_shards_never_add(tensor, context, sequence_parallel, fused, micro_batch):
    layer = Layer(Gqa(32, 8, 128), DenseFfn(14336))
    keep = ActivationConventions(fused_attention=fused)

    def of(plan: ParallelPlan, recompute: Recompute) -> float:
        return layer_activation_bytes(
            layer, 4096, plan, sequence=1024, micro_batch=micro_batch, recompute=recompute, conventions=keep
        )

    plan = ParallelPlan(tensor=tensor, context=context, sequence_parallel=sequence_parallel)
    kept = [of(plan, recompute) for recompute in (Recompute.FULL, Recompute.SELECTIVE, Recompute.NONE)]
    assert kept == sorted(kept)
    assert of(plan, Recompute.NONE) <= of(ParallelPlan(), Recompute.NONE)


def test_precision_scales_what_is_stored_in_it():
    layer = Layer(Gqa(32, 8, 128), DenseFfn(14336))
    sizes = [
        layer_activation_bytes(
            layer, 4096, ParallelPlan(), sequence=64, micro_batch=1, recompute=Recompute.FULL, precision=precision
        )
        for precision in (Precision.FP8, Precision.BF16, Precision.FP32)
    ]
    assert sizes[1] == 2 * sizes[0]
    assert sizes[2] == 2 * sizes[1]


def test_what_lies_outside_the_layers():
    s, b, h, v, t = 2048, 1, 12288, 51200, 8
    assert classic_output_bytes(s, b, h, v, tensor=t) == pytest.approx(4 * s * b * h / t * (1 + v / h))


def test_recomputation_costs_a_third_in_full_and_about_a_twentieth_selectively():
    assert recompute_flops_ratio(Recompute.FULL, sequence=4096, hidden=4096) == pytest.approx(0.33, abs=0.005)
    assert recompute_flops_ratio(Recompute.SELECTIVE, sequence=4096, hidden=4096) == pytest.approx(0.05, abs=0.005)
    assert recompute_flops_ratio(Recompute.NONE, sequence=4096, hidden=4096) == 0


@pytest.mark.parametrize(("model", "printed_percent"), [("175B", 2.7), ("530B", 1.6)])
def test_selective_recomputation_as_a_share_of_the_forward_pass_is_what_the_paper_prints(model, printed_percent):
    hidden = MODELS[model][1]
    of_all = recompute_flops_ratio(Recompute.SELECTIVE, sequence=2048, hidden=hidden)
    assert round(100 * 3 * of_all, 1) == printed_percent


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: classic_layer_bytes(0, 1, 4096, 32), "sequence"),
        (lambda: classic_layer_bytes(8, -1, 4096, 32), "micro_batch"),
        (lambda: classic_layer_bytes(8, 1, 4096, 32, tensor=5), "tensor parallelism 5"),
        (lambda: classic_output_bytes(8, 1, 4096, 0), "vocab"),
        (
            lambda: layer_activation_bytes(gpt_layer(4096, 32), 4096, ParallelPlan(tensor=3), sequence=8, micro_batch=1),
            "tensor parallelism 3",
        ),
        (
            lambda: layer_activation_bytes(gpt_layer(4096, 32), 4096, ParallelPlan(context=3), sequence=8, micro_batch=1),
            "context parallelism 3",
        ),
        (lambda: recompute_flops_ratio(Recompute.FULL, sequence=float("nan"), hidden=1), "sequence"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
