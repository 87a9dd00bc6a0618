"""Tiny decoders, and a driver that runs sequences through an executor in whatever steps a test wants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from argosy.engine.core.plan import BlockCopy, NewSequence, ScheduledSequence, SequenceResult, StepPlan
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executors.cpu_executor import CpuExecutor
from argosy.engine.executors.cpu_int8_weights import quantize_weights
from argosy.engine.executors.cpu_weights import pack_weights
from argosy.engine.executors.torch_executor import TorchExecutor
from argosy.models.architectures.attention import SingleSequenceAttention
from argosy.models.architectures.decoder import Decoder, build_decoder
from argosy.models.architectures.linear import Linear
from argosy.models.architectures.weights import checkpoint_slots
from argosy.models.config import ModelConfig, RopeConfig
from argosy.models.stored_weights import StoredWeight, StoredWeights

GREEDY = SamplingParams(temperature=0.0)


def llama_config(**changes) -> ModelConfig:
    fields = {
        "architecture": "llama",
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_layers": 3,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 8,
        "max_positions": 2304,
        "norm_eps": 1e-5,
        "tie_embeddings": False,
        "rope": RopeConfig(),
        "attention_scale": 8**-0.5,
    }
    fields.update(changes)
    fields.setdefault("layer_windows", (None,) * fields["num_layers"])
    return ModelConfig(**fields)


def gemma_config(**changes) -> ModelConfig:
    """Sliding windows of 5 and 20 around full attention, softcapped."""
    fields = {
        "architecture": "gemma3",
        "num_heads": 4,
        "num_kv_heads": 1,
        "head_dim": 16,
        "layer_windows": (5, None, 20),
        "rope_local": RopeConfig(theta=1_000.0),
        "qk_norm": True,
        "attention_scale": 16**-0.5,
        "activation": "gelu_tanh",
        "norm_offset": 1.0,
        "embedding_scale": 48**0.5,
    }
    fields.update(changes)
    return llama_config(**fields)


def random_decoder(config: ModelConfig, dtype: torch.dtype = torch.float32) -> Decoder:
    decoder = build_decoder(config, dtype=dtype, device="cpu")
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.25)
    return decoder


class RecordingDecoder:
    """Passes everything on to a decoder and keeps the hidden states of each forward pass."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.hidden: list[torch.Tensor] = []

    def __getattr__(self, name: str):
        return getattr(self._decoder, name)

    def forward(self, token_ids, positions, attention):
        self.hidden.append(self._decoder.forward(token_ids, positions, attention))
        return self.hidden[-1]


@dataclass
class Track:
    """A sequence under way: `tokens` known, `computed` positions done, its block table and sampling settings."""

    sequence_id: int
    tokens: list[int]
    table: tuple[int, ...]
    num_prompt: int
    params: SamplingParams = GREEDY
    computed: int = 0
    sample_index: int = 0
    seed: int = 5
    stop_ids: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    hidden: dict[int, torch.Tensor] = field(default_factory=dict)
    results: list[SequenceResult] = field(default_factory=list)
    score_prompt: bool = False

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]


