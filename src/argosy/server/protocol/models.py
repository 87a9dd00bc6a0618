"""`GET /v1/models`, `GET /v1/models/{id}`, `GET /version`, health."""

from __future__ import annotations

from typing import Literal

from argosy.server.protocol.base import ResponseModel


class ModelCard(ResponseModel):
    """A served name. `root` is the model behind it, `max_model_len` the longest sequence it takes, in tokens."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class ModelList(ResponseModel):
    """All served names."""

    object: Literal["list"]
    data: list[ModelCard]


class Version(ResponseModel):
    """The version of this server."""

    version: str


class Health(ResponseModel):
    """`status` is "ok", or one line on what is wrong."""

    status: str


class InferenceHealth(Health):
    """Outcome of generating one token. `entropy_nats` is an upper bound from the most likely tokens."""

    latency_s: float
    entropy_nats: float | None
    age_s: float
