"""The questions of `vs_mlsysim.py`: what is asked, Argosy's answer, and a reference with its source.

References are published numbers, measurements, or formulas worked out here from the published shape of a model; none of them
calls Argosy. The reasons say what tells the two apart, as observed with the version named in `REASONS_FOR`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from argosy.cost.catalogue import find_device, find_link, find_model
from argosy.cost.collectives import Algorithm, Topology, collective_time
from argosy.cost.deployment import Deployment
from argosy.cost.device import Device, Link, Precision
from argosy.cost.efficiency import PERFECT, Constants
from argosy.cost.model_arithmetic import ActiveConvention, active_parameters, kv_bytes_per_token, parameter_count
from argosy.cost.op import Collective, CollectiveKind, StepComposition
from argosy.cost.parallel import ParallelPlan, Precisions
from argosy.cost.pipeline import PassTimes, run_pipeline
from argosy.cost.pipeline_schedules import Schedule, pipeline_program
from argosy.cost.prices import PriceRange
from argosy.cost.quantity import Dimension, Grade, Quantity
from argosy.cost.serving_economics import dollars_per_million_tokens
from argosy.cost.serving_memory import MemoryConstants, serving_memory
from argosy.cost.serving_time import ClosedLoop, closed_loop
from argosy.cost.speculation import expected_tokens
from argosy.cost.step_time_model import StepTimeModel
from argosy.cost.training_arithmetic import training_days, training_flops
from argosy.cost.training_plan import TrainingPlan
from argosy.cost.training_time import Overlap, training_step_time
from argosy.cost.zero import ZeroStage, model_state

REASONS_FOR = "0.3.0"
EXACT, SHEET, BOUND, MEASURED = 0.005, 0.015, 0.05, 0.15  # relative errors up to which an answer counts as right
H100_BYTES_PER_S, H200_BYTES_PER_S, HOPPER_FLOP_PER_S = 3.35e12, 4.8e12, 989e12
LLAMA_405B = 405_853_388_800
GPUS_405B = 16_384


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        reference: the right answer in `unit`; `source`: where it is from; `tolerance`: relative error still right.
        ours: computes Argosy's answer; `reason`: one line on what tells the answers apart.
    """

    key: str
    text: str
    unit: str
    reference: float
    source: str
    tolerance: float
    ours: Callable[[], float]
    reason: str


# Reference formulas. Llama-3.1-8B: 32 layers, 32 heads of 128, vocabulary 128 256 x 4096 twice (embedding and head).
LLAMA_8B_MATRIX = 128_256 * 4096
LLAMA_8B_USED = 8_030_261_248 - LLAMA_8B_MATRIX  # the embedding is a look-up
# Mixtral-8x7B: 46 702 792 704 parameters, of each layer's 8 experts (3 x 4096 x 14 336) a token visits 2.
MIXTRAL_MATRIX = 32_000 * 4096
MIXTRAL_USED = 46_702_792_704 - 32 * 6 * 3 * 4096 * 14_336 - MIXTRAL_MATRIX


def worked_prompt_tflop(used: int, head: int, tokens: int) -> float:
    """2 FLOPs per used weight and token, the head for the last one alone, causal attention of 32 layers x 32 heads x 128."""
    attention = 4 * 32 * 32 * 128 * tokens * (tokens + 1) / 2
    return (2 * (used - head) * tokens + 2 * head + attention) / 1e12


def worked_decode_ms(used: int, sequences: int, context: int, bytes_per_s: float) -> float:
    """Reading the used weights once and the KV of 32 layers x 8 heads x 128, keys and values, in bf16."""
    return 1e3 * (2 * used + sequences * context * 131_072) / bytes_per_s


# Argosy's answers.
def weights_gb(name: str) -> float:
    return 2 * parameter_count(find_model(name)) / 1e9


def kv(name: str) -> float:
    return kv_bytes_per_token(find_model(name), Precision.BF16)


def step_model(name: str, device: Device, constants: Constants) -> StepTimeModel:
    return StepTimeModel(Deployment(find_model(name), ParallelPlan.for_serving()), device, Topology.of(device), constants)


