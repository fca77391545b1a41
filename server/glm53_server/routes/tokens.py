"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from glm53_server.api_errors import invalid
from glm53_server.chat.normalise import normalise_tools
from glm53_server.conversation import render_prompt
from glm53_server.schemas_chat import ChatRequest
from glm53_server.schemas_native import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from glm53_server.service import Service, service_of

from .base import JsonRoute

router = APIRouter(route_class=JsonRoute, tags=["native"])


@router.post("/tokenize", response_model=TokenizeResponse, response_model_exclude_none=True)
async def tokenize(request: Request, body: TokenizeRequest) -> dict[str, Any]:
    """Ids of `prompt` (also named `text` or `content`), or of `messages` rendered as a chat."""
    service = service_of(request)
    ids = await _ids(service, body)
    answer: dict[str, Any] = {
        "tokens": list(ids),
        "count": len(ids),
        "max_model_len": service.engine.info.context_tokens,
    }
    if body.return_token_strs:
        answer["token_strs"] = [service.tokenizer.decode([token_id]) for token_id in ids]
    return answer


@router.post("/detokenize", response_model=DetokenizeResponse)
async def detokenize(request: Request, body: DetokenizeRequest) -> dict[str, Any]:
    """Text of ids, control tokens included unless `skip_special_tokens`."""
    service = service_of(request)
    tokenizer, hide = service.tokenizer, bool(body.skip_special_tokens)
    if any(token_id >= tokenizer.vocab_size for token_id in body.tokens):
        raise invalid(f"tokens must be below {tokenizer.vocab_size}", "tokens")
    text = await service.off_loop(
        len(body.tokens), lambda: tokenizer.decode(body.tokens, skip_hidden=hide)
    )
    return {"text": text, "prompt": text}


async def _ids(service: Service, body: TokenizeRequest) -> tuple[int, ...]:
    texts = [text for text in (body.prompt, body.text, body.content) if text is not None]
    if body.messages is not None and not texts:
        normalise_tools(body.tools or ())
        shared = {
            "messages",
            "tools",
            "chat_template_kwargs",
            "enable_thinking",
            "reasoning_effort",
        }
        chat = ChatRequest.model_construct(
            **{name: getattr(body, name) for name in shared},
            add_generation_prompt=body.add_generation_prompt,
        )
        return (await render_prompt(service, chat)).ids
    if len(texts) != 1 or body.messages is not None:
        raise invalid("exactly one of prompt, text, content or messages is required", "prompt")
    if body.parse_special is False:
        return await service.encode([texts[0]])
    return await service.encode_raw(texts[0])
