"""Memory of adapting a model on a device, by what is trained; embedding tables beyond any device.

A backward pass needs an activation for a weight gradient only where that weight is trained: the input of every trained
matrix is kept, the input of a frozen one is not. Bias gradients need no activations (Cai et al. 2020, "TinyTL"); what
non-linear functions keep is needed by all methods down to the deepest trained layer.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from argosy.cost.adaptation import adapter_parameters, lora_parameters
from argosy.cost.checks import at_least_one, fraction, not_negative, positive
from argosy.cost.zero import Optimizer, StateBytes
from argosy.errors import ConfigError


class AdaptationMethod(enum.StrEnum):
    """What is trained."""

    FULL = "full"
    BIAS = "bias-only"  # Cai et al. 2020; Zaken et al. 2021
    LORA = "lora"  # Hu et al. 2021
    ADAPTERS = "adapters"  # Houlsby et al. 2019
    SPARSE = "sparse"  # Lin et al. 2022: some layers only, of them some output channels


@dataclass(frozen=True, slots=True)
class EdgeLayer:
    """One linear layer (a convolution counts as one over its unfolded input) as adaptation sees it.

    Attributes:
        inputs, outputs: features of its matrix; `positions` rows per sample it is applied to.
        weights: elements, where they are not inputs x outputs.
        nonlinear_elements: per sample, kept by the function behind it whatever is trained (a ReLU keeps one bit instead,
            counted as an eighth of a byte through `nonlinear_bytes`).
    """

    inputs: int
    outputs: int
    positions: int = 1
    weights: int | None = None
    nonlinear_elements: int = 0
    nonlinear_bytes: float = 4.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for sizes that cannot be."""
        at_least_one(inputs=self.inputs, outputs=self.outputs, positions=self.positions)
        not_negative(nonlinear_elements=self.nonlinear_elements, nonlinear_bytes=self.nonlinear_bytes)

    @property
    def weight_elements(self) -> int:
        """Elements of the matrix, without its bias."""
        return self.inputs * self.outputs if self.weights is None else self.weights


@dataclass(frozen=True, slots=True)
class Adaptation:
    """How a model is adapted.

    Attributes:
        rank: of LoRA; bottleneck: of adapters, one behind each layer.
        trained_layers: last layers that are updated, for sparse updates; None means all.
        trained_channels: share of their output channels, for sparse updates.
    """

    method: AdaptationMethod
    rank: int = 4
    bottleneck: int = 16
    trained_layers: int | None = None
    trained_channels: float = 1.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting out of range or that the method does not have."""
        at_least_one(rank=self.rank, bottleneck=self.bottleneck)
        fraction(trained_channels=self.trained_channels)
        if self.trained_layers is not None:
            at_least_one(trained_layers=self.trained_layers)
        if self.method is not AdaptationMethod.SPARSE and (self.trained_layers is not None or self.trained_channels != 1.0):
            raise ConfigError(f"trained_layers and trained_channels are of sparse updates, not of {self.method}")


@dataclass(frozen=True, slots=True)
class AdaptationMemory:
    """Bytes of adapting with a batch, and of inference with one sample for comparison."""

    weight_bytes: float
    trained_parameters: int
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    inference_bytes: float

    @property
    def total_bytes(self) -> float:
        """Everything at the moment backward starts."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.activation_bytes

    @property
    def over_inference(self) -> float:
        """How many times more than inference."""
        return self.total_bytes / self.inference_bytes


