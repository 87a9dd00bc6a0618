"""The server under load: its model, its limits, and the bytes that ask it for an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from argosy.bench.http_exchange import Origin
from argosy.bench.load import PlannedRequest
from argosy.errors import ConfigError, EngineUnavailable, Unauthorized, UnknownModel

ENDPOINTS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class Target:
    """A model on a server.

    Attributes:
        endpoint: "completions" or "chat". In a chat the server's template adds tokens to every prompt.
        max_model_len: longest sequence in tokens, if the server tells it.
        ignore_eos: ask for outputs of exactly the planned length, with the field that vLLM made known.
        extra_body: fields that are added to every request, over those written here.
    """

    origin: Origin
    model: str
    endpoint: str = "completions"
    max_model_len: int | None = None
    ignore_eos: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    api_key: str | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an endpoint that is none."""
        if self.endpoint not in ENDPOINTS:
            raise ConfigError(f"--endpoint must be {' or '.join(ENDPOINTS)}, got {self.endpoint!r}")

    def request(self, planned: PlannedRequest, prompt: str) -> bytes:
        """An HTTP/1.1 request for a streamed greedy answer."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": planned.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if self.ignore_eos:
            body["ignore_eos"] = True
        payload = orjson.dumps({**body, **self.extra_body})
        head = [
            f"POST {self.origin.path}{ENDPOINTS[self.endpoint]} HTTP/1.1",
            f"Host: {self.origin.authority}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            f"Content-Length: {len(payload)}",
        ]
        if self.api_key:
            head.append(f"Authorization: Bearer {self.api_key}")
        return "\r\n".join((*head, "", "")).encode("latin-1") + payload

    def check_fits(self, planned: PlannedRequest) -> None:
        """Raise `ConfigError` if the server says that it takes no sequence as long as this."""
        total = planned.prompt_tokens + planned.output_tokens
        if self.max_model_len is not None and total > self.max_model_len:
            raise ConfigError(
                f"request {planned.index} has {planned.prompt_tokens} + {planned.output_tokens} tokens, {self.model} takes "
                f"{self.max_model_len}: cut the load with --max-prompt-tokens and --max-output-tokens"
            )


def find_model(client: httpx.Client, origin: Origin, wanted: str | None) -> tuple[str, int | None]:
    """The model's name and its longest sequence, if told; the server's first model if none is wanted.

    Raises:
        EngineUnavailable: nobody answers there, or not in OpenAI's terms.
        Unauthorized: the key is missing or wrong.
        UnknownModel: the server does not have `wanted`.
    """
    try:
        response = client.get(f"{origin.url}/v1/models")
    except httpx.HTTPError as error:
        raise EngineUnavailable(f"no server answers at {origin.url}: {error or type(error).__name__}") from error
    if response.status_code in (401, 403):
        raise Unauthorized(f"{origin.url} wants a valid --api-key")
    try:
        cards = {card["id"]: card for card in response.json()["data"]}
        name = wanted or next(iter(cards))
    except (ValueError, LookupError, TypeError, StopIteration) as error:
        raise EngineUnavailable(f"{origin.url} does not speak the OpenAI protocol at /v1/models") from error
    if name not in cards:
        raise UnknownModel(f"{origin.url} does not serve {name!r}; it serves {', '.join(cards)}")
    limit = cards[name].get("max_model_len")
    return name, limit if isinstance(limit, int) else None


def parse_extra_body(text: str) -> dict[str, Any]:
    """A JSON object of further request fields.

    Raises:
        ConfigError: it is none.
    """
    try:
        fields = orjson.loads(text)
    except ValueError as error:
        raise ConfigError(f"--extra-body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError("--extra-body must be a JSON object of request fields, such as '{\"min_tokens\": 8}'")
    for name in ("model", "prompt", "messages", "max_tokens", "stream"):
        if name in fields:
            raise ConfigError(f"--extra-body must not set {name}, which the load itself decides")
    return fields
