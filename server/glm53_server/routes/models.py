"""`GET /v1/models` and `GET /v1/models/{id}`: the one model this server has."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from glm53_server.api_errors import ApiError
from glm53_server.schemas import ModelCard, ModelList
from glm53_server.service import Service, service_of

router = APIRouter(tags=["openai"])


@router.get("/v1/models", response_model=ModelList)
async def list_models(request: Request) -> dict[str, Any]:
    """The served model."""
    return {"object": "list", "data": [_card(service_of(request))]}


@router.get("/v1/models/{model_id:path}", response_model=ModelCard)
async def get_model(request: Request, model_id: str) -> dict[str, Any]:
    """One model; 404 for an id that is not served."""
    service = service_of(request)
    if model_id != service.served_name:
        message = f"the model does not exist; this server serves '{service.served_name}'"
        raise ApiError(message, 404, "model_not_found", "model")
    return _card(service)


def _card(service: Service) -> dict[str, Any]:
    context = service.engine.info.context_tokens
    return {
        "id": service.served_name,
        "object": "model",
        "created": service.created,
        "owned_by": "glm53ctl",
        "root": service.served_name,
        "parent": None,
        "max_model_len": context,
        "context_length": context,
        "context_window": context,
        "max_output_tokens": context,
        "capabilities": {"tools": True, "reasoning": True, "json_schema": True},
        "permission": [],
    }
