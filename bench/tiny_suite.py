#!/usr/bin/env python3
"""Ask a server of the tiny model held-out questions at temperature 0, and count what is right.

usage: tiny_suite.py --url URL [--cases 40] [--seed 7] [--floor 0.95] [--parallel 1] [--out FILE]

The questions are those of scripts/tiny that no training ever sees. Per kind: sums, facts, calls (right
tool, right arguments), use of a tool's result, JSON answers, and the rest; over all of them: reasoning
present and closed. Exit 1 when a kind is below the floor.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wire import Server, ServerError, add_server_flags, write_json

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / name) for name in (".", "server", "scripts")]

from tiny.corpus import samples  # noqa: E402
from tiny.judge import Said, right  # noqa: E402
from tiny.reading import arguments  # noqa: E402
from tiny.samples import Sample, Split  # noqa: E402

from glm53_server.chat.messages import Message, Role  # noqa: E402

KINDS = ("arithmetic", "facts", "calls", "results", "json", "other")
MAX_TOKENS = 200
SHOWN = 12  # wrong answers that are kept


@dataclass(frozen=True, slots=True)
class Case:
    """One turn to be written."""

    kind: str
    sample: Sample
    turn: int


def cases(seed: int, each: int) -> list[Case]:
    """The first `each` held-out turns of every kind."""
    taken: Counter[str] = Counter()
    found: list[Case] = []
    for case in _all_cases(seed):
        if taken[case.kind] < each:
            taken[case.kind] += 1
            found.append(case)
        if all(taken[kind] >= each for kind in KINDS):
            return found
    raise AssertionError("the stream of samples never ends")


def _all_cases(seed: int) -> Iterator[Case]:
    plain = {"arithmetic": "arithmetic", "fact": "facts", "no-tool": "facts", "json": "json"}
    for sample in samples(seed, Split.HELD_OUT):
        for turn in sample.live_turns():
            kind = plain.get(sample.task, "other")
            if sample.messages[turn].calls:
                kind = "calls"
            elif sample.messages[turn - 1].role is Role.TOOL:
                kind = "results"
            yield Case(kind, sample, turn)


def request(case: Case) -> dict[str, Any]:
    """The body of the chat request that asks for a case's turn."""
    history = case.sample.messages[: case.turn]
    body: dict[str, Any] = {
        "messages": [_message(message) for message in history],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    if case.sample.tools:
        body["tools"] = list(case.sample.tools)
    if case.sample.effort:
        body["reasoning_effort"] = case.sample.effort
    return body


def _message(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.reasoning:
        body["reasoning_content"] = message.reasoning
    if message.call_id:
        body["tool_call_id"] = message.call_id
    if message.calls:
        body["tool_calls"] = [
            {"id": call.id, "type": "function",
             "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))}}
            for call in message.calls
        ]  # fmt: skip
    return body


def read(answer: Mapping[str, Any]) -> Said:
    """The answer of the chat endpoint. Reasoning that was never closed leaves nothing else."""
    message = answer["choices"][0]["message"]
    calls = tuple(
        (call["function"]["name"], arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    )
    content = message.get("content") or ""
    closed = bool(content.strip() or calls)
    return Said(content.strip(), message.get("reasoning_content") or "", closed, calls)


def answered(server: Server, case: Case) -> tuple[Case, Said]:
    return case, read(server.post("/v1/chat/completions", request(case)))


def score(asked: list[tuple[Case, Said]]) -> dict[str, Any]:
    """The figures of all answers."""
    kinds: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        verdicts = [right(c.sample, c.turn, said) for c, said in asked if c.kind == kind]
        if verdicts:
            share = round(sum(verdicts) / len(verdicts), 4)
            kinds[kind] = {"asked": len(verdicts), "right": sum(verdicts), "share": share}
    wrong = [
        {"kind": c.kind, "asked": c.sample.messages[c.turn - 1].content,
         "wanted": _shown(c.sample.messages[c.turn]), "said": said.content or str(said.calls or said.reasoning)}
        for c, said in asked if not right(c.sample, c.turn, said)
    ]  # fmt: skip
    return {
        "kinds": kinds,
        "reasoning_present": round(sum(bool(s.reasoning) for _, s in asked) / len(asked), 4),
        "reasoning_closed": round(sum(s.reasoning_closed for _, s in asked) / len(asked), 4),
        "wrong": wrong[:SHOWN],
    }


def _shown(message: Message) -> str:
    calls = [(call.name, dict(call.arguments)) for call in message.calls]
    return message.content or str(calls)


def below(figures: Mapping[str, Any], floor: float) -> list[str]:
    """What is below the floor."""
    shares = {kind: counted["share"] for kind, counted in figures["kinds"].items()}
    shares |= {name: figures[name] for name in ("reasoning_present", "reasoning_closed")}
    return [name for name, share in shares.items() if share < floor]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_server_flags(parser)
    parser.add_argument("--cases", type=int, default=40, help="questions of each kind (40)")
    parser.add_argument("--seed", type=int, default=7, help="which held-out questions (7)")
    parser.add_argument("--floor", type=float, default=0.95, help="share that must be right (0.95)")
    parser.add_argument("--parallel", type=int, default=1, help="questions at a time (1)")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    server = Server(args.url, args.api_key_file)
    try:
        engine = server.get("/server_info").get("engine")
        with ThreadPoolExecutor(args.parallel) as pool:
            asked = list(
                pool.map(lambda case: answered(server, case), cases(args.seed, args.cases))
            )
    except ServerError as err:
        print(f"error: {err}", file=sys.stderr)
        return 2
    figures = {"engine": engine, "seed": args.seed, **score(asked)}
    for kind, counted in figures["kinds"].items():
        print(f"{kind:<12} {counted['right']:>4} of {counted['asked']:<4} {counted['share']:.1%}")
    print(
        f"reasoning    present {figures['reasoning_present']:.1%}, closed {figures['reasoning_closed']:.1%}"
    )
    if args.out:
        write_json(args.out, figures)
    if low := below(figures, args.floor):
        print(f"below {args.floor:.0%}: {', '.join(low)}", file=sys.stderr)
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
