"""The typed errors of all rooms.

Everything a person can cause is one of these. Each carries a message of one clear line that names what was wrong and what
to do about it; the edge maps it to an HTTP status (`http_status`, `type`, `code`, `param`) or to a line on stderr and exit
code 2. `assert` is kept for our own bugs.
"""

from __future__ import annotations


class ArgosyError(Exception):
    """Base of every error this package raises on purpose. `str(error)` is one line, fit to show to a person."""

    http_status: int = 500
    type: str = "api_error"
    code: str | None = None
    param: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if param is not None:
            self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(ArgosyError):
    """A request field has a value that cannot be served; `param` names the field (dotted, e.g. `messages[0].content`)."""

    http_status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    """The prompt leaves no room for even one generated token."""

    code = "context_length_exceeded"


class Unauthorized(ArgosyError):
    """The API key is missing or wrong."""

    http_status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class PermissionDenied(ArgosyError):
    """The key is known, and may not do what it asks for (a model, a route, an administrative call)."""

    http_status = 403
    type = "permission_error"
    code = "permission_denied"


class UnknownRecord(ArgosyError):
    """An administrative call names a key, team, organisation, user or budget that does not exist."""

    http_status = 404
    type = "not_found_error"
    code = "not_found"


class UnknownModel(ArgosyError):
    """A request names a model this server does not serve, or a command names one nobody knows."""

    http_status = 404
    type = "not_found_error"
    code = "model_not_found"


class PayloadTooLarge(ArgosyError):
    """The request body is above the limit."""

    http_status = 413
    type = "invalid_request_error"
    code = "payload_too_large"


class UnsupportedMediaType(ArgosyError):
    """The request body is not declared as JSON, or is compressed."""

    http_status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class BodyTimeout(ArgosyError):
    """The request body did not arrive in time."""

    http_status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class QueueFull(ArgosyError):
    """Retryable pressure: as many requests wait as the queue may hold. `retry_after_s` is a whole number of seconds."""

    http_status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineUnavailable(ArgosyError):
    """The engine cannot take requests: it is loading, draining, stopped, or its thread died."""

    http_status = 503
    type = "api_error"
    code = "service_unavailable"


class NoReplicaAvailable(ArgosyError):
    """No replica of the pool may serve the request: none is registered, ready, or fit for it."""

    http_status = 503
    type = "api_error"
    code = "service_unavailable"


class StoreUnavailable(ArgosyError):
    """The database behind the gateway does not answer in time, and what it would tell is not known otherwise."""

    http_status = 503
    type = "api_error"
    code = "service_unavailable"


class GenerationFailed(ArgosyError):
    """One request failed inside the engine (e.g. its logits were not finite); others are not affected."""

    http_status = 500
    type = "api_error"
    code = "generation_failed"


class ConfigError(ArgosyError):
    """A setting of ours (flag, configuration key) is unknown or out of range; the message names it and the remedy."""


class ConfigFileError(ConfigError):
    """A configuration file says something impossible; the message names the file and the line, and keys as the file does."""


class TraceFileError(ConfigError):
    """A file of recorded requests is damaged or of another form; the message names the file and, where one is, the line.

    Attributes:
        line: number of the wrong line from 1, or None where the fault is the file's.
    """

    def __init__(self, path: str, what: str, line: int | None = None) -> None:
        where = "" if line is None else f" line {line}:"
        super().__init__(f"trace {path}{where} {what}")
        self.line = line


class ModelFileError(ArgosyError):
    """A model file is damaged, truncated or not what it claims to be; the message names the file."""


class UnsupportedModel(ArgosyError):
    """The checkpoint is sound, but uses an architecture, tensor type, tokenizer or rope this package does not run."""


class FetchError(ArgosyError):
    """A model could not be fetched (no network, no space, wrong checksum); what was got so far is kept for a resume."""


class MeasurementError(ArgosyError):
    """A measured value contradicts physics (faster than a peak, a share above 1); the message names what to check."""


class SimulationError(ArgosyError):
    """A simulation cannot go on: a recording ends or contradicts the run, or what is simulated breaks a law it must keep."""
