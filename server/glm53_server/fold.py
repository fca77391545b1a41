"""Folds output events into whole answers, and the small parts both forms of an answer share."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from glm53_server.chat.parser import CallArguments, CallStart, Reasoning
from glm53_server.engine.base import PromptScores, TokenScore
from glm53_server.parameters import MISSING_LOGPROB
from glm53_server.pipeline import Finish, OutputEvent, TextDelta, TokenDelta, Usage
from glm53_server.tokenizer import Tokenizer


@dataclass(slots=True)
class Call:
    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """One whole choice. `text` is the visible text, "" when there is none."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list[Call])
    scores: list[TokenScore] = field(default_factory=list[TokenScore])
    ids: list[int] = field(default_factory=list[int])
    prompt_scores: tuple[TokenScore, ...] = ()
    finish: Finish = field(default_factory=lambda: Finish("stop", Usage(0, 0)))


def fold(events: Iterable[OutputEvent | PromptScores]) -> Answer:
    """The answer that these events stream."""
    answer = Answer()
    texts: list[str] = []
    reasoning: list[str] = []
    for event in events:
        match event:
            case TextDelta(text, scores):
                texts.append(text)
                answer.scores += scores
            case TokenDelta(ids, scores):
                answer.ids += ids
                answer.scores += scores
            case Reasoning(text):
                reasoning.append(text)
            case CallStart(_, name):
                answer.calls.append(Call(call_id(), name))
            case CallArguments(index, text):
                answer.calls[index].arguments += text
            case PromptScores(scores):
                answer.prompt_scores = scores
            case Finish():
                answer.finish = event
            case _:
                pass
    answer.text, answer.reasoning = "".join(texts), "".join(reasoning)
    return answer


def call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def usage_body(usages: Sequence[Usage], prompts: int = 1) -> dict[str, Any]:
    """OpenAI's usage of a request: `prompts` prompts, each counted once however many choices it has."""
    per_prompt = len(usages) // prompts
    prompt = sum(usage.prompt for usage in usages[::per_prompt])
    completion = sum(usage.completion for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.cached for usage in usages[::per_prompt])
        },
        "completion_tokens_details": {"reasoning_tokens": sum(usage.reasoning for usage in usages)},
    }


def finite(logprob: float | None) -> float:
    """A log-probability JSON can carry."""
    return MISSING_LOGPROB if logprob is None or not logprob > MISSING_LOGPROB else logprob


def chat_logprobs(tokenizer: Tokenizer, scores: Iterable[TokenScore]) -> dict[str, Any]:
    """OpenAI's chat logprobs. `bytes` are the token's true bytes, also of half a character."""

    def entry(token_id: int, logprob: float | None) -> dict[str, Any]:
        raw = tokenizer.bytes_of(token_id)
        text = raw.decode("utf-8", "replace")
        return {"token": text, "logprob": finite(logprob), "bytes": list(raw)}

    content = [
        entry(score.token_id, score.logprob)
        | {"top_logprobs": [entry(token_id, logprob) for token_id, logprob in score.top]}
        for score in scores
    ]
    return {"content": content, "refusal": None}
