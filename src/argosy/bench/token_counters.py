"""How many tokens a text is for the served model: asked of the server, or of a tokenizer at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import httpx

from argosy.models.loaded import Tokenizer


class TokenCounter(Protocol):
    """Counts tokens as the server will."""

    @property
    def source(self) -> str:
        """Where the counts come from, for reports."""
        ...

    def count_prompt(self, text: str) -> int:
        """Tokens of a prompt, with the BOS that the server puts in front of it, if any."""
        ...

    def count_output(self, text: str) -> int:
        """Tokens of a text without any special token added."""
        ...


class LocalCounter:
    """A tokenizer in this process."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        self._tokenizer = tokenizer
        self.source = f"tokenizer of {name}"

    @classmethod
    def load(cls, name: str, *, cache_dir: Path | None = None, offline: bool = False) -> LocalCounter:
        """The tokenizer of a model by name, file or folder. Raises what loading it raises."""
        from argosy.models.checkpoint import load_config
        from argosy.models.loader import load_tokenizer

        return cls(load_tokenizer(load_config(name, cache_dir=cache_dir, offline=offline)), name)

    def count_prompt(self, text: str) -> int:
        """As `TokenCounter`."""
        return len(self._tokenizer.encode(text))

    def count_output(self, text: str) -> int:
        """As `TokenCounter`."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))


_Ask = Callable[[str, str, bool], tuple[str, dict[str, Any], Callable[[Any], int]]]


def _vllm(model: str, text: str, special: bool) -> tuple[str, dict[str, Any], Callable[[Any], int]]:
    body = {"model": model, "prompt": text, "add_special_tokens": special}
    return "/tokenize", body, lambda answer: int(answer["count"])


def _llama_cpp(_model: str, text: str, special: bool) -> tuple[str, dict[str, Any], Callable[[Any], int]]:
    return "/tokenize", {"content": text, "add_special": special}, lambda answer: len(answer["tokens"])


def _llama_cpp_python(model: str, text: str, _special: bool) -> tuple[str, dict[str, Any], Callable[[Any], int]]:
    return "/extras/tokenize/count", {"model": model, "input": text}, lambda answer: int(answer["count"])


_FORMS: tuple[_Ask, ...] = (_vllm, _llama_cpp, _llama_cpp_python)


class RemoteCounter:
    """A server that counts: in the form of Argosy and vLLM, of llama.cpp's server, or of llama-cpp-python's.

    The last of them counts with BOS always; there an output counts one too many if the model has one.
    """

    def __init__(self, client: httpx.Client, url: str, model: str, form: _Ask) -> None:
        self._client = client
        self._url = url
        self._model = model
        self._form = form
        self.source = f"{url}{form(model, '', True)[0]}"

    @classmethod
    def find(cls, client: httpx.Client, url: str, model: str) -> RemoteCounter | None:
        """The form that the server at `url` understands, or None."""
        for form in _FORMS:
            counter = cls(client, url, model, form)
            try:
                if counter.count_prompt("one two three") > 0:
                    return counter
            except (httpx.HTTPError, ValueError, LookupError, TypeError):
                continue
        return None

    def count_prompt(self, text: str) -> int:
        """As `TokenCounter`. Raises `httpx.HTTPError` if the server does not answer."""
        return self._count(text, special=True)

    def count_output(self, text: str) -> int:
        """As `TokenCounter`."""
        return self._count(text, special=False)

    def _count(self, text: str, *, special: bool) -> int:
        path, body, read = self._form(self._model, text, special)
        response = self._client.post(f"{self._url}{path}", json=body)
        response.raise_for_status()
        return read(response.json())
