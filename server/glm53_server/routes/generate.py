"""`POST /generate`, in SGLang's shape: raw ids, teacher-forced scores, cumulative streams."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from glm53_server import api_errors
from glm53_server.api_errors import ApiError, invalid
from glm53_server.engine.base import GenRequest, PromptScores, TokenScore
from glm53_server.fold import Answer, finite, fold
from glm53_server.guides import constraint
from glm53_server.parameters import Asked, engine_requests
from glm53_server.pipeline import Finish, OutputEvent, TextDelta
from glm53_server.raw_prompts import encode_prompts, is_batch, raw_choices
from glm53_server.schemas import SamplingFields
from glm53_server.schemas_chat import GuidedFields
from glm53_server.schemas_native import GenerateRequest, GenerateResponse, SglangSampling
from glm53_server.service import Service, service_of
from glm53_server.sse import DONE, PING, EventStream, frame, whole

from .base import GenerationRoute, request_id

router = APIRouter(route_class=GenerationRoute)
DEFAULT_NEW_TOKENS = 128


@router.post("/generate", response_model=GenerateResponse | list[GenerateResponse], tags=["native"])
async def generate(request: Request, body: GenerateRequest) -> Response:
    """Continue `text` or `input_ids`; a list in gives a list out."""
    service, identity = service_of(request), request_id(request)
    prompt = body.text if body.text is not None else body.input_ids
    if prompt is None or (body.text is not None and body.input_ids is not None):
        raise invalid("exactly one of text and input_ids is required", "text")
    prompts = await encode_prompts(
        service, prompt, "text" if body.text is not None else "input_ids"
    )
    requests, sampling = await _requests(service, body, prompts, identity)
    generation = service.generation(raw_choices(service, requests, sampling))
    shape = GenerateShape(service, body, requests)
    many = is_batch(prompt) or len(requests) > 1
    if body.stream:
        return EventStream(generation, GenerateEncoder(shape, len(requests), many=many))
    answers = [
        shape.answer(i, fold(events)) for i, events in enumerate(await whole(request, generation))
    ]
    return JSONResponse(answers if many else answers[0])


async def _requests(
    service: Service, body: GenerateRequest, prompts: Sequence[tuple[int, ...]], identity: str
) -> tuple[list[GenRequest], SamplingFields]:
    asked_for = body.sampling_params or SglangSampling()
    sampling = _common(asked_for)
    grammar = constraint(
        GuidedFields(
            guided_json=asked_for.json_schema,
            guided_regex=asked_for.regex,
            guided_grammar=asked_for.ebnf,
        )
    )
    if grammar is not None:
        await service.check_grammar(*grammar)
    new_tokens = asked_for.max_new_tokens
    asked = Asked(
        max_tokens=DEFAULT_NEW_TOKENS if new_tokens is None else new_tokens,
        stop_ids=service.engine.info.eos_ids,
        prompt_param="text" if body.text is not None else "input_ids",
        logprobs=bool(body.return_logprob),
        top_logprobs=body.top_logprobs_num or 0 if body.return_logprob else 0,
        grammar=grammar[0] if grammar else None,
    )
    start = body.logprob_start_len
    scored = body.return_logprob and start is not None and start >= 0
    requests = [
        replace(
            one,
            prompt_logprobs_from=start if scored and start is not None else None,
            logprob_ids=tuple(body.token_ids_logprob or ()) if body.return_logprob else (),
        )
        for i, ids in enumerate(prompts)
        for one in engine_requests(f"{identity}-{i}", ids, sampling, service.engine.info, asked)
    ]
    for one in requests:
        if scored and start is not None and start >= len(one.prompt_ids):
            raise invalid("logprob_start_len is beyond the prompt", "logprob_start_len")
        if any(token_id >= service.engine.info.vocab_size for token_id in one.logprob_ids):
            raise invalid("token_ids_logprob is outside the vocabulary", "token_ids_logprob")
    return requests, sampling


def _common(asked: SglangSampling) -> SamplingFields:
    """SGLang's names in the common ones."""
    fields = asked.model_dump(exclude_none=True, include=set(SamplingFields.model_fields))
    renamed = {"min_tokens": asked.min_new_tokens, "seed": asked.sampling_seed}
    return SamplingFields.model_validate(fields | renamed)


