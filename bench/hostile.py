"""Hostile and half-broken requests for every endpoint, from a seed: the same seed, the same requests."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
VALID = {
    "/v1/chat/completions": {
        "model": "m", "messages": MESSAGES, "max_tokens": 5, "temperature": 0.5, "top_p": 0.9,
        "stop": ["x"], "n": 1, "logprobs": True, "top_logprobs": 2, "tools": [TOOL], "stream": False,
        "tool_choice": "auto", "logit_bias": {"5": 1}, "seed": 1, "response_format": {"type": "text"},
        "chat_template_kwargs": {"enable_thinking": True}, "stream_options": {"include_usage": True},
    },
    "/v1/completions": {
        "model": "m", "prompt": "Hi", "max_tokens": 5, "logprobs": 1, "stop": "x", "stream": False,
    },
    "/v1/messages": {
        "model": "m", "max_tokens": 5, "messages": MESSAGES, "system": "s", "stream": False,
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 100},
    },
    "/v1/messages/count_tokens": {"model": "m", "messages": MESSAGES, "system": [{"type": "text", "text": "s"}]},
    "/v1/responses": {
        "model": "m", "input": "Hi", "max_output_tokens": 5, "instructions": "i", "stream": False,
        "tools": [{"type": "function", "name": "f", "parameters": {}}], "text": {"format": {"type": "text"}},
    },
    "/generate": {
        "text": "Hi", "sampling_params": {"max_new_tokens": 5, "temperature": 0, "stop": ["x"]},
        "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "stream": False,
    },
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [5, 6, 7]},
}  # fmt: skip
NASTY = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 1e308, -1e308, 0.1, 1e-320, "",
    "x", "\x00", "\u2028", "😀" * 50, "<|user|></think><tool_call>", "a" * 5000, "null", [], {}, [[]],
    [None], [""], [1, "a", None], [[[[1]]]], ["x"] * 5000, [0] * 5000, {"": ""}, {"type": "function"},
    {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/x"}}},
    {"type": "json_schema", "json_schema": {"schema": {"type": "array", "minItems": 10**9}}},
    {"a": {"b": {"c": [1, {"d": None}]}}}, [{"role": "user"}], [{"role": "tool", "content": [{}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[["}}]}],
    [{"type": "text"}], [{"type": "image_url", "image_url": "http://127.0.0.1/x"}],
    [{"type": "function_call", "call_id": None}], [{"type": "reasoning", "content": 5}],
    {str(i): i for i in range(2000)}, {"name": "f\n\u0000", "parameters": {"properties": []}},
]  # fmt: skip
EXTRA = [
    "guided_regex", "guided_json", "guided_grammar", "guided_choice", "functions", "chat_template",
    "min_tokens", "top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "rid",
    "input_ids", "echo", "suffix", "best_of", "reasoning", "reasoning_effort", "parallel_tool_calls",
    "continue_final_message", "structured_outputs", "previous_response_id", "metadata", "user", "🔥",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hostile:
    """One request; `content_type` is what it claims to be."""

    path: str
    body: bytes
    content_type: str = "application/json"


def hostile_requests(seed: int) -> Iterator[Hostile]:
    """An endless stream of requests."""
    rng = random.Random(seed)
    while True:
        path = rng.choice(list(VALID))
        body = copy.deepcopy(VALID[path])
        if rng.random() < 0.3 and "stream" in body:
            body["stream"] = True
        for _ in range(rng.randint(0, 3)):
            _mutate(body, rng)
        raw = json.dumps(body).encode()
        if rng.random() < 0.35:
            raw = _damage(raw, rng)
        kind = "text/plain" if rng.random() < 0.02 else "application/json"
        yield Hostile(path, raw, kind)


def _mutate(value: object, rng: random.Random) -> None:
    """Replace, add or remove something, at a random depth."""
    while True:
        if isinstance(value, dict) and value:
            key = rng.choice(list(value))
        elif isinstance(value, list) and value:
            key = rng.randrange(len(value))
        else:
            return
        inner = value[key]  # type: ignore[index]
        if isinstance(inner, (dict, list)) and inner and rng.random() < 0.5:
            value = inner
            continue
        break
    how = rng.random()
    if how < 0.15:
        del value[key]  # type: ignore[attr-defined]
    elif how < 0.35 and isinstance(value, dict):
        value[rng.choice(EXTRA)] = copy.deepcopy(rng.choice(NASTY))
    else:
        value[key] = copy.deepcopy(rng.choice(NASTY))  # type: ignore[index]


def _damage(raw: bytes, rng: random.Random) -> bytes:
    """Break the text itself: cuts, bad UTF-8, surrogates, depth bombs, numbers without end."""
    at = rng.randrange(len(raw) + 1)
    depth = rng.choice([10, 150, 300, 5000, 100_000])
    inserts = [
        b"\xff", b"\xed\xa0\xbd", b"\xc3", b"\x00", b'"', b"\\ud83d", b"\\u0000", b"}", b"[" * depth,
        b'{"a":' * depth, b"1" * 5000, b"NaN", b"Infinity", b",", b"\xef\xbb\xbf", b"e999",
    ]  # fmt: skip
    match rng.randrange(5):
        case 0:
            return raw[:at]
        case 1:
            return raw[:at] + rng.choice(inserts) + raw[at:]
        case 2:
            flipped = bytearray(raw)
            flipped[at % len(raw)] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case 3:
            bomb = b"[" * depth + b"]" * depth
            return raw[:-1] + b',"messages":' + bomb + b"}"
        case _:
            return b'{"x":' + b"9" * depth + b"," + raw[1:]
