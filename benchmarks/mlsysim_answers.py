"""What `mlsysim` answers: run by `vs_mlsysim.py` under an interpreter that has the package, prints one JSON object.

Imports nothing of Argosy. Each answer is a plain number in the unit that `mlsysim_questions.py` states under the same key;
one that this version of the package cannot give is reported as its error. Efficiency is 1 wherever a bound is asked.
Standard input holds a JSON list of (input tokens, output tokens, clients), each to be answered with a TPOT in ms.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from importlib import metadata

import mlsysim
from mlsysim import solvers
from mlsysim.core.units import Q_

Cloud, Language = mlsysim.Hardware.Cloud, mlsysim.Models.Language
BF16 = Q_("2 byte")
ANSWERS: dict[str, Callable[[], float]] = {}


def answer(key: str) -> Callable[[Callable[[], float]], Callable[[], float]]:
    """Register a function as the answer to the question `key`."""

    def register(function: Callable[[], float]) -> Callable[[], float]:
        ANSWERS[key] = function
        return function

    return register


def seconds(time: object) -> float:
    return float(time.to("s").magnitude)


def kv_bytes(model: object) -> float:
    """KV bytes of one more token."""
    return float(model.get_kv_cache_size(seq_len=1, batch_size=1, precision=BF16).to("byte").magnitude)


def serving(model: object, device: object, tokens: int, batch: int = 1) -> object:
    return solvers.ServingModel().solve(model, device, seq_len=tokens, batch_size=batch, precision="fp16", efficiency=1.0)


def prompt_tflop(model: object, device: object, tokens: int) -> float:
    """What the compute part of TTFT charges: its seconds times the peak."""
    compute_s = seconds(serving(model, device, tokens).ttft) - seconds(device.dispatch_tax)
    return compute_s * device.compute.peak_flops.to("TFLOP/s").magnitude


def decode_bound_ms(model: object, device: object, tokens: int, batch: int) -> float:
    """Inter-token latency without the framework's tax per layer, which is no part of a bound."""
    tax_ms = mlsysim.calibration.FRAMEWORK_LAYER_TAX_MS * model.layers
    return 1e3 * seconds(serving(model, device, tokens, batch).itl) - tax_ms


@answer("h100_fp16_peak")
def _() -> float:
    return Cloud.H100.compute.peak_flops.to("TFLOP/s").magnitude


@answer("orin_int8_peak")
def _() -> float:
    return mlsysim.Hardware.Edge.JetsonAGXOrin.compute.precision_flops["int8"].to("TFLOP/s").magnitude


@answer("gaudi3_bandwidth")
def _() -> float:
    return Cloud.Gaudi3.memory.bandwidth.to("GB/s").magnitude


@answer("m3_max_bandwidth")
def _() -> float:
    return mlsysim.Hardware.Workstation.MacBookM3Max.memory.bandwidth.to("GB/s").magnitude


@answer("mi300x_memory")
def _() -> float:
    return Cloud.MI300X.memory.capacity.to("GB").magnitude


@answer("h100_ridge")
def _() -> float:
    return Cloud.H100.ridge_point().to("flop/byte").magnitude


@answer("llama31_70b_weights")
def _() -> float:
    return Language.Llama3_70B.size_in_bytes(BF16).to("GB").magnitude


@answer("llama31_8b_weights")
def _() -> float:
    return Language.Llama3_8B.size_in_bytes(BF16).to("GB").magnitude


@answer("llama2_70b_weights")
def _() -> float:
    return Language.Llama2_70B.size_in_bytes(BF16).to("GB").magnitude


@answer("llama31_70b_kv")
def _() -> float:
    return kv_bytes(Language.Llama3_70B)


@answer("llama31_8b_kv")
def _() -> float:
    return kv_bytes(Language.Llama3_8B)


@answer("deepseek_v3_kv")
def _() -> float:
    return kv_bytes(Language.DeepSeek_V3)


@answer("mixtral_token_flops")
def _() -> float:
    return Language.Mixtral_8x7B.inference_flops.to("gigaflop").magnitude


@answer("mixtral_prefill")
def _() -> float:
    return prompt_tflop(Language.Mixtral_8x7B, Cloud.H200, 2048)


@answer("mixtral_decode")
def _() -> float:
    return decode_bound_ms(Language.Mixtral_8x7B, Cloud.H200, 1024, 1)


@answer("llama31_8b_prefill")
def _() -> float:
    return prompt_tflop(Language.Llama3_8B, Cloud.H100, 8192)


@answer("llama31_8b_decode_bound")
def _() -> float:
    return decode_bound_ms(Language.Llama3_8B, Cloud.H100, 2048, 64)


def tpot_ms(input_tokens: int, output_tokens: int, clients: int) -> float:
    """Inter-token latency of Llama-3.1-8B on one H100, all clients decoding, half-way through their output."""
    context = input_tokens + output_tokens // 2
    return 1e3 * seconds(serving(Language.Llama3_8B, Cloud.H100, context, batch=clients).itl)


