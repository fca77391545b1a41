"""Raw prompts of `/v1/completions` and `/generate`: text or ids, one or several, to engine choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from glm53_server.api_errors import invalid
from glm53_server.engine.base import GenRequest
from glm53_server.generation import Choice
from glm53_server.parameters import output_options
from glm53_server.pipeline import ChoicePipeline, OutputOptions
from glm53_server.schemas import SamplingFields
from glm53_server.service import Service

Prompt = str | list[str] | list[int] | list[list[int]]


def is_batch(prompt: Prompt) -> bool:
    """True for several prompts, also for a list of one."""
    return isinstance(prompt, list) and not isinstance(prompt[0], int)


async def encode_prompts(service: Service, prompt: Prompt, param: str) -> list[tuple[int, ...]]:
    """Ids of every prompt. Raises ApiError for an empty prompt or an id out of range."""
    several = prompt if is_batch(prompt) else [prompt]
    encoded = [await _encode(service, one, param) for one in cast(list[str | list[int]], several)]
    for ids in encoded:
        if not ids:
            raise invalid(f"{param} must not be empty", param)
        if max(ids) >= service.engine.info.vocab_size:
            raise invalid(f"{param} has a token id outside the vocabulary", param)
    return encoded


async def _encode(service: Service, prompt: str | list[int], param: str) -> tuple[int, ...]:
    if not isinstance(prompt, str):
        return tuple(prompt)
    service.require_plausible(len(prompt), param)
    return await service.encode_raw(prompt)


def raw_choices(
    service: Service, requests: Sequence[GenRequest], body: SamplingFields
) -> list[Choice]:
    """Choices whose output is plain text and raw ids."""
    common = output_options(body)
    options = OutputOptions(common.stop, common.include_stop, common.skip_special, raw=True)
    return [
        Choice(request, ChoicePipeline(service.tokenizer, request, options)) for request in requests
    ]