def adaptation_memory(
    layers: Sequence[EdgeLayer],
    adaptation: Adaptation,
    *,
    batch: int = 1,
    weight_bytes_per_element: float = 4.0,
    activation_bytes_per_element: float = 4.0,
    optimizer: Optimizer = Optimizer.ADAM,
) -> AdaptationMemory:
    """Memory of one adaptation step; trained parameters, their gradients and moments are fp32.

    Full training keeps every layer's input; bias-only none; LoRA the input of the matrix it is added to, and the rank-r row
    between A and B; adapters their own input and bottleneck; sparse updates the inputs of the last layers they update, with
    nothing at all before these.

    Raises:
        ConfigError: no layer, or a size that cannot be.
    """
    if not layers:
        raise ConfigError("adaptation needs at least one layer")
    if adaptation.trained_layers is not None and adaptation.trained_layers > len(layers):
        raise ConfigError(f"trained_layers {adaptation.trained_layers} exceeds the {len(layers)} layers of the model")
    at_least_one(batch=batch)
    positive(weight_bytes_per_element=weight_bytes_per_element, activation_bytes_per_element=activation_bytes_per_element)
    deepest = len(layers) - (adaptation.trained_layers or len(layers))
    trained = kept = 0
    masks = 0.0
    for index, layer in enumerate(layers):
        if index < deepest:
            continue
        parameters, elements = _trained_of(layer, adaptation)
        trained += parameters
        kept += elements
        masks += layer.nonlinear_elements * layer.nonlinear_bytes
    frozen = sum(layer.weight_elements + layer.outputs for layer in layers)
    added = trained if adaptation.method in (AdaptationMethod.LORA, AdaptationMethod.ADAPTERS) else 0
    live = max((layer.inputs + layer.outputs) * layer.positions for layer in layers)
    return AdaptationMemory(
        weight_bytes=frozen * weight_bytes_per_element + added * 4.0,
        trained_parameters=trained,
        gradient_bytes=trained * 4.0,
        optimizer_bytes=trained * optimizer.moment_bytes,
        activation_bytes=batch * (kept * activation_bytes_per_element + masks),
        inference_bytes=frozen * weight_bytes_per_element + live * activation_bytes_per_element,
    )


def _trained_of(layer: EdgeLayer, adaptation: Adaptation) -> tuple[int, int]:
    """Trained parameters of a layer, and activation elements that their gradients need per sample."""
    into = layer.inputs * layer.positions
    if adaptation.method is AdaptationMethod.FULL:
        return layer.weight_elements + layer.outputs, into
    if adaptation.method is AdaptationMethod.BIAS:
        return layer.outputs, 0
    if adaptation.method is AdaptationMethod.LORA:
        return lora_parameters(layer.outputs, layer.inputs, adaptation.rank), into + adaptation.rank * layer.positions
    if adaptation.method is AdaptationMethod.ADAPTERS:
        bottleneck = 2 * adaptation.bottleneck  # before and after its activation
        kept = (layer.outputs + bottleneck) * layer.positions
        return adapter_parameters(layer.outputs, adaptation.bottleneck), kept
    channels = max(1, round(layer.outputs * adaptation.trained_channels))
    return layer.weight_elements * channels // layer.outputs + channels, into


@dataclass(frozen=True, slots=True)
class TrainingOverInference:
    """How much more memory training needs than inference: what is kept per byte of weights, and activations over one row."""

    low: float
    high: float


# Of small networks: the low end trains with SGD and small batches, the high end with moments and large ones.
TRAINING_OVER_INFERENCE = TrainingOverInference(4.0, 12.0)


def training_over_inference(state: StateBytes, *, inference_bytes_per_parameter: float, activation_share: float) -> float:
    """(state bytes / inference bytes of a parameter) + activations as a multiple of the inference model.

    fp32 Adam is (4 + 4 + 8) / 4 = 4 before activations; with activations of five times the weights it is 9.

    Raises:
        ConfigError: an input that cannot be.
    """
    positive(inference_bytes_per_parameter=inference_bytes_per_parameter)
    not_negative(activation_share=activation_share)
    return state.total / inference_bytes_per_parameter + activation_share


def embedding_table_bytes(rows: float, dimension: int, bytes_per_element: float) -> float:
    """rows x dimension x bytes of a dense embedding table.

    Raises:
        ConfigError: an input that cannot be.
    """
    not_negative(rows=rows)
    at_least_one(dimension=dimension)
    positive(bytes_per_element=bytes_per_element)
    return rows * dimension * bytes_per_element


def bytes_per_row(memory_bytes: float, rows: float) -> float:
    """What a table of `rows` could spend on each in `memory_bytes`; below a dense row's bytes it must be hashed or sharded.

    Raises:
        ConfigError: an input that is not above 0.
    """
    positive(memory_bytes=memory_bytes, rows=rows)
    return memory_bytes / rows