class Driver:
    """Plays the scheduler: hands out blocks, builds plans, commits results to tracks."""

    def __init__(self, decoder: Decoder, *, num_blocks: int = 256, block_size: int = 4, **settings) -> None:
        self.decoder = RecordingDecoder(decoder)
        self.block_size = block_size
        self.executor = TorchExecutor(self.decoder, num_blocks=num_blocks, block_size=block_size, **settings)
        self.free = list(range(num_blocks))
        self._introduced: set[int] = set()
        self._next_id = 0
        self._step = 0

    @property
    def pool(self) -> torch.Tensor:
        return self.executor._pool.data

    def add(self, prompt: Sequence[int], *, room: int = 0, table: Sequence[int] = (), **settings) -> Track:
        """A sequence with blocks for `room` tokens after its prompt; `table` gives the first blocks."""
        blocks = list(table)
        while len(blocks) * self.block_size < len(prompt) + room:
            blocks.append(self.free.pop())
        self._next_id += 1
        return Track(self._next_id, list(prompt), tuple(blocks), len(prompt), **settings)

    def step(self, chunks: Sequence[tuple[Track, int]], *, copies: Sequence[BlockCopy] = (), finished=()) -> None:
        """Compute the given number of tokens of each track; one that catches up with its known tokens samples."""
        new, entries = [], []
        for track, count in chunks:
            if track.sequence_id not in self._introduced:
                self._introduced.add(track.sequence_id)
                new.append(
                    NewSequence(
                        track.sequence_id,
                        tuple(track.tokens[: track.num_prompt]),
                        track.params,
                        track.sample_index,
                        track.seed,
                        track.stop_ids,
                        track.bad_words_ids,
                    )
                )
            start, stop = track.computed, track.computed + count
            assert 0 < count <= len(track.tokens) - start
            entries.append(
                ScheduledSequence(
                    track.sequence_id,
                    tuple(track.tokens[start:stop]),
                    start,
                    track.table,
                    stop == len(track.tokens),
                    len(track.output),
                    "",
                    start + 1 if track.score_prompt else -1,
                )
            )
        total = sum(len(e.token_ids) for e in entries)
        prefill = sum(len(e.token_ids) for e in entries if len(e.token_ids) > 1 or not e.sample)
        plan = StepPlan(self._step, tuple(new), tuple(finished), tuple(copies), tuple(entries), total, prefill)
        self._step += 1
        result = self.executor.execute(plan)
        assert result.step == plan.step
        assert [r.sequence_id for r in result.results] == [e.sequence_id for e in entries]
        computed = self._computed_rows(total) if chunks else ()
        row = 0
        for (track, count), answer in zip(chunks, result.results, strict=True):
            for offset in range(count):
                track.hidden[track.computed + offset] = computed[row + offset]
            row += count
            track.computed += count
            track.tokens.extend(answer.token_ids)
            track.results.append(answer)

    def _computed_rows(self, num_tokens: int) -> torch.Tensor:
        """What tracks keep of each of the step's tokens."""
        return self.decoder.hidden[-1]

    def generate(self, tracks: Sequence[Track], count: int, *, chunk: int = 10**9) -> None:
        """Run all tracks together, prompts in chunks, until each has `count` outputs more."""
        targets = {t.sequence_id: len(t.output) + count for t in tracks}
        while running := [t for t in tracks if len(t.output) < targets[t.sequence_id]]:
            self.step([(t, min(chunk, len(t.tokens) - t.computed)) for t in running])


class KernelDriver(Driver):
    """A driver of the CPU kernels; tracks keep the logits of every position in place of hidden states."""

    def __init__(
        self,
        config: ModelConfig,
        stored: StoredWeights,
        *,
        num_blocks: int = 256,
        block_size: int = 4,
        int8: bool = False,
        **settings,
    ) -> None:
        options = {"max_num_seqs": 16, "max_num_batched_tokens": 2048, "max_positions": 2304, "num_threads": 2} | settings
        self.config = config
        self.block_size = block_size
        weights = quantize_weights(config, stored) if int8 else pack_weights(config, stored)
        self.executor = CpuExecutor(config, weights, num_blocks=num_blocks, block_size=block_size, **options)
        self.free = list(range(num_blocks))
        self._introduced = set()
        self._next_id = 0
        self._step = 0

    def _computed_rows(self, num_tokens: int) -> torch.Tensor:
        rows = np.arange(num_tokens)
        limit = self.executor._buffers.max_logit_rows
        return torch.cat([self.executor._logits_of(rows[i : i + limit]).values.clone() for i in range(0, num_tokens, limit)])


