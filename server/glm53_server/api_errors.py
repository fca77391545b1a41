"""Every error a client can see, in OpenAI's shape: one exception, one envelope.

Messages name the cause and the field; they never echo the request and never carry a file path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse

from glm53_server.engine.base import EngineError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable",
}
MAX_MESSAGE_CHARS = 1000
# Steps of a validation path that name a branch of a union, not a field.
_NOT_FIELDS = {"body", "str", "int", "float", "bool", "dict", "list", "none"}


@dataclass
class ApiError(Exception):
    """An HTTP error. `code` is OpenAI's machine-readable string, `param` the field at fault."""

    message: str
    status: int = 400
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None

    def __post_init__(self) -> None:
        super().__init__(self.message)

    @property
    def type(self) -> str:
        if self.status >= 500:
            return _TYPES.get(self.status, "server_error")
        return _TYPES.get(self.status, "invalid_request_error")

    @property
    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers

    def body(self) -> dict[str, Any]:
        """The envelope: always these four keys."""
        message = self.message[:MAX_MESSAGE_CHARS]
        return {
            "error": {
                "message": message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic_body(self) -> dict[str, Any]:
        """The same error as `/v1/messages` clients expect it."""
        kind = {404: "not_found_error", 503: "overloaded_error", 529: "overloaded_error"}
        shown = kind.get(self.status, "api_error" if self.status >= 500 else self.type)
        return {
            "type": "error",
            "error": {"type": shown, "message": self.message[:MAX_MESSAGE_CHARS]},
        }


def from_engine(error: EngineError) -> ApiError:
    """An engine's failure as an HTTP error."""
    retry = 1 if error.status in {429, 503} else None
    return ApiError(error.message, error.status, error.code, error.param, retry)


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """A 400 that names the field."""
    return ApiError(message, 400, code, param)


def unsupported(param: str, why: str) -> ApiError:
    """A 400 for a parameter this server refuses rather than ignores."""
    return ApiError(f"'{param}' is not supported: {why}", 400, "unsupported_parameter", param)


def response(error: ApiError, *, anthropic: bool = False) -> JSONResponse:
    """The error as an HTTP response, in OpenAI's or Anthropic's shape."""
    body = error.anthropic_body() if anthropic else error.body()
    return JSONResponse(body, status_code=error.status, headers=error.headers)


def from_validation(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """A body that does not match its schema: the first problem, with its field."""
    first = min(problems, key=lambda problem: -len(problem["loc"])) if problems else {}
    path = ""
    for step in first.get("loc", ()):
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and step not in _NOT_FIELDS:
            path += f".{step}" if path else step
    message = str(first.get("msg", "invalid")).removeprefix("Value error, ")
    shown = f"{path}: {message}" if path else message
    return ApiError(shown, 400, "invalid_value", path or None)