class GenerateShape:
    """Builds the answer object of one choice."""

    def __init__(
        self, service: Service, body: GenerateRequest, requests: Sequence[GenRequest]
    ) -> None:
        self._requests = requests
        self._start_s = time.monotonic()
        self._scored = bool(body.return_logprob)
        self._top = bool(body.top_logprobs_num)
        self._asked = bool(body.token_ids_logprob)
        self._texts = service.tokenizer if body.return_text_in_logprobs else None
        self._rid = body.rid if isinstance(body.rid, str) else None

    def progress(self, index: int, text: str, tokens: int) -> dict[str, Any]:
        """The object of a running stream."""
        return {"text": text, "meta_info": self._meta(index, tokens, 0, None)}

    def answer(self, index: int, answer: Answer) -> dict[str, Any]:
        usage = answer.finish.usage
        meta = self._meta(index, usage.completion, usage.cached, _reason(answer.finish))
        if self._scored:
            meta |= self._logprobs("input", answer.prompt_scores)
            meta |= self._logprobs("output", answer.scores)
        return {"text": answer.text, "output_ids": answer.ids, "meta_info": meta}

    def _meta(
        self, index: int, tokens: int, cached: int, reason: dict[str, Any] | None
    ) -> dict[str, Any]:
        request = self._requests[index]
        return {
            "id": self._rid or request.request_id,
            "finish_reason": reason,
            "prompt_tokens": len(request.prompt_ids),
            "completion_tokens": tokens,
            "cached_tokens": cached,
            "e2e_latency": time.monotonic() - self._start_s,
        }

    def _logprobs(self, side: str, scores: Sequence[TokenScore]) -> dict[str, Any]:
        """Entry j belongs to the distribution that predicted token j; the first token has none."""
        found: dict[str, Any] = {
            f"{side}_token_logprobs": [
                None if score.logprob is None else self._entry(score.token_id, score.logprob)
                for score in scores
            ]
        }
        if self._top:
            found[f"{side}_top_logprobs"] = [
                None if score.logprob is None else [self._entry(*pair) for pair in score.top]
                for score in scores
            ]
        if self._asked:
            found[f"{side}_token_ids_logprobs"] = [
                None if score.logprob is None else [self._entry(*pair) for pair in score.asked]
                for score in scores
            ]
        return found

    def _entry(self, token_id: int, logprob: float) -> list[Any]:
        text = self._texts.decode([token_id]) if self._texts is not None else None
        return [finite(logprob), token_id, text]


def _reason(finish: Finish) -> dict[str, Any]:
    if finish.reason == "length":
        return {"type": "length", "length": finish.usage.completion, "reason": "length"}
    return {"type": "stop", "matched": finish.matched, "reason": "stop"}


class GenerateEncoder:
    """Every frame carries the whole text so far; the last one of a choice is its whole answer."""

    ping = PING

    def __init__(self, shape: GenerateShape, choices: int, *, many: bool) -> None:
        self._shape = shape
        self._many = many
        self._events: list[list[OutputEvent | PromptScores]] = [[] for _ in range(choices)]
        self._texts = [""] * choices
        self._tokens = [0] * choices

    def start(self) -> bytes:
        return b""

    def event(self, index: int, event: OutputEvent | PromptScores) -> bytes:
        self._events[index].append(event)
        match event:
            case TextDelta(text):
                self._texts[index] += text
                shown = self._shape.progress(index, self._texts[index], self._tokens[index])
                return self._frame(index, shown)
            case Finish():
                return self._frame(index, self._shape.answer(index, fold(self._events[index])))
            case PromptScores():
                return b""
            case _:
                self._tokens[index] += 1
                return b""

    def end(self) -> bytes:
        return DONE

    def failed(self, error: ApiError) -> bytes:
        return frame(error.body()) + DONE

    def error_response(self, error: ApiError) -> Response:
        return api_errors.response(error)

    def _frame(self, index: int, answer: dict[str, Any]) -> bytes:
        return frame({**answer, "index": index} if self._many else answer)
