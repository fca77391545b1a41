"""`POST /v1/completions`: raw text in, raw text out; no template, no parsing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from glm53_server import api_errors
from glm53_server.api_errors import ApiError, invalid, unsupported
from glm53_server.engine.base import PromptScores, TokenScore
from glm53_server.fold import finite, fold, usage_body
from glm53_server.generation import Choice
from glm53_server.guides import constraint
from glm53_server.parameters import Asked, engine_requests, refuse_unsupported
from glm53_server.pipeline import Finish, OutputEvent, TextDelta, TokenDelta, Usage
from glm53_server.raw_prompts import encode_prompts, raw_choices
from glm53_server.schemas_completion import Completion, CompletionRequest
from glm53_server.service import Service, service_of
from glm53_server.sse import DONE, PING, EventStream, frame, whole

from .base import GenerationRoute, request_id

router = APIRouter(route_class=GenerationRoute)


@router.post("/v1/completions", response_model=Completion, tags=["openai"])
async def create_completion(request: Request, body: CompletionRequest) -> Response:
    """Continue one or more prompts; choices are indexed in prompt order."""
    service, identity = service_of(request), request_id(request)
    prompts = await encode_prompts(service, body.prompt, "prompt")
    choices = await _choices(service, body, prompts, identity)
    generation = service.generation(choices)
    shape = CompletionShape(service, body, f"cmpl-{identity}", len(prompts))
    if body.stream:
        return EventStream(generation, CompletionEncoder(shape, len(choices)))
    return JSONResponse(shape.whole(await whole(request, generation)))


async def _choices(
    service: Service, body: CompletionRequest, prompts: Sequence[tuple[int, ...]], identity: str
) -> list[Choice]:
    refuse_unsupported(body)
    if body.echo:
        raise unsupported("echo", "use /generate with return_logprob to score a prompt")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of", "it must equal n")
    if body.max_tokens == 0:
        raise invalid("max_tokens must be at least 1", "max_tokens")
    grammar = constraint(body)
    if grammar is not None:
        await service.check_grammar(*grammar)
    asked = Asked(
        max_tokens=body.max_tokens,
        stop_ids=service.engine.info.eos_ids,
        prompt_param="prompt",
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
        grammar=grammar[0] if grammar else None,
    )
    requests = [
        one
        for i, ids in enumerate(prompts)
        for one in engine_requests(f"{identity}-{i}", ids, body, service.engine.info, asked)
    ]
    return raw_choices(service, requests, body)


class CompletionShape:
    """The parts of an answer that do not depend on its content."""

    def __init__(
        self, service: Service, body: CompletionRequest, identity: str, prompts: int
    ) -> None:
        self.tokenizer = service.tokenizer
        self.logprobs = body.logprobs
        self.prompts = prompts
        options = body.stream_options
        self.usage = bool(options and options.include_usage)
        self.head = {
            "id": identity,
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.served_name,
            "system_fingerprint": f"glm53-{service.engine.info.engine}",
        }

    def whole(self, choices: Sequence[Sequence[OutputEvent | PromptScores]]) -> dict[str, Any]:
        answers = [fold(events) for events in choices]
        return {
            **self.head,
            "choices": [
                self.choice(i, answer.text, answer.scores, 0, answer.finish)
                for i, answer in enumerate(answers)
            ],
            "usage": usage_body([answer.finish.usage for answer in answers], self.prompts),
        }

    def choice(
        self,
        index: int,
        text: str,
        scores: Sequence[TokenScore],
        offset: int,
        finish: Finish | None,
    ) -> dict[str, Any]:
        logprobs = None if self.logprobs is None else self._logprobs(scores, offset)
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish.reason if finish else None,
            "stop_reason": finish.matched if finish else None,
        }

    def _logprobs(self, scores: Sequence[TokenScore], offset: int) -> dict[str, Any]:
        shown = [s for s in scores if s.token_id not in self.tokenizer.hidden_ids]
        tokens = [self.tokenizer.decode([score.token_id]) for score in shown]
        offsets: list[int] = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        top = [
            {self.tokenizer.decode([token_id]): finite(value) for token_id, value in score.top}
            for score in shown
        ]
        return {
            "tokens": tokens,
            "token_logprobs": [finite(score.logprob) for score in shown],
            "top_logprobs": top,
            "text_offset": offsets,
        }


class CompletionEncoder:
    """Writes `text_completion` frames."""

    ping = PING

    def __init__(self, shape: CompletionShape, choices: int) -> None:
        self._shape = shape
        self._scores: list[list[TokenScore]] = [[] for _ in range(choices)]
        self._offsets = [0] * choices
        self._usages: list[Usage | None] = [None] * choices

    def start(self) -> bytes:
        return b""

    def event(self, index: int, event: OutputEvent | PromptScores) -> bytes:
        match event:
            case TokenDelta(_, scores):
                self._scores[index] += scores
                return b""
            case TextDelta(text):
                return self._chunk(index, text, None)
            case Finish(_, usage):
                self._usages[index] = usage
                return self._chunk(index, "", event)
            case _:
                return b""

    def end(self) -> bytes:
        if not self._shape.usage:
            return DONE
        usages = [usage for usage in self._usages if usage is not None]
        usage = usage_body(usages, self._shape.prompts)
        return frame({**self._shape.head, "choices": [], "usage": usage}) + DONE

    def failed(self, error: ApiError) -> bytes:
        return frame(error.body()) + DONE

    def error_response(self, error: ApiError) -> Response:
        return api_errors.response(error)

    def _chunk(self, index: int, text: str, finish: Finish | None) -> bytes:
        scores, self._scores[index] = self._scores[index], []
        choice = self._shape.choice(index, text, scores, self._offsets[index], finish)
        self._offsets[index] += len(text)
        chunk = {**self._shape.head, "choices": [choice]}
        return frame({**chunk, "usage": None} if self._shape.usage else chunk)
