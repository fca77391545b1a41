"""The OpenAPI document, made honest: our errors instead of FastAPI's, and streams where they exist."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from glm53_server.schemas import ErrorBody
from glm53_server.schemas_anthropic import AnthropicErrorBody

_STREAMING = {
    "/v1/chat/completions",
    "/v1/completions",
    "/generate",
    "/v1/messages",
    "/v1/responses",
}
_ERRORS = {
    "400": "The request is invalid or asks for what is not supported",
    "401": "The API key is missing or wrong",
    "403": "The Host or Origin is not allowed",
    "404": "There is no such thing",
    "408": "The body came too slowly",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "429": "The queue is full",
    "500": "A bug",
    "503": "The server is loading, shutting down, or has lost its engine",
}


def document(app: FastAPI) -> dict[str, Any]:
    """The document of all routes, built once."""
    if app.openapi_schema is None:
        schema = get_openapi(title="glm53ctl", version="1", routes=app.routes)
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        for model in (ErrorBody, AnthropicErrorBody):
            error = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= error.pop("$defs", {}) | {model.__name__: error}
        for path, methods in schema["paths"].items():
            for operation in methods.values():
                _describe(path, operation["responses"])
        app.openapi_schema = schema
    return app.openapi_schema


def _describe(path: str, responses: dict[str, Any]) -> None:
    responses.pop("422", None)
    name = "AnthropicErrorBody" if path.startswith("/v1/messages") else "ErrorBody"
    body = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    for status, text in _ERRORS.items():
        responses.setdefault(status, {"description": text, "content": body})
    if path in _STREAMING:
        responses["200"]["content"]["text/event-stream"] = {}
