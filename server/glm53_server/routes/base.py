"""What every route needs: bodies parsed strictly, and request ids."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from glm53_server.api_errors import ApiError
from glm53_server.service import Service, service_of

_BODY_DEADLINE_S = 60.0
_SECOND_PASS_BYTES = 1 << 20  # a larger body is not searched for duplicate keys


class JsonRequest(Request):
    """Parses its body strictly: no NaN, no lone surrogates, no deep nesting, no duplicate keys."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                value = from_json(body, allow_inf_nan=False)
                if len(body) <= _SECOND_PASS_BYTES:
                    json.loads(body, object_pairs_hook=_unique)
            except (ValueError, RecursionError) as err:
                raise ApiError(f"the body is not valid JSON: {err}", 400, "invalid_json") from err
            if not isinstance(value, dict):
                raise ApiError("the body must be a JSON object", 400, "invalid_json")
            self._json = cast(dict[str, Any], value)
        return self._json


class JsonRoute(APIRoute):
    """A route whose body is a JsonRequest's, read within a deadline."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            self.admit(service_of(request))
            parsed = JsonRequest(request.scope, request.receive)
            try:
                # FastAPI would turn our errors into its own: parse before it does.
                async with asyncio.timeout(_BODY_DEADLINE_S):
                    await parsed.json()
            except TimeoutError as err:
                raise ApiError("the body came too slowly", 408, "request_timeout") from err
            return await handle(parsed)

        return strict

    def admit(self, service: Service) -> None:
        """Called before the body is read."""


class GenerationRoute(JsonRoute):
    """Refuses work before its body is read, when there is no room for it."""

    def admit(self, service: Service) -> None:
        service.require_room()


def request_id(request: Request) -> str:
    """The id of this request: the client's own, if it sent a sane one."""
    return request.scope.get("state", {}).get("request_id") or secrets.token_hex(12)


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("duplicate key in an object")
