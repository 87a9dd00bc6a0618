"""A decoder-only language model: tokens laid end to end in, hidden states and logits out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from argosy.errors import ConfigError, ModelFileError, UnsupportedModel
from argosy.models.architectures.attention import Attention
from argosy.models.architectures.gemma3 import Gemma3Layer, text_tensors
from argosy.models.architectures.linear import Linear, elementwise, linear
from argosy.models.architectures.llama import LlamaLayer
from argosy.models.architectures.mixtral import MixtralLayer
from argosy.models.architectures.moe import Experts
from argosy.models.architectures.norm import RMSNorm
from argosy.models.architectures.qwen3_moe import Qwen3MoeLayer
from argosy.models.architectures.rope import RopeTable
from argosy.models.architectures.weights import checkpoint_slots, fill_slots
from argosy.models.config import ModelConfig

LAYERS: Mapping[str, type[nn.Module]] = MappingProxyType(
    {
        "llama": LlamaLayer,
        "qwen2": LlamaLayer,
        "qwen3": LlamaLayer,
        "gemma3": Gemma3Layer,
        "mixtral": MixtralLayer,
        "qwen3_moe": Qwen3MoeLayer,
    }
)
"""The layer of each architecture."""


class Embedding(nn.Module):
    """Token embeddings times `scale`, which is rounded to the dtype of the weights as in Gemma's training code."""

    def __init__(self, vocab_size: int, hidden_size: int, *, scale: float, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.scale = float(torch.tensor(scale, dtype=dtype))
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size, dtype=dtype, device=device), requires_grad=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """i64[tokens] -> [tokens, hidden_size]."""
        embedded = F.embedding(token_ids, self.weight)
        return embedded if self.scale == 1.0 else embedded * self.scale


