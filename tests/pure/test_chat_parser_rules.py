"""Rules of the parser that the vectors do not reach: recovery, literal markup, and typing."""

from __future__ import annotations

import json

import pytest
from test_chat_parser_vectors import run

from glm53_server.chat.arguments import Kind, is_json, value_kind

TOOLS = [
    {"name": "status", "parameters": {"type": "object"}},
    {"name": "write", "parameters": {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}},
]  # fmt: skip


def parse(text, *, end="stop", start="reasoning", tools=TOOLS):
    case = {"tools": tools, "start": start, "end": end}
    whole = run(case, [text])
    assert run(case, list(text)) == whole
    return whole


def calls_of(result):
    return [(name, json.loads(arguments)) for name, arguments in result["calls"]]


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("use <tool_call> later</think>A", "use <tool_call> later", "A"),
        ("a <tool_call>nope</tool_call> b</think>A", "a <tool_call>nope</tool_call> b", "A"),
        ("a <tool_call>status is a tool</think>A", "a <tool_call>status is a tool", "A"),
        ("a<tool_call>", "a<tool_call>", None),
        ("a <think> b</think>A", "a <think> b", "A"),
        ("<think><think>a</think>A", "a", "A"),
        ("a</think>b</think>c", "a", "b</think>c"),
        ("a</think>\n</think>\nb", "a", "b"),
        ("\n\na\n\nb\n\n</think> \n b \n", "a\n\nb", " \n b \n"),
        ("</think>\n\n", None, None),
        ("</think>\n  ", None, "  "),
        ("</think><think>more</think>b", "more", "b"),
        ("</think><arg_key>k</arg_key>", None, "<arg_key>k</arg_key>"),
        ("</think><tool_call></tool_call>x", None, "x"),
        ("</think><tool_call>two words</tool_call>x", None, "two wordsx"),
        ("</think><tool_call>" + "x" * 300 + "</tool_call>", None, "x" * 300),
        ("</think><tool_call>" + " " * 2000 + "status</tool_call>x", None, " " * 2000 + "statusx"),
    ],
)
def test_text_around_markup(text, reasoning, content):
    result = parse(text)
    assert (result["reasoning"], result["content"]) == (reasoning, content)
    assert result["calls"] == []
    assert result["finish"] == "stop"


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        # literal closers in a value, and the forgotten ones
        ("<tool_call>write<arg_key>s</arg_key><arg_value>a</arg_value> b</arg_value></tool_call>", [("write", {"s": "a</arg_value> b"})]),
        ("<tool_call>write<arg_key>s</arg_key><arg_value>a</arg_value></arg_value></tool_call>", [("write", {"s": "a</arg_value>"})]),
        ("<tool_call>write<arg_key>s</arg_key><arg_value>a</think>b</arg_value></tool_call>", [("write", {"s": "a</think>b"})]),
        ("<tool_call>write<arg_key>s</arg_key><arg_value>a</tool_call>", [("write", {"s": "a"})]),
        ("<tool_call>write<arg_key>s</arg_key><arg_value>a</tool_call>\n<tool_call>status</tool_call>", [("write", {"s": "a"}), ("status", {})]),
        ("<tool_call>write<arg_key>s</arg_key><arg_value>a</arg_value>", [("write", {"s": "a"})]),
        ("<tool_call>write<arg_key>s</arg_key><arg_value>a</arg_value>\n<tool_call>status</tool_call>", [("write", {"s": "a"}), ("status", {})]),
        ("<tool_call>\n<tool_call>status</tool_call>", [("status", {})]),
        ("<tool_call> status \n</tool_call>", [("status", {})]),
        # the forgotten parts of an argument
        ("<tool_call>write<arg_key>s</arg_key>\na</arg_value></tool_call>", [("write", {"s": "\na"})]),
        ("<tool_call>write<arg_key>s<arg_value>a</arg_value></tool_call>", [("write", {"s": "a"})]),
        ("<tool_call>write<arg_key>s</arg_key></arg_value></tool_call>", [("write", {"s": ""})]),
        ("<tool_call>write<arg_key>s</arg_key></tool_call>", [("write", {})]),
        ("<tool_call>write<arg_key>x</arg_key><arg_key>s</arg_key><arg_value>a</arg_value></tool_call>", [("write", {"s": "a"})]),
        # control characters and quotes stay one JSON string
        ("<tool_call>write<arg_key>s</arg_key><arg_value>\"\\\x00\t\u2028é😀</arg_value></tool_call>", [("write", {"s": "\"\\\x00\t\u2028é😀"})]),
        ("<tool_call>write<arg_key>n</arg_key><arg_value>\n 5 \n</arg_value></tool_call>", [("write", {"n": 5})]),
        ("<tool_call>write<arg_key>n</arg_key><arg_value></arg_value></tool_call>", [("write", {"n": ""})]),
        ("<tool_call>write<arg_key>n</arg_key><arg_value>{\"a\": NaN}</arg_value></tool_call>", [("write", {"n": '{"a": NaN}'})]),
    ],
)  # fmt: skip
def test_calls_are_recovered(text, calls):
    for start, lead in (("reasoning", "</think>"), ("content", "")):
        result = parse(lead + text, start=start)
        assert calls_of(result) == calls
        assert result["content"] is None
        assert result["finish"] == "tool_calls"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<tool_call>write<arg_key>s</arg_key><arg_value>rm -rf /tmp", '{"s": "rm -rf /tmp'),
        ("<tool_call>write<arg_key>s</arg_key><arg_value>a</arg_value><arg_key>n</arg_key><arg_value>4", '{"s": "a"'),
        ("<tool_call>write<arg_key>s</arg_key>", ""),
        ("<tool_call>write<arg_key>s", ""),
    ],
)  # fmt: skip
def test_an_unfinished_call_fails_closed(text, arguments):
    for end in ("stop", "length"):
        result = parse("</think>" + text, end=end)
        assert result["calls"] == [["write", arguments]]
        assert result["finish"] == "length"


