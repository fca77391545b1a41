"""`GET /`: what a human, or a client that probes the address, finds first."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from glm53_server.service import service_of

router = APIRouter(tags=["operations"])


@router.get("/", operation_id="root")
@router.head("/", operation_id="root_head")
async def root(request: Request) -> dict[str, Any]:
    """The served model and where to find the rest."""
    service = service_of(request)
    return {
        "name": "glm53ctl",
        "model": service.served_name,
        "engine": service.engine.info.engine,
        "state": service.engine.state.value,
        "api": "/v1",
        "openapi": "/openapi.json",
    }
