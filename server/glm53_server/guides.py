"""Constraints on the output: response formats, guided decoding and forced tool calls as one Grammar.

A constraint begins after the reasoning. A bad one is a 400 before the first token: sizes are bounded
here, and the grammar is compiled once, off the event loop, before the engine sees it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from glm53_server.api_errors import ApiError, invalid
from glm53_server.chat.arguments import Kind, Schema, value_kind
from glm53_server.chat.markers import Marker
from glm53_server.chat.normalise import depth_exceeds
from glm53_server.endless_schema import is_endless
from glm53_server.engine.base import Grammar
from glm53_server.schemas_chat import ChatRequest, GuidedFields, StructuredOutputs
from glm53_server.service import Service
from glm53_server.tokenizer import Tokenizer

MAX_SCHEMA_CHARS = 64 * 1024
MAX_REGEX_CHARS = 2048
MAX_GRAMMAR_CHARS = 32 * 1024
MAX_SCHEMA_DEPTH = 32
_WHITE_SPACE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


async def chat_grammar(
    service: Service,
    body: ChatRequest,
    *,
    must_call: tuple[str, ...],
    tools: Mapping[str, Schema | None],
    reasoning: bool,
) -> Grammar | None:
    """The constraint of a chat request, compiled once to check it. Raises ApiError."""
    asked = constraint(body)
    if asked is not None and must_call:
        raise invalid("tool_choice and an output constraint exclude each other", "tool_choice")
    if must_call:
        one = body.parallel_tool_calls is False or len(must_call) == 1
        names = {name: tools.get(name) for name in must_call}
        for name, schema in names.items():
            if is_endless(schema):
                raise invalid(f"the parameters of {name} require themselves without end", "tools")
        asked = (Grammar("lark", call_grammar(service.tokenizer, names, one=one)), "tools")
    if asked is None:
        return None
    grammar, param = asked
    start = service.tokenizer.id_of(Marker.THINK_END.value) if reasoning else None
    await service.check_grammar(grammar, param)
    return Grammar(grammar.kind, grammar.text, start)


def constraint(body: GuidedFields) -> tuple[Grammar, str] | None:
    """The one constraint a body asks for, with the field it came from."""
    outputs = body.structured_outputs or StructuredOutputs()
    json_schema = outputs.json_ if body.guided_json is None else body.guided_json
    regex = outputs.regex if body.guided_regex is None else body.guided_regex
    choice = outputs.choice if body.guided_choice is None else body.guided_choice
    lark = outputs.grammar if body.guided_grammar is None else body.guided_grammar
    found: list[tuple[Grammar, str]] = []
    if (formatted := _response_format(body)) is not None:
        found.append((_schema(formatted, "response_format"), "response_format"))
    if json_schema is not None:
        found.append((_schema(json_schema, "guided_json"), "guided_json"))
    if regex is not None:
        found.append((_bounded("regex", regex, MAX_REGEX_CHARS), "guided_regex"))
    if choice is not None:
        text = "start: " + " | ".join(json.dumps(one) for one in choice)
        found.append((_bounded("lark", text, MAX_GRAMMAR_CHARS), "guided_choice"))
    if lark is not None:
        found.append((_bounded("lark", lark, MAX_GRAMMAR_CHARS), "guided_grammar"))
    if len(found) > 1:
        fields = " and ".join(param for _, param in found)
        raise invalid(f"only one output constraint is possible, not {fields}", found[1][1])
    return found[0] if found else None


def _response_format(body: GuidedFields) -> object | None:
    asked = body.response_format
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return asked.schema_ if asked.schema_ is not None else {"type": "object"}
    schema = asked.json_schema.schema_ if asked.json_schema is not None else None
    if schema is None:
        raise invalid(
            "response_format.json_schema.schema is required", "response_format.json_schema"
        )
    return schema


def _schema(schema: object, param: str) -> Grammar:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise invalid(f"{param} is not valid JSON", param) from None
    if depth_exceeds(schema, MAX_SCHEMA_DEPTH):
        raise invalid(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH} levels", param)
    return _bounded("json_schema", json.dumps(_one_line(schema)), MAX_SCHEMA_CHARS, param)


def _one_line(schema: object) -> dict[str, Any]:
    """The schema with its white space fixed: a model left free to indent may never stop doing so."""
    whole = cast(dict[str, Any], schema) if isinstance(schema, dict) else {"allOf": [schema]}
    return {**whole, "x-guidance": _WHITE_SPACE}


def _bounded(kind: str, text: str, limit: int, param: str | None = None) -> Grammar:
    if len(text) > limit:
        raise ApiError(f"the {kind} is longer than {limit} characters", 400, "invalid_value", param)
    return Grammar(kind, text)


def call_grammar(tokenizer: Tokenizer, tools: Mapping[str, Schema | None], *, one: bool) -> str:
    """Lark for one or more calls of `tools` in GLM's own form.

    Declared arguments come in their declared order; text values are free, others follow their schema.
    """
    rules = [f"start: {'call' if one else 'call+'}"]
    heads: list[str] = []
    for number, (name, parameters) in enumerate(tools.items()):
        arguments, extra = _arguments(tokenizer, parameters or {}, f"c{number}")
        parts = [_token(tokenizer, Marker.CALL), json.dumps(name), *arguments]
        heads.append(" ".join([*parts, _token(tokenizer, Marker.CALL_END)]))
        rules += extra
    rules.append("call: " + " | ".join(f"({head})" for head in heads))
    rules.append(r"text: /(.|\n)*/")
    return "\n".join(rules)


def _arguments(
    tokenizer: Tokenizer, parameters: Schema, prefix: str
) -> tuple[list[str], list[str]]:
    """(use of each argument's rule in order, the rules)."""
    properties: Mapping[str, Any] = parameters.get("properties") or {}
    required = parameters.get("required") or []
    uses: list[str] = []
    rules: list[str] = []
    for number, (key, schema) in enumerate(properties.items()):
        rule = f"{prefix}_a{number}"
        kind = value_kind(parameters, key)
        whole = schema if isinstance(schema, Mapping) else {}
        definitions = {k: parameters[k] for k in ("$defs", "definitions") if k in parameters}
        value = (
            "text"
            if kind is not Kind.JSON
            else f"%json {json.dumps(_one_line({**whole, **definitions}))}"
        )
        open_key, close_key = _token(tokenizer, Marker.KEY), _token(tokenizer, Marker.KEY_END)
        open_value, close_value = (
            _token(tokenizer, Marker.VALUE),
            _token(tokenizer, Marker.VALUE_END),
        )
        rules.append(
            f"{rule}: {open_key} {json.dumps(key)} {close_key} {open_value} {rule}_v {close_value}"
        )
        choices = whole.get("enum") if kind is not Kind.JSON else None
        if choices and all(isinstance(choice, str) for choice in choices):
            value = " | ".join(json.dumps(choice) for choice in choices)
        rules.append(f"{rule}_v: {value}")
        uses.append(rule if key in required else f"{rule}?")
    return uses, rules


def _token(tokenizer: Tokenizer, marker: Marker) -> str:
    token_id = tokenizer.id_of(marker.value)
    if token_id is None:
        raise ApiError(
            "this tokenizer has no tool-call tokens", 400, "unsupported_parameter", "tools"
        )
    return f"<[{token_id}]>"
