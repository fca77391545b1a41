"""`POST /v1/responses`: OpenAI's Responses API without stored state."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from glm53_server.conversation import prepare
from glm53_server.responses_in import chat_request
from glm53_server.responses_out import ResponseEncoder
from glm53_server.schemas_responses import ResponseBody, ResponsesRequest
from glm53_server.service import service_of
from glm53_server.sse import EventStream, whole

from .base import GenerationRoute, request_id

router = APIRouter(route_class=GenerationRoute, tags=["openai"])


@router.post("/v1/responses", response_model=ResponseBody)
async def create_response(request: Request, body: ResponsesRequest) -> Response:
    """Answer `input`; with `stream` as named events that end in `response.completed`."""
    service, identity = service_of(request), request_id(request)
    choices = await prepare(service, chat_request(body), identity)
    generation = service.generation(choices)
    encoder = ResponseEncoder(f"resp_{identity}", service.served_name, body)
    if body.stream:
        return EventStream(generation, encoder)
    return JSONResponse(encoder.whole((await whole(request, generation))[0]))
