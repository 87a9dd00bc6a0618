"""Tiny decoders, and a driver that runs sequences through an executor in whatever steps a test wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch

from argosy.engine.core.plan import BlockCopy, NewSequence, ScheduledSequence, SequenceResult, StepPlan
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executors.torch_executor import TorchExecutor
from argosy.models.architectures.attention import SingleSequenceAttention
from argosy.models.architectures.decoder import Decoder, build_decoder
from argosy.models.config import ModelConfig, RopeConfig

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
        row = 0
        for (track, count), answer in zip(chunks, result.results, strict=True):
            for offset in range(count):
                track.hidden[track.computed + offset] = self.decoder.hidden[-1][row + offset]
            row += count
            track.computed += count
            track.tokens.extend(answer.token_ids)
            track.results.append(answer)

    def generate(self, tracks: Sequence[Track], count: int, *, chunk: int = 10**9) -> None:
        """Run all tracks together, prompts in chunks, until each has `count` outputs more."""
        targets = {t.sequence_id: len(t.output) + count for t in tracks}
        while running := [t for t in tracks if len(t.output) < targets[t.sequence_id]]:
            self.step([(t, min(chunk, len(t.tokens) - t.computed)) for t in running])


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
