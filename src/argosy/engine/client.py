"""The engine as a server sees it: what both the real asynchronous engine and a scripted fake provide."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from argosy.engine.admission import CheckedParams
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.outputs import OutputDelta
from argosy.models.loaded import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts that do not change while an engine lives.

    `max_model_len` is the effective one, capped to the KV pool. `logits_width` bounds every token id. `max_waiting` is how
    many requests may wait. `follows_priority` tells whether the priority of a request changes anything.
    """

    model_name: str
    model_path: str
    max_model_len: int
    logits_width: int
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_waiting: int
    dtype: str
    kv_dtype: str
    device: str
    deterministic: bool
    enable_prefix_caching: bool
    follows_priority: bool
    default_sampling: Mapping[str, float | int]


class RequestStream(Protocol):
    """The deltas of all sequences of one request, in the order the engine produced them; ends after each has finished."""

    def __aiter__(self) -> AsyncIterator[OutputDelta]:
        """Iterate once. Raises `EngineUnavailable` if the engine dies under way."""
        ...

    def abort(self) -> None:
        """Stop the request within one step and release all it holds. Idempotent, from any thread, in every state."""
        ...


class EngineClient(Protocol):
    """What a server needs of an engine. Methods never wait for a step; all but `check` are called from one event loop."""

    @property
    def info(self) -> EngineInfo:
        """The fixed facts."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        ...

    @property
    def is_alive(self) -> bool:
        """False once the engine thread has died; only a restart helps."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether a request submitted at this moment would be taken (alive, loaded, not draining)."""
        ...

    def check(self, params: SamplingParams) -> CheckedParams:
        """Check what `submit` would of the parameters, once for many prompts. May be called from any thread.

        Raises:
            InvalidRequest: a field is out of range for this model.
        """
        ...

    def submit(
        self,
        request_id: str,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams | CheckedParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> RequestStream:
        """Check everything that can be refused and hand the request to the engine.

        Raises:
            InvalidRequest: a field is out of range for this model (ids outside the logits, an empty prompt, …).
            ContextLengthExceeded: the prompt has `max_model_len` tokens or more.
            QueueFull: as many requests wait as may.
            EngineUnavailable: not ready.
        """
        ...

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the running ones; False if `timeout_s` passed first (they are then aborted)."""
        ...