def prompt_tflop(name: str, tokens: int) -> float:
    """TFLOP of the op list of one prompt."""
    model = step_model(name, find_device("h200-sxm"), PERFECT)
    return sum(op.flops * op.repeats for op in model.ops(StepComposition(((1, tokens, 0),), logit_rows=1))) / 1e12


def decode_ms(name: str, device_name: str, sequences: int, context: int) -> float:
    """A decode step without any losses."""
    step = StepComposition(((sequences, 1, context),), logit_rows=sequences)
    return 1e3 * step_model(name, find_device(device_name), PERFECT).walk(step).latency_s


def tpot_ms(load: ClosedLoop) -> float:
    """Mean TPOT in steady state with the constants that are fitted to nothing."""
    device = find_device("h100-sxm")
    model = step_model("llama-3.1-8b", device, Constants())
    tpot_s = closed_loop(model, load, step_tokens=8192, memory=serving_memory(model.deployment, device)).tpot_s
    assert tpot_s is not None
    return 1e3 * tpot_s


def w8_kv_tokens() -> float:
    """Tokens of KV beside int8 weights, of 98 % of the memory; nothing of what is left is kept back."""
    precisions = Precisions(weights=Precision.INT8, compute=Precision.INT8)
    deployment = Deployment(find_model("llama-3.1-70b"), ParallelPlan.for_serving(), precisions)
    constants = MemoryConstants(total_fraction=0.98, kv_fraction=1.0)
    blocks = serving_memory(deployment, find_device("h100-sxm"), step_tokens=2048, constants=constants).kv_blocks
    assert blocks is not None
    return float(blocks * constants.block_tokens)


def pipeline_over_ideal() -> float:
    run = run_pipeline(pipeline_program(Schedule.ONE_F_ONE_B, stages=8, micro_batches=8), PassTimes(1.0, 1.0, 1.0))
    return run.makespan_s / run.ideal_s


def all_reduce_ms(payload_bytes: float, link: Link) -> float:
    topology = Topology(link, None, 8)
    collective = Collective(CollectiveKind.ALL_REDUCE, payload_bytes, 8, "tensor")
    return 1e3 * collective_time(collective, topology, Algorithm.RING).seconds


def link_of(bytes_per_s: float, latency_s: float) -> Link:
    stated = "stated in the question"
    return Link(
        "asked",
        Quantity(bytes_per_s, Dimension.BYTES_PER_S, stated, Grade.DERIVED),
        Quantity(latency_s, Dimension.SECONDS, stated, Grade.DERIVED),
    )


def nvlink_without_latency() -> Link:
    return link_of(find_link("NVLink 4").bandwidth.value, 0.0)


def zero_gb(stage: ZeroStage) -> float:
    return model_state(7.5e9, stage, 64).total_bytes / 1e9


def gpu_hours_405b() -> float:
    flops = training_flops(parameter_count(find_model("llama-3.1-405b")), 15.6e12)
    days = training_days(flops, devices=GPUS_405B, mfu=0.41, peak_flop_per_s=HOPPER_FLOP_PER_S)
    return days * 24 * GPUS_405B / 1e6


def step_405b_s() -> float:
    device = find_device("h100-sxm")
    parallel = ParallelPlan(tensor=8, pipeline=16, data=128, sequence_parallel=True, interleave=7)
    plan = TrainingPlan(parallel, sequence=8192, micro_batches=16, schedule=Schedule.INTERLEAVED, zero=ZeroStage.GRADIENTS)
    spec, topology, overlap = find_model("llama-3.1-405b"), Topology.of(device), Overlap(data=0.85)
    return training_step_time(spec, plan, device, topology, Constants(), overlap=overlap).step_s


def token_price() -> float:
    stated = PriceRange(4.0, 4.0, Grade.DERIVED, "")
    return dollars_per_million_tokens(4, stated, 3000).low_usd