class QuantizedInputs:
    """A decoder whose matrix products take inputs rounded to signed bytes in groups of 32, as the kernels' do."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.config = decoder.config
        for module in decoder.modules():
            if isinstance(module, Linear):
                module.register_forward_pre_hook(lambda _, inputs: (round_in_groups(inputs[0]),))

    def forward(self, token_ids, positions, attention):
        return self.decoder.forward(token_ids, positions, attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder.logits(round_in_groups(hidden))


def round_in_groups(x: torch.Tensor) -> torch.Tensor:
    groups = x.unflatten(-1, (-1, 32))
    scale = groups.abs().amax(-1, keepdim=True) / 127
    return torch.where(scale > 0, (groups / scale).round() * scale, 0.0).flatten(-2)


def stored_and_reference(
    config: ModelConfig, matrix_type: GGMLQuantizationType, *, outlier: bool
) -> tuple[StoredWeights, Decoder]:
    """Random weights with matrices of `matrix_type`, and a decoder of the same numbers in fp32; with `outlier`, one channel
    of the residual stream is far larger than the others."""
    decoder = random_decoder(config)
    weights = []
    with torch.no_grad():
        for name, slot in checkpoint_slots(decoder).items():
            if "norm" in name and not config.norm_offset:
                slot.add_(1.0)
            if outlier and "embed" in name:
                slot[:, OUTLIER_CHANNEL] *= 100
            stored_type = matrix_type if slot.ndim == 2 else GGMLQuantizationType.F32
            raw = quantize(slot.numpy(), stored_type).view(np.uint8)
            slot.copy_(torch.from_numpy(np.array(dequantize(raw, stored_type))).view(slot.shape))
            weights.append(StoredWeight(name, stored_type, tuple(slot.shape), lambda raw=raw: raw))
    expected = {w.name: w.shape for w in weights}
    return StoredWeights(weights, expected=expected, tied_head=config.tie_embeddings), decoder


def reference_logits(decoder: Decoder, tokens: Sequence[int]) -> torch.Tensor:
    """Logits of every position, computed in one pass without a cache."""
    with torch.inference_mode():
        hidden = decoder.forward(torch.tensor(tokens), torch.arange(len(tokens)), SingleSequenceAttention())
        return decoder.logits(hidden)


@pytest.fixture(scope="session")
def decoders() -> dict[str, Decoder]:
    return {
        "llama": random_decoder(llama_config()),
        "gemma3": random_decoder(gemma_config()),
        "softcap": random_decoder(gemma_config(attention_softcap=2.0, final_logit_softcap=5.0)),
    }


@pytest.fixture
def driver(decoders) -> Callable[..., Driver]:
    """Make a driver for a decoder by name."""

    def make(name: str = "llama", **settings) -> Driver:
        decoder = decoders[name]
        return Driver(decoder, **settings)

    return make


@pytest.fixture(scope="session")
def full_logits() -> Callable[[Decoder, Sequence[int]], torch.Tensor]:
    return reference_logits


@pytest.fixture(scope="session")
def make_decoder() -> Callable[..., Decoder]:
    """A randomly initialised decoder: `make_decoder("llama", dtype, **config changes)`."""

    def make(architecture: str, dtype: torch.dtype = torch.float32, **changes) -> Decoder:
        return random_decoder({"llama": llama_config, "gemma3": gemma_config}[architecture](**changes), dtype)

    return make


KERNEL_CONFIGS: dict[str, dict] = {
    "llama": {},
    "tied": {"tie_embeddings": True},
    "biased": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "qwen3": {"architecture": "qwen3", "qk_norm": True, "head_dim": 16},
    "windows": {"layer_windows": (7, None, 100)},
    "outliers": {"hidden_size": 256, "num_layers": 1},
}
OUTLIER_CHANNEL = 70


def kernel_config(name: str) -> ModelConfig:
    """Widths of whole groups of 32, as quantised files have; 97 rows do not fill whole panels."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
    if name == "gemma3":
        return gemma_config(**(sizes | {"num_kv_heads": 1, "head_dim": 32, "attention_scale": 0.2}))
    if name == "softcap":
        caps = {"attention_softcap": 2.0, "final_logit_softcap": 5.0}
        return gemma_config(**(sizes | {"num_kv_heads": 1, "head_dim": 32} | caps))
    return llama_config(**(sizes | {"attention_scale": 0.25} | KERNEL_CONFIGS[name]))


@pytest.fixture(scope="session")
def kernel_model() -> Callable[[str, str], tuple[ModelConfig, StoredWeights, Decoder]]:
    """`kernel_model(config name, matrix type)`: a random model as stored, and the decoder of the same numbers."""

    @functools.cache
    def make(name: str, matrix_type: str) -> tuple[ModelConfig, StoredWeights, Decoder]:
        config = kernel_config(name)
        return config, *stored_and_reference(config, GGMLQuantizationType[matrix_type], outlier=name == "outliers")

    return make


@pytest.fixture
def kernel_driver(kernel_model) -> Iterator[Callable[..., KernelDriver]]:
    """Make a driver of the kernels: `kernel_driver("llama", "Q8_0", num_threads=3)`; closed after the test."""
    drivers: list[KernelDriver] = []

    def make(name: str = "llama", matrix_type: str = "Q8_0", **settings) -> KernelDriver:
        config, stored, _ = kernel_model(name, matrix_type)
        drivers.append(KernelDriver(config, stored, **settings))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.executor.close()


@pytest.fixture(scope="session")
def quantized_inputs() -> Callable[[Decoder], QuantizedInputs]:
    return QuantizedInputs
