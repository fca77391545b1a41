"""Request parameters to engine requests: budgets, stop ids, sampling, refusals by name.

Pure. A value that cannot be honoured is a 400 naming its field; nothing that constrains the output
is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from glm53_server.api_errors import ApiError, invalid, unsupported
from glm53_server.engine.base import EngineInfo, GenRequest, Grammar, Sampling
from glm53_server.pipeline import OutputOptions
from glm53_server.schemas import Request, SamplingFields

log = logging.getLogger("glm53_server")

MISSING_LOGPROB = -9999.0  # JSON has no infinity
# Fields other servers accept and this one cannot honour; each with the reason a client reads.
_REFUSED: Mapping[str, str] = {
    "chat_template": "templates are never taken from a request",
    "functions": "use 'tools'",
    "function_call": "use 'tool_choice'",
    "audio": "this model writes text only",
    "web_search_options": "the server has no web search",
    "prompt_logprobs": "use /generate with return_logprob",
    "bad_words": "use 'logit_bias'",
    "use_beam_search": "only sampling is available",
    "suffix": "this model has no fill-in-the-middle format",
    "logits_processors": "code is never taken from a request",
    "reasoning_budget": "use 'reasoning_effort'",
    "thinking_token_budget": "use 'reasoning_effort'",
}
# Fields that are safe to ignore: they do not change what a correct answer is.
_IGNORED = frozenset(
    [
        "user",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "verbosity",
        "prediction",
        "modalities",
        "rid",
        "request_id",
        "cache_salt",
        "priority",
    ]
)


def refuse_unsupported(body: Request) -> None:
    """Raise for a field that must not be ignored; log other unknown ones once per request."""
    extra = body.model_extra or {}
    for name, why in _REFUSED.items():
        if extra.get(name) not in (None, False, [], {}, ""):
            raise unsupported(name, why)
    if extra.get("modalities") not in (None, ["text"]):
        raise unsupported("modalities", "this model writes text only")
    unknown = sorted(extra.keys() - _IGNORED - _REFUSED.keys())
    if unknown:
        shown = ", ".join(name[:40].encode("unicode_escape").decode() for name in unknown[:10])
        log.info("ignored request fields: %s", shown)


class ContextOverflow(ApiError):
    """The prompt leaves no room for output. The sentence is the one clients look for."""

    def __init__(self, prompt_tokens: int, limit_tokens: int, param: str) -> None:
        super().__init__(
            f"This model's maximum context length is {limit_tokens} tokens. However, you "
            f"requested {prompt_tokens} tokens in the {param}, which leaves no room for output. "
            f"Please reduce the length of the {param}.",
            400,
            "context_length_exceeded",
            param,
        )
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens


def budget(info: EngineInfo, prompt_tokens: int, wanted: int | None, param: str) -> int:
    """Tokens to generate: what was asked for, at most the rest of the context."""
    room = info.context_tokens - prompt_tokens
    if room < 1:
        raise ContextOverflow(prompt_tokens, info.context_tokens, param)
    return room if wanted is None else min(wanted, room)


def sampling_of(body: SamplingFields, info: EngineInfo, *, banned: Iterable[int] = ()) -> Sampling:
    """Sampling parameters; `banned` ids get the lowest bias."""
    bias = dict(_bias(body, info)) | dict.fromkeys(banned, -100.0)
    default = Sampling()
    return Sampling(
        temperature=_or(body.temperature, default.temperature),
        top_p=_or(body.top_p, default.top_p),
        top_k=max(0, body.top_k or 0),
        min_p=_or(body.min_p, default.min_p),
        seed=body.seed,
        frequency_penalty=_or(body.frequency_penalty, default.frequency_penalty),
        presence_penalty=_or(body.presence_penalty, default.presence_penalty),
        repetition_penalty=_or(body.repetition_penalty, default.repetition_penalty),
        logit_bias=tuple(sorted(bias.items())),
    )


def _bias(body: SamplingFields, info: EngineInfo) -> Iterable[tuple[int, float]]:
    for key, value in (body.logit_bias or {}).items():
        if not key.isascii() or not key.isdigit() or int(key[:12]) >= info.vocab_size:
            raise invalid(
                f"logit_bias keys must be token ids below {info.vocab_size}", "logit_bias"
            )
        yield int(key), value


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


@dataclass(frozen=True, slots=True)
class Asked:
    """What one endpoint wants beside the common fields."""

    max_tokens: int | None
    stop_ids: frozenset[int]
    prompt_param: str  # the request field the prompt came from, for errors
    logprobs: bool = False
    top_logprobs: int = 0
    grammar: Grammar | None = None
    banned: frozenset[int] = frozenset()


def engine_requests(
    request_id: str,
    prompt_ids: tuple[int, ...],
    body: SamplingFields,
    info: EngineInfo,
    asked: Asked,
) -> list[GenRequest]:
    """One engine request per choice; choice i of a seeded request uses seed + i."""
    max_tokens = budget(info, len(prompt_ids), asked.max_tokens, asked.prompt_param)
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid(f"min_tokens must not be more than max_tokens ({max_tokens})", "min_tokens")
    if any(token_id >= info.vocab_size for token_id in body.stop_token_ids or ()):
        raise invalid(f"stop_token_ids must be below {info.vocab_size}", "stop_token_ids")
    natural = frozenset[int]() if body.ignore_eos else asked.stop_ids
    first = GenRequest(
        request_id=request_id,
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        sampling=sampling_of(body, info, banned=asked.banned),
        stop_ids=natural | frozenset(body.stop_token_ids or ()),
        min_tokens=min_tokens,
        logprobs=asked.logprobs,
        top_logprobs=asked.top_logprobs,
        grammar=asked.grammar,
    )
    return [_choice(first, i) for i in range(body.n or 1)]


def _choice(first: GenRequest, index: int) -> GenRequest:
    if index == 0:
        return first
    seed = first.sampling.seed
    sampling = replace(first.sampling, seed=None if seed is None else (seed + index) % 2**63)
    return replace(first, request_id=f"{first.request_id}-{index}", sampling=sampling)


def output_options(body: SamplingFields, *, one_call: bool = False) -> OutputOptions:
    """How the output is cut and shown."""
    return OutputOptions(
        stop=tuple(body.stop or ()),
        include_stop=bool(body.include_stop_str_in_output or body.no_stop_trim),
        skip_special=body.skip_special_tokens is not False,
        one_call=one_call,
    )
