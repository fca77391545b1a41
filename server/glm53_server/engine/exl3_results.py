"""One streaming result of exllamav3's generator as our events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from glm53_server.engine.base import Done, Event, FinishReason, GenRequest, Tokens, TokenScore
from glm53_server.engine.exl3_scores import generated_scores


@dataclass(slots=True)
class Running:
    """A request, its job in the generator, and the tokens it has produced."""

    request: GenRequest
    job: Any
    produced: int = 0


def streaming_events(running: Running, result: dict[str, Any]) -> Iterator[Event]:
    """The tokens of one streaming result, and Done when it is the last; counts them in `running`."""
    parts = [result, result["held"]] if result["eos"] and "held" in result else [result]
    ids: list[int] = []
    scores: list[TokenScore] = []
    for part in parts:
        if "token_ids" in part:
            new = part["token_ids"].flatten().tolist()
            ids += new
            if running.request.logprobs:
                scores += generated_scores(part, new, running.request)
    stop_id = result.get("eos_triggering_token_id") if result["eos"] else None
    if stop_id is not None and (not ids or ids[-1] != stop_id):
        ids.append(int(stop_id))
        if running.request.logprobs:
            scores.append(TokenScore(int(stop_id), None))
    running.produced += len(ids)
    if ids:
        yield Tokens(tuple(ids), tuple(scores))
    if result["eos"]:
        reason = (
            FinishReason.LENGTH if result["eos_reason"] == "max_new_tokens" else FinishReason.STOP
        )
        yield Done(
            reason,
            len(running.request.prompt_ids),
            running.produced,
            int(result.get("cached_tokens", 0)),
            int(stop_id) if stop_id is not None else None,
        )