class Backbone(nn.Module):
    """Embeddings, layers and the final norm."""

    def __init__(self, config: ModelConfig, max_positions: int, *, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.embed_tokens = Embedding(
            config.vocab_size, config.hidden_size, scale=config.embedding_scale, dtype=dtype, device=device
        )
        self.layer_windows = config.layer_windows
        layer_type = LAYERS[config.architecture]
        self.layers = nn.ModuleList(layer_type(config, i, dtype=dtype, device=device) for i in range(config.num_layers))
        self.norm = RMSNorm.of_hidden(config, dtype=dtype, device=device)
        self.rope = RopeTable(config.rope, config.head_dim, max_positions, dtype=dtype, device=device)
        self.rope_local: RopeTable | None = None
        if config.rope_local is not None:
            self.rope_local = RopeTable(config.rope_local, config.head_dim, max_positions, dtype=dtype, device=device)

    def forward(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """i64[tokens], i64[tokens] -> [tokens, hidden_size]."""
        hidden = self.embed_tokens(token_ids)
        rotary = self.rope(positions)
        rotary_local = rotary if self.rope_local is None else self.rope_local(positions)
        for layer, window in zip(self.layers, self.layer_windows, strict=True):
            hidden = layer(hidden, rotary if window is None else rotary_local, attention)
        out: Tensor = self.norm(hidden)
        return out


class Decoder(nn.Module):
    """A model of any architecture in `LAYERS`.

    The tokens of any number of sequences lie end to end; `positions` and the `Attention` say which is which. Parameters
    need no gradient. Q, K and V, and gate and up, are stored one under the other; `load_weights` takes a checkpoint's names.

    Attributes:
        config: as built from.
        max_positions: positions must be below it; whoever admits requests refuses longer ones.
    """

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype, device: str, max_positions: int) -> None:
        super().__init__()
        self.config = config
        self.max_positions = max_positions
        self.row_tile: int | None = None
        self.model = Backbone(config, max_positions, dtype=dtype, device=device)
        self.lm_head: Linear | None = None
        if not config.tie_embeddings:
            parts = {"lm_head": config.vocab_size}
            self.lm_head = Linear(config.hidden_size, parts, bias=False, dtype=dtype, device=device)

    def forward(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Hidden states after the final norm.

        Args:
            token_ids: i64[tokens], each below `config.vocab_size`.
            positions: i64[tokens], each token's place in its own sequence, below `max_positions`.
            attention: called once per layer; what it stores is its own affair.

        Returns:
            [tokens, hidden_size], in the dtype of the weights.
        """
        hidden: Tensor = self.model(token_ids, positions, attention)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token: [rows, hidden_size] -> f32[rows, vocab_size]."""
        weight = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        scores = linear(hidden, weight, None, self.row_tile).float()
        cap = self.config.final_logit_softcap
        if cap is None:
            return scores
        return elementwise(torch.tanh, scores / cap, self.row_tile) * cap

    def set_row_tile(self, rows: int | None) -> None:
        """Compute every matrix product on tiles of exactly `rows` rows, so that a token's bits do not depend on which and
        how many tokens are computed with it; None for one product of all rows, which is faster.

        Raises:
            ConfigError: `rows` is below 2: libraries compute a single row with a kernel whose bits depend on how its memory
                is aligned.
        """
        if rows is not None and rows < 2:
            raise ConfigError(f"row_tile must be at least 2, got {rows}")
        for module in self.modules():
            if isinstance(module, Decoder | Linear | Experts):
                module.row_tile = rows

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Fill every parameter from tensors under their Hugging Face checkpoint names, converting dtype and device.

        Ignored: `…rotary_emb.inv_freq` (old checkpoints store this constant), and `lm_head.weight` of a model with tied
        embeddings if it equals them; the vision side of a Gemma 3 checkpoint, whose text side may be nested.

        Raises:
            ModelFileError: a tensor is unknown, missing, repeated, not of floating point, or of the wrong shape.
        """
        if self.config.architecture == "gemma3":
            tensors = text_tensors(tensors)
        heads: list[Tensor] = []
        fill_slots(checkpoint_slots(self), self._needed(tensors, heads))
        embeddings = self.model.embed_tokens.weight
        if any(head.shape != embeddings.shape or not torch.equal(head.to(embeddings), embeddings) for head in heads):
            raise ModelFileError(
                "'lm_head.weight' differs from 'model.embed_tokens.weight', but the configuration ties them"
                " (tie_word_embeddings): set it to false"
            )

    def _needed(self, tensors: Iterable[tuple[str, Tensor]], heads: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
        """`tensors` without those to ignore; a tied output head is appended to `heads`."""
        for name, tensor in tensors:
            if name.endswith("rotary_emb.inv_freq"):
                continue
            if name == "lm_head.weight" and self.lm_head is None:
                heads.append(tensor)
                continue
            yield name, tensor


def build_decoder(config: ModelConfig, *, dtype: torch.dtype, device: str, max_positions: int | None = None) -> Decoder:
    """A decoder with uninitialised weights, in eval mode; `Decoder.load_weights` comes next.

    Args:
        config: which architecture, and its sizes.
        dtype: of the weights and activations.
        device: where they live, e.g. "cpu" or "cuda:0".
        max_positions: the longest sequence to be served, if not `config.max_positions`; smaller saves rotary table, and
            "dynamic" rope is scaled for exactly this length.

    Raises:
        UnsupportedModel: the architecture or its rope is not known.
        ModelFileError: the sizes in `config` do not fit together.
    """
    if config.architecture not in LAYERS:
        raise UnsupportedModel(f"unknown architecture {config.architecture!r}: known are {', '.join(sorted(LAYERS))}")
    _check_shape(config)
    positions = config.max_positions if max_positions is None else max_positions
    return Decoder(config, dtype=dtype, device=device, max_positions=positions).eval()


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that a checkpoint of `config` must hold, by name. Allocates nothing.

    Raises:
        UnsupportedModel, ModelFileError: as `build_decoder`.
    """
    decoder = build_decoder(config, dtype=torch.float32, device="meta", max_positions=1)
    return {name: tuple(slot.shape) for name, slot in checkpoint_slots(decoder).items()}


def _check_shape(config: ModelConfig) -> None:
    """Refuse a configuration whose sizes do not fit together, before torch does so in its own words."""
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(f"{config.num_heads} attention heads cannot share {config.num_kv_heads} key/value heads")
    if config.head_dim % 2 or (config.rope.rotary_dim or 0) % 2 or (config.rope.rotary_dim or 0) > config.head_dim:
        raise ModelFileError(
            f"rotary embeddings need even sizes: head_dim {config.head_dim}, rotary {config.rope.rotary_dim}"
        )
    if len(config.layer_windows) != config.num_layers:
        raise ModelFileError(f"{len(config.layer_windows)} layer windows for {config.num_layers} layers")
    if config.attention_scale <= 0:
        raise ModelFileError(f"attention_scale must be above 0, got {config.attention_scale}")
    if (config.moe is None) != (config.architecture not in ("mixtral", "qwen3_moe")):
        raise ModelFileError(
            f"architecture {config.architecture!r} and the experts of its configuration do not fit together"
        )