def test_length_never_adds_a_character():
    text = "</think><tool_call>write<arg_key>s</arg_key><arg_value>a</arg_value>"
    assert parse(text, end="length")["calls"] == [["write", '{"s": "a']]
    assert parse("</think><tool_call>status", end="length")["content"] is None
    assert parse("x<tool_call>status", end="length")["reasoning"] == "x"


def test_undeclared_names_are_forwarded_from_content_only():
    text = "<tool_call>other<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>"
    assert calls_of(parse("</think>" + text)) == [("other", {"k": "v"})]
    assert parse("r" + text)["reasoning"] == "r" + text


KINDS = {
    "text": ({"type": "string"}, Kind.TEXT),
    "nothing": ({}, Kind.TEXT),
    "integer": ({"type": "integer"}, Kind.JSON),
    "null or text": ({"type": ["string", "null"]}, Kind.TEXT_OR_NULL),
    "any of": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, Kind.TEXT_OR_NULL),
    "one of numbers": ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, Kind.JSON),
    "all of": ({"allOf": [{"description": "x"}, {"type": "boolean"}]}, Kind.JSON),
    "enum of text": ({"enum": ["a", "b"]}, Kind.TEXT),
    "enum of numbers": ({"enum": [1, 2]}, Kind.JSON),
    "enum with null": ({"enum": ["a", None]}, Kind.TEXT_OR_NULL),
    "const": ({"const": True}, Kind.JSON),
    "reference": ({"$ref": "#/$defs/n"}, Kind.JSON),
    "unknown reference": ({"$ref": "#/$defs/zz"}, Kind.TEXT),
    "endless reference": ({"$ref": "#/$defs/loop"}, Kind.TEXT),
    "text or list": ({"anyOf": [{"type": "string"}, {"type": "array"}]}, Kind.TEXT_OR_CONTAINER),
    "text or number": ({"type": ["string", "number"]}, Kind.TEXT),
    "odd": ({"type": 5}, Kind.TEXT),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_follow_the_schema(name):
    schema, kind = KINDS[name]
    root = {
        "properties": {"k": schema},
        "$defs": {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}},
    }
    assert value_kind(root, "k") is kind
    assert value_kind({"additionalProperties": {"type": "number"}}, "any") is Kind.JSON
    assert value_kind(None, "k") is Kind.TEXT
    assert value_kind({"allOf": [root]}, "k") in {kind, Kind.TEXT}


@pytest.mark.parametrize(
    "text",
    ["NaN", "Infinity", "-Infinity", "[NaN]", "1 2", "", "{", "'a'", "[" * 100_000, "9" * 5000],
)
def test_what_is_not_json(text):
    assert not is_json(text)
