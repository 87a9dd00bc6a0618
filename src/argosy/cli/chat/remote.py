"""Answers from a server that speaks the OpenAI protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx

from argosy.cli.chat.answers import AnswerPiece, ChatSettings
from argosy.errors import ArgosyError, EngineUnavailable, GenerationFailed, InvalidRequest, Unauthorized, UnknownModel

TIMEOUT = httpx.Timeout(connect=10.0, read=600.0, write=30.0, pool=10.0)


class RemoteAnswers:
    """An `AnswerSource` over HTTP."""

    def __init__(self, client: httpx.AsyncClient, base_url: str, model_name: str) -> None:
        self._client = client
        self._base_url = base_url
        self._model_name = model_name

    @classmethod
    async def connect(cls, url: str, *, model: str | None, api_key: str | None) -> RemoteAnswers:
        """Find the server and its model; with none named, its first one.

        Raises:
            EngineUnavailable: nobody answers at `url`.
            UnknownModel: the server does not have `model`.
            Unauthorized: the key is missing or wrong.
        """
        base_url = url.rstrip("/").removesuffix("/v1")
        client = httpx.AsyncClient(timeout=TIMEOUT, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
        try:
            response = await client.get(f"{base_url}/v1/models")
            _raise_for_status(response)
            names = [entry["id"] for entry in response.json()["data"]]
            if model is not None and model not in names:
                raise UnknownModel(f"{base_url} does not serve {model!r}; it serves {', '.join(names)}")
            return cls(client, base_url, model or names[0])
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            await client.aclose()
            reason = str(error) or type(error).__name__
            raise EngineUnavailable(f"no server answers at {base_url}: {reason}") from error
        except (ValueError, LookupError, TypeError) as error:
            await client.aclose()
            raise EngineUnavailable(f"{base_url} does not speak the OpenAI protocol at /v1/models") from error
        except ArgosyError:
            await client.aclose()
            raise

    @property
    def model_name(self) -> str:
        """The model's name and where it runs."""
        return f"{self._model_name} at {self._base_url}"

    async def answer(
        self, messages: Sequence[Mapping[str, str]], settings: ChatSettings
    ) -> AsyncGenerator[AnswerPiece, None]:
        """As `AnswerSource.answer`; leaving early closes the connection, which stops the server's work."""
        body = {
            "model": self._model_name,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **settings.given(),
        }
        finish_reason, usage = None, None
        try:
            async with self._client.stream("POST", f"{self._base_url}/v1/chat/completions", json=body) as response:
                if response.is_error:
                    await response.aread()
                    _raise_for_status(response)
                async for event in _events(response):
                    usage = event.get("usage") or usage
                    for choice in event.get("choices", ()):
                        finish_reason = choice.get("finish_reason") or finish_reason
                        if text := choice.get("delta", {}).get("content"):
                            yield AnswerPiece(text)
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"the connection to {self._base_url} failed: {error or type(error).__name__}") from error
        yield _last_piece(finish_reason, usage)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def _events(response: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
    """The JSON of each server-sent event up to `[DONE]`. Raises `GenerationFailed` for an event that carries an error."""
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise GenerationFailed(str(event["error"].get("message", event["error"])))
        yield event
    raise EngineUnavailable("the server ended the answer before it was complete")


def _last_piece(finish_reason: str | None, usage: Mapping[str, Any] | None) -> AnswerPiece:
    usage = usage or {}
    details = usage.get("prompt_tokens_details") or {}
    return AnswerPiece(
        "",
        finish_reason or "stop",
        usage.get("prompt_tokens"),
        details.get("cached_tokens"),
        usage.get("completion_tokens"),
    )


def _raise_for_status(response: httpx.Response) -> None:
    """Raise the server's error as ours."""
    if not response.is_error:
        return
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = f"the server answered {response.status_code} {response.reason_phrase}"
    errors: dict[int, type[ArgosyError]] = {400: InvalidRequest, 401: Unauthorized, 404: UnknownModel}
    raise errors.get(response.status_code, EngineUnavailable)(message)