def catalogue_questions() -> tuple[Question, ...]:
    h100, orin = find_device("h100-sxm"), find_device("jetson-agx-orin")
    return (
        Question(
            "h100_fp16_peak",
            "H100 SXM, dense fp16",
            "TFLOP/s",
            989.4,
            "NVIDIA data sheet: 1979 with 2:4 sparsity, halved",
            EXACT,
            lambda: h100.peak_flop_per_s(Precision.FP16) / 1e12,
            "both keep dense and sparse peaks apart",
        ),
        Question(
            "h100_ridge",
            "H100 SXM, ridge point in fp16",
            "FLOP/B",
            HOPPER_FLOP_PER_S / H100_BYTES_PER_S,
            "989 TFLOP/s over 3.35 TB/s, both of the data sheet",
            EXACT,
            lambda: h100.ridge_flop_per_byte(Precision.FP16),
            "peak over bandwidth",
        ),
        Question(
            "orin_int8_peak",
            "Jetson AGX Orin, dense int8 of the GPU",
            "TOPS",
            85.0,
            "NVIDIA technical brief: 170 sparse of the GPU, halved; 275 is sparse and counts the DLAs",
            SHEET,
            lambda: orin.peak_flop_per_s(Precision.INT8) / 1e12,
            "mlsysim takes the sparse total of GPU and DLAs as int8 peak, 6.4 times its own fp16",
        ),
        Question(
            "gaudi3_bandwidth",
            "Gaudi 3, memory bandwidth",
            "GB/s",
            3700.0,
            "Intel white paper: 3.7 TB/s",
            SHEET,
            lambda: find_device("gaudi-3").memory_bandwidth.value / 1e9,
            "both lie within what the paper rounds to",
        ),
        Question(
            "m3_max_bandwidth",
            "Apple M3 Max, memory bandwidth",
            "GB/s",
            400.0,
            "Apple specifications, 16-core chip",
            EXACT,
            lambda: find_device("apple-m3-max").memory_bandwidth.value / 1e9,
            "the same specification",
        ),
        Question(
            "mi300x_memory",
            "MI300X, memory that the driver reports",
            "GB",
            206.142,
            "rocm-smi in ROCm issue 4750: 206 141 652 992 bytes",
            SHEET,
            lambda: find_device("mi300x").memory.value / 1e9,
            "capacities of HBM are binary: 192 GiB, which the data sheet prints as 192 GB and Argosy took over",
        ),
    )


def model_questions() -> tuple[Question, ...]:
    shape = "from the layers, heads and head size of config.json"
    stored = "elements stored in the published checkpoint, 2 bytes each"
    return (
        Question(
            "llama31_8b_weights",
            "Llama-3.1-8B, weights in bf16",
            "GB",
            16.0605,
            stored,
            EXACT,
            lambda: weights_gb("llama-3.1-8b"),
            "mlsysim keeps three digits, Argosy counts from the shape",
        ),
        Question(
            "llama31_70b_weights",
            "Llama-3.1-70B, weights in bf16",
            "GB",
            141.1074,
            stored,
            EXACT,
            lambda: weights_gb("llama-3.1-70b"),
            "mlsysim keeps three digits, Argosy counts from the shape",
        ),
        Question(
            "llama2_70b_weights",
            "Llama-2-70B, weights in bf16",
            "GB",
            137.9533,
            stored,
            EXACT,
            lambda: weights_gb("llama-2-70b"),
            "mlsysim takes the name for the size: 70.0 B, the checkpoint holds 68.98 B",
        ),
        Question(
            "llama31_8b_kv",
            "Llama-3.1-8B, KV of a token in bf16",
            "B",
            2 * 32 * 8 * 128 * 2,
            shape,
            EXACT,
            lambda: kv("llama-3.1-8b"),
            "2 x layers x KV heads x head size x bytes",
        ),
        Question(
            "llama31_70b_kv",
            "Llama-3.1-70B, KV of a token in bf16",
            "B",
            2 * 80 * 8 * 128 * 2,
            shape,
            EXACT,
            lambda: kv("llama-3.1-70b"),
            "2 x layers x KV heads x head size x bytes",
        ),
        Question(
            "deepseek_v3_kv",
            "DeepSeek-V3, KV of a token in bf16",
            "B",
            61 * (512 + 64) * 2,
            shape,
            EXACT,
            lambda: kv("deepseek-v3"),
            "both cache the latent and its rope part, not the heads",
        ),
        Question(
            "mixtral_token_flops",
            "Mixtral-8x7B, FLOPs of a token without attention scores",
            "GFLOP",
            2 * MIXTRAL_USED / 1e9,
            "2 x (parameters - 6 of 8 experts a layer - embedding)",
            SHEET,
            lambda: 2 * active_parameters(find_model("mixtral-8x7b"), ActiveConvention.WITHOUT_INPUT_EMBEDDING) / 1e9,
            "mlsysim counts the embedding, a look-up, as arithmetic: 1 %",
        ),
    )


