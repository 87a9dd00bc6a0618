"""Argosy runs language models at any scale and tells you beforehand what that will take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argosy.engine.core.sampling_params import SamplingParams
    from argosy.engine.llm import LLM

__version__ = "0.1.0"

__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that importing the package stays cheap."""
    if name == "LLM":
        from argosy.engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from argosy.engine.core.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