@answer("llama31_8b_tpot_light")
def _() -> float:
    return tpot_ms(1024, 512, 8)


@answer("llama31_8b_tpot_heavy")
def _() -> float:
    return tpot_ms(4096, 512, 64)


@answer("llama31_70b_w8_kv_tokens")
def _() -> float:
    memory = Cloud.H100.memory.capacity
    fit = solvers.KvAdmissionModel().solve(
        Language.Llama3_70B, 1, memory, Q_("1 byte"), reserve=0.02 * memory, context_tokens=1, kv_bytes_per_elem=BF16
    )
    return float(fit.max_requests)


@answer("pipeline_step_over_ideal")
def _() -> float:
    """All eight nodes of one cluster as stages, so that nothing but the bubble is added to the work."""
    fleet = mlsysim.Systems.Clusters.Research_256
    step = solvers.DistributedModel().solve(
        Language.Llama3_8B, fleet, batch_size=256, pp_size=8, microbatch_count=8, overlap_comm=False
    )
    work = step.node_profile.latency
    return seconds(work + step.pipeline_bubble_latency) / seconds(work)


@answer("all_reduce_hdr")
def _() -> float:
    return 1e3 * seconds(mlsysim.physics.calc_ring_allreduce_time(Q_("8e6 byte"), 8, Q_("25 GB/s"), Q_("7 us")))


@answer("all_reduce_nvlink_bandwidth")
def _() -> float:
    bandwidth = mlsysim.Systems.Nodes.DGX_H100.intra_node_bw
    return 1e3 * seconds(mlsysim.physics.calc_ring_allreduce_time(Q_("1e9 byte"), 8, bandwidth, Q_("0 s")))


def zero(stage: int) -> float:
    model = Language.Llama2_7B.model_copy(update={"parameters": Q_("7.5e9 param")})
    memory = solvers.TrainingMemoryModel().solve(
        model, Cloud.H100, batch_size=64, dp_size=64, precision="fp16", zero_stage=stage
    )
    return float((memory.weights + memory.gradients + memory.optimizer_state).to("GB").magnitude)


@answer("zero_1")
def _() -> float:
    return zero(1)


@answer("zero_2")
def _() -> float:
    return zero(2)


@answer("zero_3")
def _() -> float:
    return zero(3)


@answer("training_days")
def _() -> float:
    model = Language.Llama2_70B.model_copy(update={"parameters": Q_("70e9 param")})
    run = solvers.TrainingRunModel().solve(
        model, mlsysim.Systems.Clusters.Training_512_H100, 0.45, 1.0, {}, precision="fp16", tokens=Q_("2e12 count")
    )
    return float(run.total_time.to("day").magnitude)


@answer("llama31_405b_gpu_hours")
def _() -> float:
    fleet = mlsysim.Systems.Clusters.Meta_Llama3_16K_H100
    run = solvers.TrainingRunModel().solve(Language.Llama3_405B, fleet, 0.41, 1.0, {}, precision="fp16")
    return float(run.total_time.to("hour").magnitude) * fleet.total_accelerators / 1e6


@answer("llama31_405b_step")
def _() -> float:
    step = solvers.DistributedModel().solve(
        Language.Llama3_405B,
        mlsysim.Systems.Clusters.Meta_Llama3_16K_H100,
        batch_size=2048,
        tp_size=8,
        pp_size=16,
        v_stages=7,
        microbatch_count=16,
        zero_stage=2,
        seq_len=8192,
        overlap_comm=True,
    )
    return seconds(step.step_latency_total)


@answer("speculative_tokens")
def _() -> float:
    return float(mlsysim.physics.calc_speculative_expected_tokens(0.7, 5))


@answer("dollars_per_million_tokens")
def _() -> float:
    plan = solvers.DedicatedBreakEvenModel().solve(
        input_per_output=0.0,
        cached_fraction=0.0,
        input_price=1.0,
        cached_price=1.0,
        output_price=2.0,
        fixed_per_hour=16.0,
        variable_price=0.0,
        reference_rate=Q_("3000 1/s"),
        load=1.0,
    )
    return 1e6 * plan.dedicated_hour / plan.delivered_hour_tokens


def main() -> None:
    warnings.simplefilter("ignore")
    answers: dict[str, float] = {}
    errors: dict[str, str] = {}
    for key, function in ANSWERS.items():
        try:
            answers[key] = float(function())
        except Exception as error:  # an older or newer version may lack what is asked: that is a result too
            errors[key] = f"{type(error).__name__}: {error}"[:200]
    loads = [tpot_ms(*load) for load in json.load(sys.stdin)]
    print(json.dumps({"version": metadata.version("mlsysim"), "answers": answers, "errors": errors, "tpot_ms": loads}))


if __name__ == "__main__":
    main()