def serving_questions() -> tuple[Question, ...]:
    once = "2 FLOPs per weight that a token uses, causal attention, head for the last token"
    rows = "TensorRT-LLM 1.0.0rc3 as measured and published by AIConfigurator"
    return (
        Question(
            "llama31_8b_prefill",
            "Llama-3.1-8B, prompt of 8192 tokens",
            "TFLOP",
            worked_prompt_tflop(LLAMA_8B_USED, LLAMA_8B_MATRIX, 8192),
            once,
            SHEET,
            lambda: prompt_tflop("llama-3.1-8b", 8192),
            "mlsysim computes the whole attention square, and embedding and head for every token",
        ),
        Question(
            "mixtral_prefill",
            "Mixtral-8x7B, prompt of 2048 tokens",
            "TFLOP",
            worked_prompt_tflop(MIXTRAL_USED, MIXTRAL_MATRIX, 2048),
            once,
            SHEET,
            lambda: prompt_tflop("mixtral-8x7b", 2048),
            "mlsysim's TTFT charges every token with all 8 experts",
        ),
        Question(
            "llama31_8b_decode_bound",
            "Llama-3.1-8B on H100 SXM, least decode step, 64 sequences at 2048",
            "ms",
            worked_decode_ms(LLAMA_8B_USED, 64, 2048, H100_BYTES_PER_S),
            "used weights and KV read once at 3.35 TB/s",
            BOUND,
            lambda: decode_ms("llama-3.1-8b", "h100-sxm", 64, 2048),
            "mlsysim reads the embedding table too; Argosy adds activations, op by op",
        ),
        Question(
            "mixtral_decode",
            "Mixtral-8x7B on H200, least decode step, 1 sequence at 1024",
            "ms",
            worked_decode_ms(MIXTRAL_USED, 1, 1024, H200_BYTES_PER_S),
            "used weights and KV read once at 4.8 TB/s",
            BOUND,
            lambda: decode_ms("mixtral-8x7b", "h200-sxm", 1, 1024),
            "one token reads 2 of 8 experts, mlsysim reads all",
        ),
        Question(
            "llama31_8b_tpot_light",
            "Llama-3.1-8B on H100 SXM, TPOT, 8 clients, 1024 in, 512 out",
            "ms",
            7.417,
            rows,
            MEASURED,
            lambda: tpot_ms(ClosedLoop(1024, 512, 8)),
            "mlsysim gives a lower bound, says its own text, plus 0.01 ms a layer; Argosy's constants are fitted to no row",
        ),
        Question(
            "llama31_8b_tpot_heavy",
            "Llama-3.1-8B on H100 SXM, TPOT, 64 clients, 4096 in, 512 out",
            "ms",
            30.089,
            rows,
            MEASURED,
            lambda: tpot_ms(ClosedLoop(4096, 512, 64)),
            "the prompts of other clients share the steps; mlsysim's bound holds none of them",
        ),
        Question(
            "llama31_70b_w8_kv_tokens",
            "Llama-3.1-70B in int8 on one 80 GB GPU, 98 % used: tokens of KV",
            "tokens",
            1381 * 16,
            "vLLM start-up log, vLLM pull request 12569: 1381 blocks of 16",
            MEASURED,
            w8_kv_tokens,
            "embedding and head stay in 16 bits, activations and runtime take room; mlsysim's reserve is stated: the 2 %",
        ),
        Question(
            "speculative_tokens",
            "tokens of a speculative round, acceptance 0.7, 5 drafts",
            "tokens",
            (1 - 0.7**6) / (1 - 0.7),
            "Leviathan et al. 2023, equation 1",
            EXACT,
            lambda: expected_tokens(0.7, 5),
            "the same formula",
        ),
        Question(
            "dollars_per_million_tokens",
            "4 GPUs at $4 an hour, 3000 tokens/s: a million tokens",
            "$",
            4 * 4.0 / (3600 * 3000) * 1e6,
            "devices x $/h / (3600 x tokens/s) x 1e6",
            EXACT,
            token_price,
            "the same formula; mlsysim's as the hourly cost over hourly tokens of its break-even model",
        ),
    )


