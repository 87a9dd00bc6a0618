import dataclasses
from pathlib import Path

import pytest

from argosy.cost.device import Precision
from argosy.cost.measured_layout import configuration_of
from argosy.cost.measured_rows import AggregatedLayout, MeasuredRow, Quantisation, read_rows
from argosy.errors import ConfigError

SAMPLE = Path(__file__).parent / "data" / "serving_rows_sample.csv"


def row(model, layout, quantisation=Quantisation.FP8, system="b200_sxm", backend="trtllm", experts=None):
    return MeasuredRow(
        line=7,
        backend=backend,
        backend_version="",
        model=model,
        system=system,
        gemm=quantisation,
        experts=quantisation if experts is None else experts,
        input_tokens=1024,
        output_tokens=1024,
        concurrency=8,
        layout=layout,
        measured_on="",
        ttft_s=0.1,
        tpot_s=0.01,
    )


@pytest.mark.parametrize(
    ("recorded", "tensor", "data", "expert", "shards"),
    [
        ((8, 1, 1, 8, 1), 8, 1, 1, 8),
        ((4, 1, 1, 1, 4), 4, 1, 4, 1),
        ((1, 1, 8, 1, 8), 1, 8, 8, 1),
        # g x g devices recorded for g.
        ((64, 1, 1, 8, 8), 8, 1, 8, 1),
        ((1, 1, 64, 8, 8), 1, 8, 8, 1),
        ((16, 1, 1, 4, 4), 4, 1, 4, 1),
        ((4, 1, 4, 1, 16), 1, 4, 4, 1),
        # Really two by two.
        ((4, 1, 1, 2, 2), 4, 1, 2, 2),
    ],
)
def test_layouts_of_routed_models(recorded, tensor, data, expert, shards):
    plan = configuration_of(row("deepseek-ai/DeepSeek-V3", AggregatedLayout(*recorded))).deployment.plan
    assert (plan.tensor, plan.data, plan.expert, plan.expert_shards) == (tensor, data, expert, shards)


def test_expert_degrees_of_a_dense_model_mean_nothing():
    plan = configuration_of(row("meta-llama/Llama-3.1-70B", AggregatedLayout(4, 1, 1, 4, 1))).deployment.plan
    assert (plan.tensor, plan.expert, plan.devices) == (4, 1, 4)


@pytest.mark.parametrize(
    ("model", "kind", "system", "weights", "compute", "scaled"),
    [
        ("meta-llama/Llama-3.1-70B", Quantisation.NONE, "h100_sxm", Precision.BF16, Precision.BF16, False),
        ("meta-llama/Llama-3.1-70B", Quantisation.FP8, "h100_sxm", Precision.FP8, Precision.FP8, False),
        ("deepseek-ai/DeepSeek-V3", Quantisation.FP8, "b200_sxm", Precision.FP8, Precision.FP8, True),
        ("meta-llama/Llama-3.1-70B", Quantisation.NVFP4, "b200_sxm", Precision.FP4, Precision.FP4, True),
        ("meta-llama/Llama-3.1-70B", Quantisation.NVFP4, "h100_sxm", Precision.FP4, Precision.BF16, False),
    ],
)
def test_types_of_matrices(model, kind, system, weights, compute, scaled):
    deployment = configuration_of(row(model, AggregatedLayout(8, 1, 1, 8, 1), kind, system)).deployment
    assert (deployment.precisions.weights, deployment.precisions.compute) == (weights, compute)
    assert deployment.scales_inputs is scaled


def test_only_experts_of_gpt_oss_are_four_bits():
    precisions = configuration_of(
        row("openai/gpt-oss-120b", AggregatedLayout(2, 1, 1, 2, 1), Quantisation.NVFP4)
    ).deployment.precisions
    assert (precisions.weights, precisions.experts, precisions.expert_compute) == (
        Precision.BF16,
        Precision.FP4,
        Precision.FP4,
    )


@pytest.mark.parametrize(
    ("backend", "system", "kv"),
    [
        ("vllm", "b200_sxm", Precision.FP8),
        ("vllm", "h100_sxm", Precision.BF16),
        ("trtllm", "h100_sxm", Precision.FP8),
        ("sglang", "b200_sxm", Precision.BF16),
    ],
)
def test_type_of_kv(backend, system, kv):
    layout = AggregatedLayout(8, 1, 1, 8, 1)
    assert configuration_of(row("Llama-3.1-70B", layout, system=system, backend=backend)).deployment.precisions.kv is kv


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "Llama-9"}, "line 7: .*Llama"),
        ({"system": "h900"}, "line 7: .*h900"),
        ({"backend": "vlm"}, "line 7: unknown serving engine 'vlm'; known near it: vllm"),
        ({"layout": AggregatedLayout(24, 1, 1, 24, 1)}, "line 7: .*24 does not divide"),
    ],
)
def test_what_cannot_be_laid_out_names_its_line(changes, message):
    good = row("Llama-3.1-70B", AggregatedLayout(8, 1, 1, 8, 1))
    with pytest.raises(ConfigError, match=message):
        configuration_of(dataclasses.replace(good, **changes))


def test_disaggregated_rows_have_no_single_configuration():
    pools = next(one for one in read_rows(SAMPLE) if not isinstance(one.layout, AggregatedLayout))
    with pytest.raises(ConfigError, match=f"line {pools.line}: a disaggregated row"):
        configuration_of(pools)
