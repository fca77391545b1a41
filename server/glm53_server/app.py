"""Builds the FastAPI app around an engine: routes, the gate before them, and one shape of error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from glm53_server import api_errors
from glm53_server.api_errors import ApiError
from glm53_server.engine.base import Engine
from glm53_server.grammar_check import GrammarChecker
from glm53_server.middleware import Access, Gate, digests, is_loopback
from glm53_server.openapi import document
from glm53_server.routes import (
    chat,
    completions,
    generate,
    health,
    messages,
    models,
    prometheus,
    responses,
    root,
    tokens,
)
from glm53_server.service import Service
from glm53_server.sse import ClientGone
from glm53_server.tokenizer import Tokenizer
from glm53ctl.errors import UsageError
from glm53ctl.plan import Plan

_ROUTERS = (
    chat.router,
    completions.router,
    responses.router,
    messages.router,
    messages.count_router,
    models.router,
    generate.router,
    tokens.router,
    health.router,
    prometheus.router,
    root.router,
)


def create_app(engine: Engine, plan: Plan) -> FastAPI:
    """The server of a loaded engine. Raises UsageError for a plan that would listen unprotected.

    The engine is closed by the app's shutdown.
    """
    access = _access(plan)
    tokenizer_json = Path(plan.model.path) / "tokenizer.json"
    tokenizer = Tokenizer(tokenizer_json)
    info = engine.info
    grammars = GrammarChecker(tokenizer_json, info.vocab_size, info.eos_ids)
    app = FastAPI(title="glm53ctl", docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.service = Service(engine, plan, tokenizer, grammars)
    for router in _ROUTERS:
        app.include_router(router)
    app.add_middleware(Gate, access=access)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientGone, _nobody)
    app.add_exception_handler(Exception, _bug)
    app.openapi = lambda: document(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    service: Service = app.state.service
    service.begin_drain()
    await asyncio.gather(service.engine.close(), return_exceptions=True)  # serve() tells it


def _access(plan: Plan) -> Access:
    listen = plan.listen
    keys: tuple[bytes, ...] = ()
    if listen.api_key_file is not None:
        try:
            keys = digests(Path(listen.api_key_file).read_text(encoding="utf-8").splitlines())
        except OSError as err:
            raise UsageError(f"cannot read the API key file: {err.strerror}") from err
        if not keys:
            raise UsageError("the API key file holds no key")
    if not keys and not is_loopback(listen.host):
        raise UsageError(
            f"listening on {listen.host} needs an API key",
            hint="give a key file, or listen on 127.0.0.1",
        )
    hosts = frozenset({"localhost", "127.0.0.1", "::1", listen.host.lower()})
    return Access(keys, hosts, plan.limits.max_body_bytes)


def _answer(request: Request, error: ApiError) -> Response:
    return api_errors.response(error, anthropic=request.url.path.startswith("/v1/messages"))


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answer(request, error)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _answer(request, api_errors.from_validation(error.errors()))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = {404: ("no such route", "not_found"), 405: ("method not allowed", "method_not_allowed")}
    message, code = known.get(error.status_code, (str(error.detail), None))
    response = _answer(request, ApiError(message, error.status_code, code))
    response.headers.update(error.headers or {})
    return response


async def _nobody(request: Request, error: Exception) -> Response:
    del request, error
    return Response(status_code=499)  # never sent: the client has gone


async def _bug(request: Request, error: Exception) -> Response:
    del error
    return _answer(request, ApiError("internal error", 500, "internal_error"))