def training_questions() -> tuple[Question, ...]:
    states = "Rajbhandari et al. 2020, section 5: 16 bytes a parameter"
    paper = "Llama 3 paper, table 4: 16 384 H100, TP 8, PP 16, DP 128, 400 TFLOP/s each; as 6 FLOPs a parameter and token"
    return (
        Question(
            "pipeline_step_over_ideal",
            "1F1B, 8 stages, 8 micro-batches: step over ideal",
            "x",
            1 + 7 / 8,
            "Narayanan et al. 2021, section 2.2: 1 + (p-1)/m",
            EXACT,
            pipeline_over_ideal,
            "Argosy runs the schedule pass by pass, mlsysim has the closed form",
        ),
        Question(
            "all_reduce_hdr",
            "ring all-reduce of 8 MB over 8 ranks, 25 GB/s and 7 µs",
            "ms",
            1e3 * (14 * 7e-6 + 14 / 8 * 8e6 / 25e9),
            "2(N-1)α + 2(N-1)/N M/β",
            EXACT,
            lambda: all_reduce_ms(8e6, link_of(25e9, 7e-6)),
            "the same formula",
        ),
        Question(
            "all_reduce_nvlink_bandwidth",
            "ring all-reduce of 1 GB in a node of 8 H100 SXM, without α",
            "ms",
            1e3 * 14 / 8 * 1e9 / 450e9,
            "NVIDIA data sheet: 900 GB/s of NVLink, of both directions",
            EXACT,
            lambda: all_reduce_ms(1e9, nvlink_without_latency()),
            "both take one direction, 450 GB/s",
        ),
        *(
            Question(
                f"zero_{stage}",
                f"ZeRO stage {int(stage)}, 7.5 B parameters over 64 ranks",
                "GB",
                reference,
                states,
                EXACT,
                lambda stage=stage: zero_gb(stage),
                "the same shares",
            )
            for stage, reference in (
                (ZeroStage.OPTIMIZER, 4 * 7.5 + 12 * 7.5 / 64),
                (ZeroStage.GRADIENTS, 2 * 7.5 + 14 * 7.5 / 64),
                (ZeroStage.PARAMETERS, 16 * 7.5 / 64),
            )
        ),
        Question(
            "training_days",
            "70 B parameters, 2 T tokens, 512 H100 at MFU 0.45",
            "days",
            6 * 70e9 * 2e12 / (512 * 0.45 * HOPPER_FLOP_PER_S * 86_400),
            "6PD over the rate",
            EXACT,
            lambda: training_days(training_flops(70e9, 2e12), devices=512, mfu=0.45, peak_flop_per_s=HOPPER_FLOP_PER_S),
            "the same formula",
        ),
        Question(
            "llama31_405b_gpu_hours",
            "Llama-3.1-405B, 15.6 T tokens at the reported MFU 0.41",
            "M GPU h",
            30.84,
            "Llama 3.1 model card",
            MEASURED,
            gpu_hours_405b,
            "6PD at a constant MFU leaves out restarts, other stages and sequence lengths; mlsysim can add stated overheads",
        ),
        Question(
            "llama31_405b_step",
            "Llama-3.1-405B, optimizer step of 16.8 M tokens, defaults of each",
            "s",
            6 * LLAMA_405B * 2048 * 8192 / (GPUS_405B * 400e12),
            paper,
            MEASURED,
            step_405b_s,
            "mlsysim takes half the peak as reached; Argosy adds up ops, bubble and what communication does not hide",
        ),
    )


def all_questions() -> tuple[Question, ...]:
    return (*catalogue_questions(), *model_questions(), *serving_questions(), *training_questions())
